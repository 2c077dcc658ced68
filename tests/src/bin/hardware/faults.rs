//! The rows `xid`, `release` and `kill-busy`: what follows an error of a process, or its end by SIGKILL.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bailiff_snapshot::XidClass;
use bailiff_snapshot::wire::Gpu;

use crate::programs::until;
use crate::report::{Tried, outcome};
use crate::run::{Run, Subject, pause};
use crate::worker::ALLOCATION;

/// Time limit for the release of memory.
const RELEASE: Duration = Duration::from_secs(10);

/// When a killed process was no longer listed, and when its memory was free, in milliseconds after its end.
struct Freed {
    unlisted: Option<u128>,
    back: Option<u128>,
}

impl Freed {
    fn text(&self) -> String {
        let after = |time: Option<u128>| time.map_or("not".to_owned(), |time| format!("after {time} ms"));
        format!("no longer listed: {}; memory back: {}", after(self.unlisted), after(self.back))
    }

    fn claims(&self) -> [(bool, &'static str); 2] {
        [(self.unlisted.is_some(), "it stays listed"), (self.back.is_some(), "its memory stays")]
    }
}

impl Run {
    /// Lets a kernel write to an address without memory. This ends the work of the worker's context and of no other.
    pub(crate) fn xid(&mut self) -> Tried {
        let before = self.gpu()?.xids;
        let faulty = self.start("fault")?;
        // If there is no error, the row reports that.
        let _ = until("an Xid error", || self.gpu().is_ok_and(|gpu| gpu.xids != before));
        let is_logged = |gpu: &Gpu| {
            let of_worker = gpu.holders.iter().filter(|holder| holder.pid == faulty.listed);
            of_worker.flat_map(|holder| holder.xids.keys()).any(|xid| [13, 31].contains(xid))
        };
        let logged = self.setting.has_kernel_log().then(|| {
            let _ = until("the error of the process", || self.gpu().is_ok_and(|gpu| is_logged(&gpu)));
            self.gpu().is_ok_and(|gpu| is_logged(&gpu))
        });
        drop(faulty);
        let new = new_xids(&before, &self.gpu()?.xids);
        let of_process = match logged {
            Some(true) => "one of the process in the kernel log",
            Some(false) => "none of the process in the kernel log",
            None => "the kernel log cannot be read",
        };
        let published = format!("{}; {of_process}", xid_text(&new));
        let expected = new.iter().any(|xid| [13, 31].contains(xid));
        let claims = [
            (expected, "neither Xid 13 nor 31 was received"),
            (new.iter().all(|xid| XidClass::of(*xid) == XidClass::Application), "another class"),
            (logged != Some(false), "the kernel log attributes no error to the process"),
        ];
        outcome(["a kernel wrote to address 16", "", &published], &claims)
    }

    pub(crate) fn release(&mut self) -> Tried {
        self.let_run(&["idle", "memory"])?;
        let subject = self.take("memory")?;
        let freed = self.kill(subject)?;
        outcome(["a process with 512 MiB was killed and reaped", &freed.text(), ""], &freed.claims())
    }

    pub(crate) fn kill_busy(&mut self) -> Tried {
        let before = self.gpu()?.xids;
        let subject = self.start("killed")?;
        let freed = self.kill(subject)?;
        // Time for an Xid error, and for a snapshot that contains it.
        pause(self.setting.observe + self.setting.interval);
        let new = new_xids(&before, &self.gpu()?.xids);
        let other = (new.iter().all(|xid| *xid == 45), "an Xid other than 45 was received");
        let class = (
            new.iter().all(|xid| XidClass::of(*xid) == XidClass::Cleanup),
            "an Xid of another class than cleanup was received",
        );
        let claims = [freed.claims().as_slice(), &[other, class]].concat();
        outcome(
            ["a process with 512 MiB was killed while it computed", &freed.text(), &xid_text(&new)],
            &claims,
        )
    }

    /// Kills a worker that allocated memory, and measures when the memory is released.
    fn kill(&mut self, subject: Subject) -> Result<Freed, String> {
        let (before, listed) = (self.read(0)?.used, subject.listed);
        drop(subject);
        let began = Instant::now();
        let mut freed = Freed { unlisted: None, back: None };
        while began.elapsed() < RELEASE && (freed.unlisted.is_none() || freed.back.is_none()) {
            let (now, after) = (self.read(0)?, began.elapsed().as_millis());
            freed.unlisted = freed.unlisted.or((!now.lists_process(listed)).then_some(after));
            freed.back = freed.back.or((now.used + ALLOCATION <= before).then_some(after));
            pause(Duration::from_millis(2));
        }
        Ok(freed)
    }
}

/// Returns the errors whose number grew.
fn new_xids(before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>) -> Vec<u64> {
    let is_new = |(xid, count): &(&u64, &u64)| before.get(xid).is_none_or(|earlier| earlier < count);
    after.iter().filter(is_new).map(|(xid, _)| *xid).collect()
}

/// Returns the errors with their classes.
fn xid_text(xids: &[u64]) -> String {
    let one = |xid: &u64| format!("Xid {xid} ({})", XidClass::of(*xid).name());
    match xids {
        [] => "no Xid".to_owned(),
        xids => xids.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}
