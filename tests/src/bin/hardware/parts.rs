//! The parts of a run that need more than a period of observation. Each part fills one row, or reports why it was not
//! tried.

use std::os::unix::process::ExitStatusExt;

use bailiff_mps::control::Question;
use bailiff_mps::reply;
use bailiff_snapshot::RecoveryAction;
use bailiff_snapshot::wire::Gpu;
use serde_json::Value;

use crate::driver::mebibytes;
use crate::programs::{self, Worker, until};
use crate::published::Published;
use crate::report::{Tried, outcome};
use crate::run::{FOREIGN_PIDS, Run, Subject, pause};
use crate::worker::{ALLOCATION, Work};

/// Microseconds that the driver's buffer must cover: the exporter's default sampling interval.
const BUFFER: u64 = 5_000_000;

impl Run {
    /// Looks among existing processes for a process that is in both lists, because the workers do not use graphics.
    pub(crate) fn two_lists(&mut self) -> Tried {
        let answer = self.read(0)?;
        let mut both =
            answer.compute.iter().filter_map(|(pid, held)| Some((held, answer.graphics.get(pid)?)));
        let why =
            "no process was in both lists; it needs a program that draws and computes, such as a desktop's";
        let (computes, draws) = both.next().ok_or(why)?;
        let sum: u64 = answer.compute.values().flatten().sum();
        let observed =
            format!("compute {computes:?}, graphics {draws:?}; {} used in all", mebibytes(answer.used));
        let claims = [
            (computes == draws, "the figures differ"),
            (sum <= answer.used, "the sum is above what is used"),
        ];
        outcome(["a process of others was in both", &observed, ""], &claims)
    }

    pub(crate) fn first_snapshot(&mut self) -> Tried {
        self.without_mig()?;
        self.let_run(&["idle"])?;
        until("the first snapshot", || !programs::snapshots(&self.setting, 0).is_empty())?;
        let first: Vec<_> = programs::snapshots(&self.setting, 0).into_iter().take(1).collect();
        let published = Published::of(self.subject("idle")?.pid, &first);
        let unknown = (published.is_unknown("first_sample"), "the first snapshot differs");
        self.published(["the exporter was started", "", &published.text()], &[unknown])
    }

    /// Returns the GPU in the newest snapshot.
    pub(crate) fn gpu(&mut self) -> Result<Gpu, String> {
        self.let_run(&["idle"])?;
        let (setting, uuid) = (&self.setting, self.card.uuid.as_str());
        let mut gpu = None;
        until("a snapshot of the GPU", || {
            let last = programs::snapshots(setting, 0).pop();
            gpu = last.and_then(|last| last.gpus.into_iter().find(|gpu| gpu.uuid.as_deref() == Some(uuid)));
            gpu.is_some()
        })?;
        gpu.ok_or_else(|| "no snapshot".to_owned())
    }

    pub(crate) fn health(&mut self) -> Tried {
        let (gpu, uuid) = (self.gpu()?, self.card.uuid.clone());
        let driver = self.driver.health(&uuid).map_err(|error| error.to_string())?;
        let answer = format!("{driver:?}");
        let published = format!(
            "action {}, remap pending {:?}, failed {:?}, uncorrected ECC errors {:?}, clock events {:?}",
            gpu.recovery_action.as_deref().unwrap_or("unknown"),
            gpu.row_remap_pending,
            gpu.row_remap_failed,
            gpu.ecc_uncorrected,
            gpu.clock_events
        );
        let flag = |position: usize| driver.rows[position].map(|flag| flag == 1);
        let claims = [
            (
                gpu.recovery_action == driver.action.map(|action| RecoveryAction::of(action).into()),
                "another action",
            ),
            (driver.rows == driver.rows_by_call, "the fields and the call differ"),
            ([gpu.row_remap_pending, gpu.row_remap_failed] == [flag(2), flag(3)], "other states of rows"),
            (gpu.ecc_uncorrected == driver.ecc, "another number of ECC errors"),
            (gpu.clock_events.is_some(), "clock events are unknown"),
        ];
        outcome(["nothing", &answer, &published], &claims)
    }

    pub(crate) fn own_cgroup(&mut self) -> Tried {
        let (gpu, uuid) = (self.gpu()?, self.card.uuid.clone());
        let driver = self.driver.health(&uuid).map_err(|error| error.to_string())?;
        if let Some(why) = &gpu.memory_unknown {
            return Err(format!("the memory is unknown here: {why}"));
        }
        let answer = format!("{} in total; limits: {}", mebibytes(driver.total), driver.has_limits);
        let total = gpu.memory.map(|memory| memory.total);
        let published = total.map_or("no total".to_owned(), mebibytes);
        outcome(
            ["nothing", &answer, &published],
            &[(total == Some(driver.total), "another total was published")],
        )
    }

