//! A load for benchmarks: GPUs of the fake driver, held by real processes.

use std::fmt::Write;

use crate::fake::Scenario;
use crate::holder::Holder;

/// GPUs with the same number of processes on each.
pub struct Load {
    holders: Vec<Holder>,
    gpus: usize,
    scenario: Scenario,
}

impl Load {
    /// Starts the processes. A quarter of them are busy.
    pub fn new(gpus: usize, each: usize) -> Self {
        let holders: Vec<Holder> = (0..gpus * each).map(|_| Holder::sleeping()).collect();
        let scenario = Scenario::new(&text(&holders, gpus, ""));
        Self { holders, gpus, scenario }
    }

    /// Returns the driver's scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Returns the size of the load, such as `8 x 4`.
    pub fn name(&self) -> String {
        format!("{} x {}", self.gpus, self.holders.len() / self.gpus)
    }

    /// Makes the driver hang from now on.
    pub fn hang(&self) {
        self.scenario.set(&text(&self.holders, self.gpus, "faults: {hang: true}\n"));
    }
}

fn text(holders: &[Holder], gpus: usize, head: &str) -> String {
    let mut text = format!("{head}gpus:\n");
    for gpu in holders.chunks(holders.len() / gpus) {
        text.push_str("  - processes:\n");
        for (at, holder) in gpu.iter().enumerate() {
            let busy = if at % 4 == 0 { ", sm: 3, memory: 1" } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "      - {{pid: {}, used: 512MiB{busy}}}", holder.pid());
        }
    }
    text
}
