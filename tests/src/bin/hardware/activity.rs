//! The rows `gpm` to `gpm-user`, `mig-activity` and `accounting`: the activity of engines that the exporter publishes with
//! `--gpm`, and the sums of the driver's accounting.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::programs::{self, flag};
use crate::report::{Tried, outcome};
use crate::run::{Run, pause};
use crate::worker::Work;

/// Interval of the exporter, at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum DRAM activity of a calm MIG instance (`docs/decisions/0021-gpm-and-idle-processes.md`).
const CALM_DRAM: f64 = 0.0001;
/// Number of further intervals until an idle GPU must be idle.
const TRIES: u32 = 4;

/// Activity by engine, from 0 to 1.
type Ratios = BTreeMap<String, f64>;

impl Run {
    pub(crate) fn gpm(&mut self) -> Tried {
        let mut idle = self.activity(&["idle"])?;
        // The first interval may contain the end of the work before.
        for _ in 0..TRIES {
            if !above(&idle, "graphics", 0.01) {
                break;
            }
            idle = self.activity(&["idle"])?;
        }
        let busy = self.activity(&["idle", "busy"])?;
        let below = |engine, limit| idle.get(engine).is_some_and(|ratio| *ratio <= limit);
        let claims = [
            (below("graphics", 0.01), "an idle GPU has graphics activity above 1 %"),
            (below("dram", 0.001), "an idle GPU has DRAM activity above 0.1 %"),
            (above(&busy, "graphics", 0.5), "a busy GPU has no graphics activity above 50 %"),
        ];
        let published = format!("idle: {}; busy: {}", text(&idle), text(&busy));
        outcome(
            ["a process had a context; then another launched one kernel after the other", "", &published],
            &claims,
        )
    }

    pub(crate) fn gpm_shared(&mut self) -> Tried {
        let ratios = self.activity(&["idle", "busy", "streams"])?;
        let claims = [(above(&ratios, "graphics", 0.5), "it has no graphics activity above 50 %")];
        outcome(["two processes computed at once", "", &text(&ratios)], &claims)
    }

    pub(crate) fn gpm_copies(&mut self) -> Tried {
        let from_host = self.activity(&["idle", "host-copies"])?;
        let on_gpu = self.activity(&["idle", "copies"])?;
        let claims = [
            (above(&from_host, "dram", CALM_DRAM), "copies from the host have no DRAM activity above 0.01 %"),
            (above(&on_gpu, "dram", CALM_DRAM), "copies on the GPU have no DRAM activity above 0.01 %"),
        ];
        let published = format!("from the host: {}; on the GPU: {}", text(&from_host), text(&on_gpu));
        outcome(["a process copied from the host; then another on the GPU", "", &published], &claims)
    }

    pub(crate) fn gpm_video(&mut self) -> Tried {
        self.let_run(&["idle"])?;
        let _decoder = programs::decoder(&self.setting)?;
        pause(self.setting.interval);
        let (ratios, unknown) = self.activity_on(&page(self.exporter_once(&[]))?);
        let published = unknown.unwrap_or_else(|| text(&ratios));
        let claims = [(above(&ratios, "nvdec", 0.01), "it has no activity of the video decoder above 1 %")];
        outcome(["ffmpeg decoded a video again and again", "", &published], &claims)
    }

    pub(crate) fn gpm_user(&mut self) -> Tried {
        let works = &["idle", "busy"];
        // Where this user cannot read it either, the row says nothing about other users.
        self.activity(works)?;
        let mut command = self.exporter_once(&[]);
        let user =
            if programs::run_as_other_user(&mut command) { "another user" } else { "this user, not root" };
        let page = page(command).map_err(|why| format!("an exporter as {user}: {why}"))?;
        let (ratios, unknown) = self.activity_on(&page);
        let published = unknown.unwrap_or_else(|| text(&ratios));
        let claims = [(above(&ratios, "graphics", 0.5), "it has no graphics activity above 50 %")];
        outcome([&format!("a process computed; the exporter ran as {user}"), "", &published], &claims)
    }

    /// Returns the activity by engine that an exporter of its own publishes while these workers run.
    fn activity(&mut self, works: &'static [Work]) -> Result<Ratios, String> {
        let page = self.page(works, &[])?;
        let (ratios, unknown) = self.activity_on(&page);
        unknown.map_or(Ok(ratios), Err)
    }