    /// Clock steps and full buffers are not caused by this part, but detected in all samples that were read.
    pub(crate) fn stamps(&mut self) -> Tried {
        let samples = self.read(0)?.device;
        let stamps = || samples.iter().map(|sample| sample.0);
        let covered = stamps().max().zip(stamps().min()).map_or(0, |(newest, oldest)| newest - oldest);
        let steps = self.stamps.windows(2).filter(|pair| pair[1] < pair[0]).count();
        let answer = format!(
            "{steps} steps back in {} readings; buffer of {} samples, {} ms",
            self.stamps.len(),
            samples.len(),
            covered / 1000
        );
        let snapshots = programs::snapshots(&self.setting, 0);
        let all = self.subjects.iter().map(|subject| Published::of(subject.pid, &snapshots));
        let unknown =
            |of: &Published| ["clock_stepped", "window_too_long"].map(|why| of.unknown.get(why).copied());
        let unknown: usize = all.flat_map(|of| unknown(&of)).flatten().sum();
        let claims = [
            (steps == 0, "timestamps step back"),
            (covered >= BUFFER, "the buffer is shorter"),
            (unknown == 0, "utilization was unknown for it"),
        ];
        let published = format!("unknown (clock_stepped, window_too_long) in {unknown}");
        outcome(["nothing: no clock step or full buffer was provoked", &answer, &published], &claims)
    }

    /// Terminates the GPU work of a client of the run's own MPS server.
    pub(crate) fn terminate_client(&mut self) -> Tried {
        let (server, client) = (self.mps_server()?.pid, self.subject("mps-idle")?.pid);
        let (_, control) = self.mps.as_ref().ok_or("no daemon of MPS was started")?;
        let reply =
            control.query(Question::TerminateClient(server, client)).map_err(|error| error.to_string());
        let understood = reply.as_ref().is_ok_and(|reply| reply::terminated(reply).is_ok());
        let running = self.is_running("mps-idle");
        let observed =
            format!("`{}`; the process lives: {running}", reply.unwrap_or_else(|error| error).trim());
        let claims = [(understood, "its answer is not taken for success"), (running, "the process ended")];
        outcome(["the idle client was terminated", &observed, ""], &claims)
    }

    pub(crate) fn forked(&mut self) -> Tried {
        self.without_mig()?;
        self.let_run(&["idle"])?;
        pause(3 * self.setting.interval);
        let before = self.read(0)?.used;
        let mut subject = self.start("forked")?;
        let worker = subject.worker.as_mut().ok_or("no worker")?;
        let child = worker.child.ok_or("no child was forked")?;
        // Waits until the exporter has sampled the process.
        pause(3 * self.setting.interval);
        worker.kill();
        let seen = self.observe()?;
        let kept = seen.answer.used >= before + ALLOCATION;
        let [parent, child] = [subject.listed, child].map(|pid| seen.answer.lists_process(pid));
        let gpu = seen.snapshots.last().and_then(|last| {
            last.gpus.iter().find(|gpu| gpu.uuid.as_deref() == Some(&self.card.uuid))?.memory.clone()
        });
        let gpu = gpu.unwrap_or_default();
        let unaccounted = gpu.unaccounted.and_then(|bytes| u64::try_from(bytes).ok());
        let parts = [gpu.dead_pids, unaccounted, gpu.unreleased].map(Option::unwrap_or_default);
        let [dead, unaccounted, unreleased] = parts.map(mebibytes);
        drop(subject);
        let back = until("memory is back", || self.read(0).is_ok_and(|now| now.used < before + ALLOCATION));
        let answer = format!("memory kept: {kept}; parent listed: {parent}, child listed: {child}");
        let published = format!("of dead pids {dead}, unaccounted {unaccounted}, not returned {unreleased}");
        let claims = [
            (kept, "the memory came back before the child ended"),
            (back.is_ok(), "it never came back"),
            (parts.iter().any(|bytes| *bytes >= ALLOCATION), "what is kept was not published"),
        ];
        let done = "a process with 512 MiB forked and was killed; the child lives";
        self.published([done, &answer, &published], &claims)
    }

    pub(crate) fn quota(&mut self) -> Tried {
        let library = self.setting.programs.join("libbailiff_quota.so");
        if !library.exists() {
            return Err("libbailiff_quota.so is not in the directory of this program".to_owned());
        }
        let with = |limit: &str| {
            let environment = [("LD_PRELOAD", library.clone().into()), ("WRAPPER_MAX_MEMORY", limit.into())];
            let started = Worker::start(&self.setting, "memory", &environment);
            started.map_or_else(|why| why, |_| "granted".to_owned())
        };
        let [above, below] = ["256MiB", "1GiB"].map(with);
        let claims = [
            (above.ends_with("answered 2"), "more was not refused as out of memory"),
            (below == "granted", "less was refused"),
        ];
        let done = "a process under the library allocated 512 MiB, at limits of 256 MiB and 1 GiB";
        outcome([done, "", &format!("{above}; {below}")], &claims)
    }

    pub(crate) fn dry_run_idle(&mut self) -> Tried {
        self.let_run(&["idle"])?;
        let pid = self.subject("idle")?.pid;
        if self.setting.shares_pid_namespace {
            // If the decision is never made, the row reports that.
            let _ = until("the enforcer's decision", || self.decisions(pid)[1] > 0);
        }
        let decisions = self.decisions(pid);
        let claims = [(!decisions.contains(&0), "it did not")];
        self.published(
            ["a process had a context alone, for the whole run", "", &decision_text(decisions)],
            &claims,
        )
    }

