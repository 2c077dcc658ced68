//! The rows `gpm`, `mig-activity` and `accounting`: the activity of engines that the exporter publishes with `--gpm`, and
//! the sums of the driver's accounting.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::programs::flag;
use crate::report::{Tried, outcome};
use crate::run::{Run, pause};
use crate::worker::Work;

/// Interval of the exporter, at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of further intervals until an idle GPU must be idle.
const TRIES: u32 = 4;

impl Run {
    pub(crate) fn gpm(&mut self) -> Tried {
        let of = |ratios: &BTreeMap<String, f64>, engine: &str| ratios.get(engine).copied();
        let mut idle = self.activity(&["idle"])?;
        // The first interval may contain the end of the work before.
        for _ in 0..TRIES {
            if of(&idle, "graphics").is_none_or(|ratio| ratio <= 0.01) {
                break;
            }
            idle = self.activity(&["idle"])?;
        }
        let busy = self.activity(&["idle", "busy"])?;
        let below = |engine, limit: f64| of(&idle, engine).is_some_and(|ratio| ratio <= limit);
        let claims = [
            (below("graphics", 0.01), "an idle GPU has graphics activity above 1 %"),
            (below("dram", 0.001), "an idle GPU has DRAM activity above 0.1 %"),
            (
                of(&busy, "graphics").is_some_and(|ratio| ratio > 0.5),
                "a busy GPU has no graphics activity above 50 %",
            ),
        ];
        let published = format!("idle: {}; busy: {}", text(&idle), text(&busy));
        outcome(
            ["a process had a context; then another launched one kernel after the other", "", &published],
            &claims,
        )
    }

    /// Returns the activity by engine that an exporter of its own publishes while these workers run.
    fn activity(&mut self, works: &'static [Work]) -> Result<BTreeMap<String, f64>, String> {
        let page = self.page(works, &[])?;
        let uuid = self.card.uuid.as_str();
        let of_gpu = |line: &&str| line.contains(uuid);
        let lines = |family: &'static str| page.lines().filter(move |line| line.starts_with(family));
        if let Some(line) = lines("bailiff_gpu_activity_unknown_info{").find(of_gpu) {
            return Err(format!("the activity is unknown: {}", label(line, "reason").unwrap_or(line)));
        }
        let ratio =
            |line: &str| Some((label(line, "engine")?.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
        Ok(lines("bailiff_gpu_activity_ratio{").filter(of_gpu).filter_map(ratio).collect())
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
        let setting = &self.setting;
        let mut command = Command::new(setting.programs.join("bailiff-exporter"));
        command.args(["--once", "--gpm", "--mps.control="]).args(flags);
        command.arg(format!("--interval={}ms", setting.interval.min(INTERVAL).as_millis()));
        command.args(setting.nvml.as_ref().map(|path| flag("nvml-library", path)));
        let output = command.output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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

/// Returns a label's value in a line of the page.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn text(ratios: &BTreeMap<String, f64>) -> String {
    let percent = |(engine, ratio): (&String, &f64)| format!("{engine} {:.4} %", ratio * 100.0);
    ratios.iter().map(percent).collect::<Vec<_>>().join(", ")
}
