//! The row `gpm`: the activity of engines that the exporter publishes with `--gpm`.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::programs::flag;
use crate::report::{Tried, outcome};
use crate::run::Run;
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
        self.let_run(works)?;
        let (setting, uuid) = (&self.setting, self.card.uuid.as_str());
        let mut command = Command::new(setting.programs.join("bailiff-exporter"));
        command.args(["--once", "--gpm", "--mps.control="]);
        command.arg(format!("--interval={}ms", setting.interval.min(INTERVAL).as_millis()));
        command.args(setting.nvml.as_ref().map(|path| flag("nvml-library", path)));
        let output = command.output().map_err(|error| error.to_string())?;
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
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

/// Returns a label's value in a line of the page.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn text(ratios: &BTreeMap<String, f64>) -> String {
    let percent = |(engine, ratio): (&String, &f64)| format!("{engine} {:.4} %", ratio * 100.0);
    ratios.iter().map(percent).collect::<Vec<_>>().join(", ")
}