    pub(crate) fn dry_run_busy(&mut self) -> Tried {
        let pid = *self.busy.first().ok_or("no process computed")?;
        let decisions = self.decisions(pid);
        self.published(
            ["the process of row-3", "", &decision_text(decisions)],
            &[(decisions == [0, 0], "it did")],
        )
    }

    pub(crate) fn dry_run_signals(&mut self) -> Tried {
        let sent = signals(&programs::audit(&self.setting, "dry-run.jsonl")).len();
        let running = self.is_running("idle");
        let published = format!("{sent} signals in the audit log; the idle process lives: {running}");
        let claims = [(sent == 0, "signals were sent"), (running, "the idle process was ended")];
        self.published(["after all of these decisions", "", &published], &claims)
    }

    /// The only part in which the enforcer acts. Its rules protect all process names except those of the workers.
    pub(crate) fn terminate(&mut self) -> Tried {
        self.without_mig()?;
        if !self.setting.shares_pid_namespace {
            return Err(FOREIGN_PIDS.to_owned());
        }
        self.let_run(&["idle"])?;
        self.enforcer = None;
        self.enforcer = Some(programs::enforcer(&self.setting, "enforce.jsonl", false)?);
        let mut subject = self.start("terminated")?;
        let worker = subject.worker.as_mut().ok_or("no worker")?;
        let mut status = None;
        // If the worker is not terminated, the row reports that.
        let _ = until("the end of the worker", || {
            status = worker.program.ended();
            status.is_some()
        });
        let result = || {
            let lines = programs::audit(&self.setting, "enforce.jsonl");
            let line = lines.iter().rfind(|line| line["step"] == "terminate");
            let text = |key: &str| line.and_then(|line| line[key].as_str()).unwrap_or_default();
            [text("result").to_owned(), text("detail").to_owned()]
        };
        let _ = until("the memory of the worker", || status.is_none() || result()[0] == "released");
        let sent = signals(&programs::audit(&self.setting, "enforce.jsonl"));
        let expected = sent == [(u64::from(subject.pid), "SIGTERM".to_owned())];
        let by_term = status.and_then(|status| status.signal()) == Some(15);
        let [result, detail] = result();
        let running = self.is_running("idle");
        let claims = [
            (by_term, "SIGTERM did not end it"),
            (result == "released", "its memory was not seen to return"),
            (expected, "other signals were sent"),
            (running, "another worker was ended"),
        ];
        let published = format!("signals {sent:?} to pid {}; result {result} {detail}", subject.pid);
        let status = status.map_or("it runs".to_owned(), |status| status.to_string());
        outcome(["a process with 512 MiB did nothing", &status, &published], &claims)
    }

    /// Returns an outcome that requires the driver's pids to be those in this PID namespace.
    pub(crate) fn published(&self, cells: [&str; 3], claims: &[(bool, &'static str)]) -> Tried {
        if self.setting.shares_pid_namespace { outcome(cells, claims) } else { Err(FOREIGN_PIDS.to_owned()) }
    }

    pub(crate) fn without_mig(&self) -> Result<(), String> {
        if self.card.mig { Err("MIG is on".to_owned()) } else { Ok(()) }
    }

    fn index(&self, work: Work) -> Result<usize, String> {
        let index = self.subjects.iter().position(|subject| subject.work == work);
        index.ok_or_else(|| format!("no worker {work} runs"))
    }

    pub(crate) fn subject(&self, work: Work) -> Result<&Subject, String> {
        self.index(work).map(|index| &self.subjects[index])
    }

    pub(crate) fn take(&mut self, work: Work) -> Result<Subject, String> {
        self.index(work).map(|index| self.subjects.remove(index))
    }

    fn is_running(&mut self, work: Work) -> bool {
        let Ok(index) = self.index(work) else { return false };
        self.subjects[index].worker.as_mut().is_some_and(|worker| worker.program.ended().is_none())
    }

    /// Returns how often the dry run flagged a process, and how often it would have terminated the process.
    fn decisions(&self, pid: u32) -> [usize; 2] {
        let (target, lines) = (format!("process:{pid}@"), programs::audit(&self.setting, "dry-run.jsonl"));
        let about = |line: &&Value| line["target"]["id"].as_str().is_some_and(|id| id.starts_with(&target));
        let lines: Vec<&Value> = lines.iter().filter(about).collect();
        let count = |(step, result)| {
            lines.iter().filter(|line| line["step"] == step && line["result"] == result).count()
        };
        [("flag", "raised"), ("terminate", "dry_run")].map(count)
    }
}

fn decision_text([flags, ends]: [usize; 2]) -> String {
    format!("flagged {flags} times, would terminate {ends} times")
}

/// Returns all signals in an audit log: pid and signal name.
fn signals(lines: &[Value]) -> Vec<(u64, String)> {
    let sent = lines.iter().filter_map(|line| line["sent"].as_array()).flatten();
    sent.filter_map(|one| Some((one["pid"].as_u64()?, one["signal"].as_str()?.to_owned()))).collect()
}
