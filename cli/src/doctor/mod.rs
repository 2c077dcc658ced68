//! `bailiff doctor`: checks this machine for problems and prints how to fix them.

mod check;
pub(crate) mod child;
pub(crate) mod driver;
mod enforcer;
mod exporter;
mod mps;
mod order;
mod pool;
mod programs;
mod rights;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_exposition::terminal::Colors;
pub(crate) use check::{Check, State};
use clap::Args;
use serde_json::json;

use crate::args::{Exporter, Machine, Pool};
use crate::exit::Failure;
use crate::output::{self, print_stdout};
use crate::screen;

/// Runs all checks and prints their results.
pub(crate) fn doctor(flags: &Doctor) -> Result<ExitCode, Failure> {
    report(&checks(flags), flags.json)
}

/// Prints the results of checks, and fails if one of them failed.
pub(crate) fn report(checks: &[Check], json: bool) -> Result<ExitCode, Failure> {
    let failed = checks.iter().filter(|check| check.state == State::Fail).count();
    let text = if json {
        output::json(&json!({"ok": failed == 0, "checks": checks}))?
    } else {
        text(checks, failed)
    };
    print_stdout(&text)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checks(flags: &Doctor) -> Vec<Check> {
    let report = driver::query(&flags.machine, flags.deadline);
    let sample = report.as_ref().ok().map(|report| &report.sample);
    let mut checks = driver::checks(flags, report.as_ref());
    checks.extend(rights::checks(&flags.machine.procfs));
    checks.extend(mps::checks(&flags.machine, sample));
    checks.push(order::check(flags, sample));
    checks.extend(exporter::checks(flags));
    checks.extend(enforcer::checks(flags));
    checks.push(enforcer::rules(flags));
    checks.extend(pool::checks(flags, sample));
    checks.push(programs::quota(flags));
    checks.push(programs::versions(flags));
    checks
}

fn text(checks: &[Check], failed: usize) -> String {
    let (colors, width) = (Colors::of_stdout(), screen::width());
    let mut lines: Vec<String> = checks.iter().flat_map(|check| check.lines(width, colors)).collect();
    let warnings = checks.iter().filter(|check| check.state == State::Warn).count();
    lines.push(String::new());
    lines.push(match (failed, warnings) {
        (0, 0) => "no problems found".to_owned(),
        (0, warnings) => format!("no check failed; warnings: {warnings}"),
        (failed, 0) => format!("{failed} failed"),
        (failed, warnings) => format!("{failed} failed; warnings: {warnings}"),
    });
    lines.join("\n") + "\n"
}

/// The flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Timeout of each check.
    #[arg(long, value_name = "TIME", value_parser = crate::args::span, default_value = "10s")]
    pub(crate) deadline: Duration,
    /// CUDA driver library.
    #[arg(long, value_name = "PATH", default_value = "libcuda.so.1")]
    pub(crate) cuda_library: PathBuf,
    /// Quota library; default: searched for next to this program and in /usr/lib.
    #[arg(long, env = "BAILIFF_QUOTA_LIBRARY", value_name = "PATH", hide_env_values = true)]
    pub(crate) quota_library: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    /// Control socket of bailiff-enforcer.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff/enforcer/control.sock")]
    pub(crate) control: PathBuf,
    /// Rules file of bailiff-enforcer.
    #[arg(long, value_name = "FILE", default_value = "/etc/bailiff/rules.yaml")]
    pub(crate) rules: PathBuf,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

const EXAMPLES: &str = "Examples:
  bailiff doctor                             check as the current user
  sudo bailiff doctor                        check with access to all processes
  bailiff doctor --json | jq '.checks[] | select(.state == \"fail\")'

Exit codes: 0: no check failed; 1: a check failed; 64: invalid flags.";
