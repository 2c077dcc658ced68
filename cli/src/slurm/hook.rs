//! `bailiff slurm prolog` and `epilog`.

#![expect(clippy::disallowed_methods, reason = "waits between two checks")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_proc::Proc;
use bailiff_proc::clock::{Deadline, since_boot};
use bailiff_snapshot::millis;
use bailiff_snapshot::slurm::{AllocatedGpu, JobRecord};
use serde::Serialize;

use super::config::{Config, Epilog, OnResult, Prolog};
use super::flags::{Common, Hook};
use super::gpus::{Inspector, Scope};
use super::inspection::{Inspection, Verdict};
use super::job::{Job, by_slurmd, gpu_map, node_name};
use super::leftovers::{Leftover, Leftovers};
use super::state;
use crate::exit::Failure;
use crate::output::{json, print_message, print_stdout};

/// Time between two checks of the GPUs.
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit of `slurmd -G`.
const SLURMD: Duration = Duration::from_secs(5);

/// The report of a hook.
#[derive(Debug, Serialize)]
struct Report<'a> {
    hook: &'static str,
    job: &'a str,
    verdict: Verdict,
    #[serde(flatten)]
    inspection: &'a Inspection,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leftovers: Vec<Leftover>,
    exit: u8,
}

/// Settings of a hook.
struct Policy {
    wait: Duration,
    on_not_clean: OnResult,
    on_unknown: OnResult,
    /// Time between SIGTERM and SIGKILL for the job's processes; `None` to end none.
    grace: Option<Duration>,
}

/// Runs the prolog of a job.
pub(super) fn prolog(flags: &Hook) -> Result<ExitCode, Failure> {
    let policy = |config: &Config| {
        let Prolog { wait, on_not_clean, on_unknown } = config.prolog;
        Policy { wait, on_not_clean, on_unknown, grace: None }
    };
    Run::of("prolog", &flags.common)?.run(flags, policy)
}

/// Runs the epilog of a job.
pub(super) fn epilog(flags: &Hook) -> Result<ExitCode, Failure> {
    let policy = |config: &Config| {
        let Epilog { wait, end_leftovers, grace, on_not_clean, on_unknown } = config.epilog;
        Policy { wait, on_not_clean, on_unknown, grace: end_leftovers.then_some(grace) }
    };
    Run::of("epilog", &flags.common)?.run(flags, policy)
}

/// One run of a hook.
struct Run<'a> {
    hook: &'static str,
    job: Job,
    node: String,
    common: &'a Common,
    started: Duration,
}

impl<'a> Run<'a> {
    fn of(hook: &'static str, common: &'a Common) -> Result<Self, Failure> {
        let started = since_boot();
        Ok(Self { hook, job: Job::from_environment()?, node: node_name()?, common, started })
    }

    fn run(&self, flags: &Hook, policy: fn(&Config) -> Policy) -> Result<ExitCode, Failure> {
        self.note(state::prepare(&self.common.state_dir));
        let records = state::records(&self.common.state_dir);
        let own =
            records.ok().and_then(|records| records.into_iter().find(|record| record.job == self.job.id));
        // A run by hand does not, because the job may still run.
        if self.hook == "epilog" && by_slurmd() {
            self.note(state::forget(&self.common.state_dir, &self.job.id));
        }
        let config = match Config::read(&self.common.config) {
            Ok(config) => config,
            // A typing error must not drain the whole cluster.
            Err(why) => {
                self.note(self.save(None, &Inspection::default()));
                return self.finish(Verdict::InvalidConfig, (&Inspection::unknown(why), Vec::new()), 0);
            }
        };
        let mut policy = policy(&config);
        policy.wait = flags.wait.unwrap_or(policy.wait);
        policy.on_unknown = flags.on_unknown.unwrap_or(policy.on_unknown);
        if self.job.gpus.as_ref().is_some_and(Vec::is_empty) {
            self.note(self.save(Some(BTreeMap::new()), &Inspection::default()));
            return self.finish(Verdict::NoGpus, (&Inspection::default(), Vec::new()), 0);
        }
        let gpus = self.gpus(&config);
        let started = own.map(|record| Duration::from_millis(record.boot_ms));
        let waited = gpus.clone().and_then(|gpus| self.wait((gpus, started), &config, &policy));
        let (inspection, leftovers) = waited.unwrap_or_else(|why| (Inspection::unknown(why), Vec::new()));
        let verdict = inspection.verdict();
        let code = match verdict {
            Verdict::NotClean if policy.on_not_clean == OnResult::Fail => 1,
            Verdict::Unknown if policy.on_unknown == OnResult::Fail => 2,
            _ => 0,
        };
        if code == 0 {
            self.note(self.save(gpus.ok(), &inspection));
        }
        self.finish(verdict, (&inspection, leftovers), code)
    }

    /// Prints an error of the state directory. It must not make the hook fail, because Slurm would drain the node.
    fn note(&self, done: io::Result<()>) {
        if let Err(error) = done {
            print_message(format_args!("{}: {error}", self.common.state_dir.display()));
        }
    }

    /// Returns the minor number of each of the job's GPUs, by its position.
    fn gpus(&self, config: &Config) -> Result<BTreeMap<usize, u32>, String> {
        let map = map(self.common, config, &self.node, SLURMD)?;
        if by_slurmd() {
            self.note(state::save_managed(&self.common.state_dir, &map));
        }
        let positions = self.job.gpus.as_ref().ok_or("SLURM_JOB_GPUS is not a list of numbers")?;
        let minor = |position: &usize| map.get(*position).map(|minor| (*position, *minor));
        let gpus: Option<BTreeMap<usize, u32>> = positions.iter().map(minor).collect();
        gpus.ok_or_else(|| {
            format!("SLURM_JOB_GPUS names more GPUs than Slurm's list, which has {}", map.len())
        })
    }

