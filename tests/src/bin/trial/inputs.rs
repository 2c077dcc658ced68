//! Input of the trial: exited children, signals that targets have logged, and the audit log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{WaitOptions, wait};
use serde_json::Value;

use crate::{BEFORE, Trial, boot};

impl Trial {
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_pid().unsigned_abs();
            if let Some(which) = self.daemons.ended(pid) {
                self.note(None, format!("{which:?} ended: {status:?}"));
                // Invalid rules prevent the start.
                if status.exit_status() == Some(64) && (self.rules_busy || self.rules_good + BEFORE > boot())
                {
                    self.after(1_000, 1_000, move |trial| trial.start(which));
                } else if !self.expected.remove(&which) {
                    self.witness.violate(
                        boot(),
                        "a daemon exited unexpectedly",
                        (self.daemons.remaining_output(which), None),
                    );
                    self.after(1_000, 1_000, move |trial| trial.start(which));
                }
                continue;
            }
            let index = self.world.at(pid, boot());
            self.world.ended(pid);
            if let Some(index) = index {
                self.note(Some(index), format!("{} ended: {status:?}", self.world.processes[index].name()));
            }
            if let Some(spec) = self.reuse.remove(&pid) {
                self.world.spawn(&self.daemons.home, spec, Some(pid));
                self.note(self.world.at(pid, boot()), format!("{pid} is another process now"));
            }
        }
    }

    /// Reads the signals that targets have logged: `WORD NANOSECONDS PID A B C`.
    pub(crate) fn read_signals(&mut self) {
        for line in self.signals.lines(&self.daemons.home.path().join("signals")) {
            let words: Vec<&str> = line.split(' ').collect();
            let [word, at, rest @ ..] = words.as_slice() else { continue };
            let at = Duration::from_nanos(at.parse().unwrap_or_default());
            let numbers: Vec<u32> = rest.iter().filter_map(|word| word.parse().ok()).collect();
            match (*word, numbers.as_slice()) {
                ("READY", [pid, ..]) => self.world.ready(*pid),
                ("FORK", [parent, pid, uid, ..]) => self.world.forked((*parent, *pid, *uid), at),
                ("SIGNAL", [pid, number, sender, ..]) => {
                    if let Some((index, number)) = self.world.at(*pid, at).zip(i32::try_from(*number).ok()) {
                        self.witness.logged(index, number, *sender);
                    }
                }
                _ => {}
            }
        }
    }

    pub(crate) fn read_audit(&mut self) {
        let offset = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(boot());
        for line in self.audit.lines(&self.daemons.audit()) {
            let Ok(line) = serde_json::from_str::<Value>(&line) else {
                self.witness.count("lines of the audit log that are no JSON");
                continue;
            };
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            let time = humantime::parse_rfc3339(&text("time")).unwrap_or(UNIX_EPOCH);
            let at = time.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(offset);
            self.witness.audit(&line, at);
            let holders = line["target"]["members"].as_array().into_iter().flatten();
            let pids: Vec<u32> =
                holders.filter_map(|member| u32::try_from(member["pid"].as_u64()?).ok()).collect();
            let places: Vec<usize> = pids.iter().filter_map(|pid| self.world.at(*pid, at)).collect();
            let (id, step, result) = (&line["id"], text("step"), text("result"));
            let text = format!("audit: {step} {result} {id} {} {}", line["target"]["id"], text("detail"));
            self.note_at(at, places.first().copied(), text);
            if let Some(index) = places.first() {
                self.provoke(*index, &result);
            }
        }
    }

    /// Makes the target busy, or stops it, between decision, confirmation and action.
    fn provoke(&mut self, index: usize, result: &str) {
        let share = match result {
            "due" => 30,
            "begun" => 40,
            _ => return,
        };
        if self.world.processes[index].ended.is_none() && self.dice.percent(share) {
            match (result, self.dice.percent(25)) {
                (_, true) => self.stop_now(index),
                ("due", false) => self.after(0, 250, move |trial| trial.use_now(index, 80)),
                _ => self.use_now(index, 80),
            }
        }
    }
}