    /// Returns the activity of the GPU by engine on a page, or why it is unknown.
    fn activity_on(&self, page: &str) -> (Ratios, Option<String>) {
        let of_gpu = |line: &&str| line.contains(self.card.uuid.as_str());
        let lines = |family: &'static str| page.lines().filter(move |line| line.starts_with(family));
        let unknown = lines("bailiff_gpu_activity_unknown_info{").find(of_gpu);
        let reason = |line| format!("the activity is unknown: {}", label(line, "reason").unwrap_or(line));
        let ratio =
            |line: &str| Some((label(line, "engine")?.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
        let ratios = lines("bailiff_gpu_activity_ratio{").filter(of_gpu).filter_map(ratio).collect();
        (ratios, unknown.map(reason))
    }
}

impl Run {
    pub(crate) fn mig_activity(&mut self) -> Tried {
        if !self.card.mig {
            return Err("MIG is off, and no setting of the GPU is changed".to_owned());
        }
        let idle = self.utilization(&["idle"], "idle")?;
        let busy = self.utilization(&["busy"], "busy")?;
        let shared = self.utilization(&["busy", "streams"], "busy")?;
        let ratio = |text: &str| text.parse::<f64>().ok();
        let claims = [
            (ratio(&idle) == Some(0.0), "the process of an idle instance is not published as 0"),
            (ratio(&busy).is_some_and(|ratio| ratio > 0.5), "its only process is not published as busy"),
            (shared == "shared_instance", "two processes are published with a utilization"),
        ];
        let published = format!("idle: {idle}; busy: {busy}; one of two: {shared}");
        let done = "a process had a context; then one computed; then two";
        self.published([done, "", &published], &claims)
    }

    /// Returns the SM utilization of a process that an exporter of its own publishes while these workers run, or why it is
    /// unknown.
    fn utilization(&mut self, works: &'static [Work], of: Work) -> Result<String, String> {
        let page = self.page(works, &["--mig-idle"])?;
        let pid = format!("pid=\"{}\"", self.subject(of)?.pid);
        let mut lines = page.lines().filter(|line| line.contains(&pid));
        let text = lines.find_map(|line| {
            let is_ratio = line.starts_with("bailiff_process_gpu_utilization_ratio{");
            match line.starts_with("bailiff_process_gpu_utilization_unknown_info{") {
                true => label(line, "reason"),
                false if is_ratio && line.contains("engine=\"sm\"") => line.rsplit(' ').next(),
                false => None,
            }
        });
        text.map(str::to_owned).ok_or_else(|| format!("nothing was published of {of}"))
    }

    /// Returns the page that an exporter of its own publishes with `--gpm` and these flags while these workers run.
    fn page(&mut self, works: &'static [Work], flags: &[&str]) -> Result<String, String> {
        self.let_run(works)?;
        page(self.exporter_once(flags))
    }

    /// Returns the command of an exporter that publishes one page, with `--gpm` and these flags.
    fn exporter_once(&self, flags: &[&str]) -> Command {
        let setting = &self.setting;
        let mut command = Command::new(setting.programs.join("bailiff-exporter"));
        command.args(["--once", "--gpm", "--mps.control="]).args(flags);
        command.arg(format!("--interval={}ms", setting.interval.min(INTERVAL).as_millis()));
        command.args(setting.nvml.as_ref().map(|path| flag("nvml-library", path)));
        command
    }

    pub(crate) fn accounting(&mut self) -> Tried {
        self.without_mig()?;
        self.let_run(&["idle", "busy"])?;
        let pids = [self.subject("idle")?.listed, self.subject("busy")?.listed];
        let sums = |run: &Self| {
            let of = |pid| run.driver.accounted(&run.card.uuid, pid);
            Ok::<_, String>([of(pids[0])?, of(pids[1])?])
        };
        let before = sums(self)?;
        pause(self.setting.observe);
        let after = sums(self)?;
        let growth =
            |process: usize, field: usize| after[process][field].saturating_sub(before[process][field]);
        let claims = [
            (growth(0, 0) > 0 && growth(1, 0) > 0, "there were no samples"),
            (growth(0, 1) == 0 && growth(0, 2) == 0, "work of an idle process was counted"),
            (growth(1, 1) > 0, "work of a busy process was not counted"),
        ];
        let text =
            format!("samples and sums of the idle process {:?}, of the busy one {:?}", after[0], after[1]);
        outcome(["a process had a context; another computed", &text, ""], &claims)
    }
}

/// Returns the page that this command of an exporter prints.
fn page(mut command: Command) -> Result<String, String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, errors.lines().last().unwrap_or_default()))
}

fn above(ratios: &Ratios, engine: &str, limit: f64) -> bool {
    ratios.get(engine).is_some_and(|ratio| *ratio > limit)
}

/// Returns a label's value in a line of the page.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn text(ratios: &Ratios) -> String {
    let percent = |(engine, ratio): (&String, &f64)| format!("{engine} {:.4} %", ratio * 100.0);
    ratios.iter().map(percent).collect::<Vec<_>>().join(", ")
}