    /// Checks the GPUs until they are clean or the time limit is reached, and ends leftovers of the job. A GPU that was not
    /// clean and then cannot be read is not clean; a process that cannot be read counts as before.
    fn wait(
        &self,
        (gpus, started): (BTreeMap<usize, u32>, Option<Duration>),
        config: &Config,
        policy: &Policy,
    ) -> Result<(Inspection, Vec<Leftover>), String> {
        let deadline = Deadline::after(policy.wait.saturating_sub(since_boot().saturating_sub(self.started)));
        let failed = |error: io::Error| error.to_string();
        let scope = self.scope(gpus).map_err(failed)?;
        let mut inspector =
            Inspector::start(&self.common.machine, config, deadline.left()).map_err(failed)?;
        let mut leftovers =
            policy.grace.map(|grace| Leftovers::new((&self.job, &self.node), started, grace, deadline));
        let mut last = inspector.inspect(&scope);
        // slurmd may kill the hook while it waits.
        self.print_findings(&last).map_err(failed)?;
        while last.may_change() && !deadline.passed() {
            if let Some(leftovers) = &mut leftovers {
                leftovers.end(&last.findings);
            }
            std::thread::sleep(PAUSE.min(deadline.left()));
            let mut now = inspector.inspect(&scope);
            // A process that cannot be read twice will hardly be readable soon.
            let pids = &now.unread.pids;
            now.lasting += usize::from(!pids.is_empty() && pids.is_subset(&last.unread.pids));
            now.keep(last.findings);
            last = now;
        }
        Ok((last, leftovers.map(Leftovers::results).unwrap_or_default()))
    }

    /// Returns the job's GPUs. A GPU is shared if another running job has it, too.
    fn scope(&self, gpus: BTreeMap<usize, u32>) -> io::Result<Scope> {
        let others =
            state::running(&self.common.state_dir)?.into_iter().filter(|record| record.job != self.job.id);
        let elsewhere: BTreeSet<u32> =
            others.filter_map(|record| record.gpus).flatten().map(|gpu| gpu.minor).collect();
        let shared = gpus.iter().filter(|(_, minor)| elsewhere.contains(minor));
        let shared = shared.map(|(position, _)| *position).collect();
        Ok(Scope { gpus, shared, job: Some(self.job.clone()) })
    }

    fn print_findings(&self, inspection: &Inspection) -> io::Result<()> {
        if self.common.json {
            return Ok(());
        }
        let lines = inspection.findings.iter().map(|finding| self.line(&finding.to_string()));
        print_stdout(&lines.collect::<String>()).map(drop)
    }

    fn line(&self, text: &str) -> String {
        format!("bailiff {}: job {}: {text}\n", self.hook, self.job.id)
    }

    /// Counts the result, prints it, and returns the exit code.
    fn finish(
        &self,
        verdict: Verdict,
        (inspection, leftovers): (&Inspection, Vec<Leftover>),
        code: u8,
    ) -> Result<ExitCode, Failure> {
        self.note(state::count(&self.common.state_dir, self.hook, verdict.name()));
        let text = if self.common.json {
            let job = self.job.id.as_ref();
            let report = Report { hook: self.hook, job, verdict, inspection, leftovers, exit: code };
            json(&report)?
        } else {
            let leftovers = leftovers.iter().map(|leftover| match &leftover.why {
                None => format!("ended pid {}", leftover.pid),
                Some(why) => format!("did not end pid {}: {why}", leftover.pid),
            });
            leftovers.chain(inspection.lines()).map(|text| self.line(&text)).collect()
        };
        print_stdout(&text)?;
        Ok(code.into())
    }

    /// Saves the job's GPUs for the exporter and the epilog, in the prolog of a job. Nothing deletes the record of a run by
    /// hand, in which the node has no name from slurmd.
    fn save(&self, gpus: Option<BTreeMap<usize, u32>>, inspection: &Inspection) -> io::Result<()> {
        if self.hook != "prolog" || !by_slurmd() {
            return Ok(());
        }
        let Some(boot_id) = Proc::own().ok().and_then(|proc| proc.boot_id()) else { return Ok(()) };
        let allocated =
            |(position, minor)| AllocatedGpu { position, minor, uuid: inspection.uuids.get(&minor).cloned() };
        let record = JobRecord {
            boot_id,
            job: self.job.id.clone(),
            sluid: self.job.sluid.clone(),
            uid: self.job.uid,
            user: self.job.user.clone(),
            account: self.job.account.clone(),
            node: self.node.clone(),
            gpus: gpus.map(|gpus| gpus.into_iter().map(allocated).collect()),
            boot_ms: millis(self.started),
        };
        state::write(&state::record_path(&self.common.state_dir, &self.job.id), &record)
    }
}

/// Returns the minor numbers of this node's GPUs in Slurm's order: from the flag, the settings file, or slurmd.
pub(super) fn map(
    common: &Common,
    config: &Config,
    node: &str,
    deadline: Duration,
) -> Result<Vec<u32>, String> {
    match (&common.gpus, &config.gpus) {
        (Some(files), _) => bailiff_snapshot::slurm::minors_of_files(files).ok_or_else(|| {
            "--gpus: write device files in the order of gres.conf, such as /dev/nvidia[0-3]".to_owned()
        }),
        (None, Some(minors)) => Ok(minors.clone()),
        (None, None) => gpu_map(&common.state_dir, node, deadline),
    }
}
