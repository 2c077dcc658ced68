//! The parts of a run: each starts workers, observes, and fills some rows.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::driver::{Answer, mebibytes};
use crate::programs::{Daemons, Published, Worker, until};
use crate::rows::{Seen, Subject, Trial, pause, wall_ms};
use crate::worker::{ALLOCATION, Work};

const ALLOCATED: u64 = ALLOCATION as u64;
const DRY_RUN: &[&str] = &["dry-run-idle", "dry-run-busy", "dry-run-signals"];
/// More than rounding to whole pages.
const ROUNDING: u64 = 64 << 20;
/// How long memory may take to come back.
const RELEASE: Duration = Duration::from_secs(10);

/// What was published of a worker, and what of the driver's answer is about it.
fn of(subject: &Subject, seen: &Seen) -> (Published, String) {
    (Published::of(subject.worker.pid, &seen.snapshots), seen.answer.of(subject.listed))
}

impl Trial<'_> {
    /// What the driver says of a GPU that nothing runs on.
    pub(crate) fn idle_gpu(&mut self) -> Result<(), String> {
        if self.card.mig || self.card.others > 0 {
            self.skip(&["samples-idle", "not-found"], "MIG is on, or processes of others are on the GPU");
            return Ok(());
        }
        pause(self.setting.look_back);
        let before = self.read(0)?;
        pause(self.setting.observe);
        let after = self.read(before.newest())?;
        let done = "nothing ran".to_owned();
        let new = !after.device.is_empty();
        self.driver_row(
            "samples-idle",
            [done.clone(), after.of_gpu(), String::new()],
            &[(new, "it has none")],
        );
        let answer = after.refused.clone().unwrap_or_else(|| format!("{} samples", after.samples.len()));
        let refused = after.refused.as_deref() == Some("NOT_FOUND");
        self.driver_row("not-found", [done, answer, String::new()], &[(refused, "it does not")]);
        Ok(())
    }

    /// A process in both lists, where there is one.
    pub(crate) fn both_lists(&mut self, answer: &Answer) {
        let both = answer.compute.iter().filter_map(|(pid, held)| Some((*held, *answer.graphics.get(pid)?)));
        let Some((computes, draws)) = both.into_iter().next() else { return };
        let sum: u64 = answer.compute.values().flatten().sum();
        let words =
            format!("compute {computes:?}, graphics {draws:?}; {} used in all", mebibytes(answer.used));
        let claims = [
            (computes == draws, "the figures differ"),
            (sum <= answer.used, "the sum is above what is used"),
        ];
        self.driver_row(
            "two-lists",
            ["a process of others was in both".to_owned(), words, String::new()],
            &claims,
        );
    }

    /// All that needs the exporter and the enforcer. A part that fails leaves out its own rows only.
    pub(crate) fn with_programs(&mut self, mut idle: Subject) -> Result<(), String> {
        if self.card.mig {
            return self.mig(idle);
        }
        self.skip(&["row-1"], "MIG is off, and no setting of the GPU is changed");
        let mut memory = self.start(Work::Memory)?;
        let began = wall_ms();
        let mut daemons = Daemons::start(&self.setting)?;
        let at_rest = self.at_rest(&mut daemons, [&mut idle, &mut memory], began);
        self.unless(at_rest, &["row-2", "row-6", "memory"]);
        let released = self.release(memory);
        self.unless(released, &["release"]);
        let leaderless = self.leaderless(&mut daemons);
        self.unless(leaderless, &["leaderless"]);
        let busy = self.computing(&mut daemons, &mut idle);
        self.unless(busy.clone().map(drop), &["row-3", "row-5", "row-3-streams", "row-3-shared"]);
        let bursts = self.bursts(&mut daemons);
        self.unless(bursts, &["row-7"]);
        let forked = self.forked(&mut daemons);
        self.unless(forked, &["forked"]);
        let quota = self.quota();
        self.unless(quota, &["quota"]);
        self.skip(&["row-4"], "no control daemon of MPS is started");
        match busy {
            Ok(_) if rustix::process::geteuid().is_root() => {
                self.skip(DRY_RUN, "rules never match root's processes; run it as an ordinary user");
            }
            Ok(busy) => self.dry_run(&daemons, &mut idle, busy),
            Err(why) => self.skip(DRY_RUN, &why),
        }
        daemons.fault().map_or(Ok(()), Err)
    }

    /// A part that failed leaves its rows untried.
    fn unless(&mut self, part: Result<(), String>, ids: &[&str]) {
        let missing = |id: &&&str| self.report.rows.iter().all(|row| row.id != **id);
        let ids: Vec<&str> = ids.iter().filter(missing).copied().collect();
        if let Err(why) = part {
            self.skip(&ids, &why);
        }
    }

    fn at_rest(&mut self, daemons: &mut Daemons, both: [&mut Subject; 2], began: u64) -> Result<(), String> {
        let [idle, memory] = both;
        let seen = self.observe(daemons, &mut [idle, memory])?;
        let (published, answer) = of(idle, &seen);
        let first = daemons.snapshots(began, wall_ms()).into_iter().take(1).collect::<Vec<_>>();
        let first = Published::of(idle.worker.pid, &first);
        let words = ["the exporter was started".to_owned(), answer.clone(), first.words()];
        let unknown = first.unknown.contains_key("first_look");
        self.row("row-2", words, [&[], &[(unknown, "the first snapshot says otherwise")]]);

        let (with_memory, of_memory) = of(memory, &seen);
        let words = [
            "a process with a context, another that also allocated 512 MiB; neither computes".to_owned(),
            format!("{answer} and {of_memory}; {}", seen.answer.of_gpu()),
            format!("{} and {}", published.words(), with_memory.words()),
        ];
        let sampled = [idle.listed, memory.listed].iter().any(|pid| seen.answer.busiest(*pid).is_some());
        let calm = seen.answer.maximum().is_some_and(|percent| percent <= 1);
        let zero = published.is_idle() && with_memory.is_idle();
        let driver = [(!sampled, "an idle process has samples"), (calm, "the GPU is not calm")];
        self.row("row-6", words, [&driver, &[(zero, "an idle process was not published as 0")]]);

        let held = |one: &Subject| seen.answer.compute.get(&one.listed).copied().flatten();
        let grown = held(memory).zip(held(idle)).map(|(more, less)| more.saturating_sub(less));
        let fits = grown.is_some_and(|grown| (ALLOCATED..=ALLOCATED + ROUNDING).contains(&grown));
        let words = [
            "a process allocated 512 MiB".to_owned(),
            format!("{of_memory}, {} more than without", grown.map_or("unknown".to_owned(), mebibytes)),
            with_memory.memory.map_or("unknown".to_owned(), mebibytes),
        ];
        let same = with_memory.memory == held(memory);
        let published = [(same, "another figure was published")];
        self.row("memory", words, [&[(fits, "it does not grow by that")], &published]);
        Ok(())
    }

    /// Kills a process that holds memory.
    fn release(&mut self, mut subject: Subject) -> Result<(), String> {
        let before = self.read(0)?.used;
        subject.worker.kill();
        let began = Instant::now();
        let (mut unlisted, mut back) = (None, None);
        while began.elapsed() < RELEASE && (unlisted.is_none() || back.is_none()) {
            let now = self.read(0)?;
            let gone = !now.compute.contains_key(&subject.listed);
            unlisted = unlisted.or_else(|| gone.then(|| began.elapsed().as_millis()));
            let less = now.used + ALLOCATED <= before;
            back = back.or_else(|| less.then(|| began.elapsed().as_millis()));
            pause(Duration::from_millis(2));
        }
        let after = |time: Option<u128>| time.map_or("not".to_owned(), |time| format!("after {time} ms"));
        let answer = format!("no longer listed: {}; memory back: {}", after(unlisted), after(back));
        let words = ["a process with 512 MiB was killed and reaped".to_owned(), answer, String::new()];
        let claims = [(unlisted.is_some(), "it stays listed"), (back.is_some(), "its memory stays")];
        self.driver_row("release", words, &claims);
        Ok(())
    }

    fn leaderless(&mut self, daemons: &mut Daemons) -> Result<(), String> {
        let mut subject = self.start(Work::Leaderless)?;
        let seen = self.observe(daemons, &mut [&mut subject])?;
        let (published, answer) = of(&subject, &seen);
        let state = published.state.clone().unwrap_or_default();
        let words = [
            "a process allocated 512 MiB; its first thread exited, another lives".to_owned(),
            answer,
            format!("state {state}; {}", published.words()),
        ];
        let held = seen.answer.compute.get(&subject.listed).copied().flatten();
        let driver = [(held.is_some_and(|bytes| bytes >= ALLOCATED), "it is not listed with its memory")];
        self.row(
            "leaderless",
            words,
            [&driver, &[(state == "zombie_leader", "another state was published")]],
        );
        Ok(())
    }

    /// Gives the pid of a process that computed.
    fn computing(&mut self, daemons: &mut Daemons, idle: &mut Subject) -> Result<u32, String> {
        let mut busy = self.start(Work::Busy)?;
        let seen = self.observe(daemons, &mut [idle, &mut busy])?;
        self.busy(("row-3", "a process launches one kernel after the other"), &[&busy], &seen);
        let (published, answer) = of(idle, &seen);
        let words = ["beside it, a process only has a context".to_owned(), answer, published.words()];
        let none = seen.answer.busiest(idle.listed).is_none();
        let zero = (published.is_idle(), "it was not published as 0");
        self.row("row-5", words, [&[(none, "an idle process has samples")], &[zero]]);
        let mut streams = self.start(Work::Streams)?;
        let seen = self.observe(daemons, &mut [idle, &mut busy, &mut streams])?;
        self.busy(("row-3-streams", "a process launches kernels in 16 streams"), &[&streams], &seen);
        self.busy(("row-3-shared", "both processes compute at once"), &[&busy, &streams], &seen);
        Ok(busy.worker.pid)
    }

    /// A row about processes that compute all the time.
    fn busy(&mut self, (id, done): (&'static str, &str), subjects: &[&Subject], seen: &Seen) {
        let both: Vec<_> = subjects.iter().map(|subject| of(subject, seen)).collect();
        let sampled = subjects.iter().all(|one| seen.answer.busiest(one.listed).is_some_and(|most| most > 1));
        let idle = both.iter().any(|one| !one.0.is_never_idle());
        let busy = both.iter().all(|one| one.0.is_busy());
        let words = [
            done.to_owned(),
            both.iter().map(|one| one.1.clone()).collect::<Vec<_>>().join(" and "),
            both.iter().map(|one| one.0.words()).collect::<Vec<_>>().join(" and "),
        ];
        let published = [
            (!idle, "a process that computes was published as idle"),
            (busy || idle, "its utilization was not published"),
        ];
        self.row(id, words, [&[(sampled, "a process that computes has no samples above 1 %")], &published]);
    }

    fn bursts(&mut self, daemons: &mut Daemons) -> Result<(), String> {
        let mut subject = self.start(Work::Bursts)?;
        let seen = self.observe(daemons, &mut [&mut subject])?;
        let (published, answer) = of(&subject, &seen);
        let words = [
            "a process computes 20 ms and rests 180 ms".to_owned(),
            format!("{answer}; {}", seen.answer.of_gpu()),
            published.words(),
        ];
        let claims = [(published.is_never_idle(), "it was published as idle")];
        self.row("row-7", words, [&[], &claims]);
        Ok(())
    }

    fn forked(&mut self, daemons: &mut Daemons) -> Result<(), String> {
        let before = self.read(0)?.used;
        let mut subject = self.start(Work::Forked)?;
        let child = subject.worker.child.ok_or("no child was forked")?;
        // Until the exporter has seen it.
        pause(3 * self.setting.interval);
        subject.worker.kill();
        // The parent cannot be asked whether it lives; the driver and the exporter are.
        let seen = self.observe(daemons, &mut [])?;
        let kept = seen.answer.used >= before + ALLOCATED;
        let lists = [subject.listed, child].map(|pid| seen.answer.compute.contains_key(&pid));
        let memory = seen.snapshots.last().and_then(|last| {
            last.gpus.iter().find(|gpu| gpu.uuid.as_deref() == Some(&self.card.uuid))?.memory.clone()
        });
        let memory = memory.unwrap_or_default();
        let (dead, unreturned) =
            (memory.dead_pids.unwrap_or_default(), memory.unreturned.unwrap_or_default());
        let unaccounted = memory.unaccounted.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
        drop(subject);
        let back = until("memory is back", || self.read(0).is_ok_and(|now| now.used < before + ALLOCATED));
        let words = [
            "a process with 512 MiB forked and was killed; the child lives".to_owned(),
            format!("memory kept: {kept}; parent listed: {}, child listed: {}", lists[0], lists[1]),
            format!(
                "of dead pids {}, unaccounted {}, not returned {}",
                mebibytes(dead),
                mebibytes(unaccounted),
                mebibytes(unreturned)
            ),
        ];
        let driver =
            [(kept, "the memory came back before the child ended"), (back.is_ok(), "it never came back")];
        let told = [(dead.max(unaccounted).max(unreturned) >= ALLOCATED, "what is kept was not published")];
        self.row("forked", words, [&driver, &told]);
        Ok(())
    }

    fn quota(&mut self) -> Result<(), String> {
        let library = self.setting.programs.join("libbailiff_quota.so");
        if !library.exists() {
            return Err("libbailiff_quota.so is not beside this program".to_owned());
        }
        let with = |limit: &str| {
            let environment = [("LD_PRELOAD", library.clone().into()), ("WRAPPER_MAX_MEMORY", limit.into())];
            Worker::start(Work::Memory, &self.card.uuid, &environment).map(drop)
        };
        let answers = [with("256MiB"), with("1GiB")];
        let say = |answer: &Result<(), String>| answer.clone().err().unwrap_or("granted".to_owned());
        let words = [
            "a process under the library allocated 512 MiB, at limits of 256 MiB and 1 GiB".to_owned(),
            String::new(),
            format!("{}; {}", say(&answers[0]), say(&answers[1])),
        ];
        let out_of_memory = say(&answers[0]).ends_with("answered 2");
        let claims = [
            (out_of_memory, "more was not refused as out of memory"),
            (answers[1].is_ok(), "less was refused"),
        ];
        self.driver_row("quota", words, &claims);
        Ok(())
    }

    /// MIG is on already: a process on an instance.
    fn mig(&mut self, mut idle: Subject) -> Result<(), String> {
        let mut daemons = Daemons::start(&self.setting)?;
        let seen = self.observe(&mut daemons, &mut [&mut idle])?;
        let (published, answer) = of(&idle, &seen);
        let unknown = published.percent.is_empty() && published.unknown.contains_key("mig");
        let words = ["a process on an instance".to_owned(), answer, published.words()];
        self.row("row-1", words, [&[], &[(unknown, "another reason was published")]]);
        Err("MIG is on".to_owned())
    }

    /// What the enforcer decided on a process that was idle all the time and on one that computed, and what it sent.
    fn dry_run(&mut self, daemons: &Daemons, idle: &mut Subject, busy: u32) {
        let count = |pid: u32, step: &str| {
            let target = format!("process:{pid}@");
            let about =
                |line: &Value| line["target"]["id"].as_str().is_some_and(|id| id.starts_with(&target));
            daemons.audit().iter().filter(|line| line["step"] == step && about(line)).count()
        };
        let said = |pid: u32| [count(pid, "flag"), count(pid, "terminate")];
        let words = |done: &str, [flags, ends]: [usize; 2]| {
            let published = format!("{flags} records of a flag, {ends} of terminate");
            [done.to_owned(), String::new(), published]
        };
        if self.setting.pids_are_ours {
            // Where it never comes, the row says so.
            let _ = until("the enforcer's decision", || count(idle.worker.pid, "terminate") > 0);
        }
        let (of_idle, of_busy) = (said(idle.worker.pid), said(busy));
        let both = of_idle.iter().all(|count| *count > 0);
        let done = "a process only has a context, for the whole run";
        self.row("dry-run-idle", words(done, of_idle), [&[], &[(both, "it did not")]]);
        let done = "the process of row-3";
        self.row("dry-run-busy", words(done, of_busy), [&[], &[(of_busy == [0, 0], "it did")]]);
        let signals = |line: &Value| line["sent"].as_array().map_or(0, Vec::len);
        let sent: usize = daemons.audit().iter().map(signals).sum();
        let lives = idle.worker.lives();
        let published = format!("{sent} signals in the audit log; the idle process lives: {lives}");
        let claims = [(sent == 0, "signals were sent"), (lives, "the idle process was ended")];
        let done = "after all of these decisions".to_owned();
        self.driver_row("dry-run-signals", [done, String::new(), published], &claims);
    }
}
