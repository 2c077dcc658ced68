//! `bailiff doctor`: checks this machine for problems and prints how to fix them.

mod check;
pub(crate) mod child;
pub(crate) mod driver;
mod enforcer;
mod exporter;
pub(crate) mod flags;
mod mps;
mod order;
mod pool;
mod programs;
mod rights;

use std::process::ExitCode;

use bailiff_exposition::terminal::Colors;
use serde_json::json;

use crate::exit::Failure;
use crate::output::print_stdout;
use crate::screen;
use check::{Check, State};
use flags::Doctor;

/// Runs all checks and prints their results.
pub(crate) fn doctor(flags: &Doctor) -> Result<ExitCode, Failure> {
    let checks = checks(flags);
    let failed = checks.iter().filter(|check| check.state == State::Fail).count();
    let text = if flags.json {
        format!("{}\n", json!({"ok": failed == 0, "checks": checks}))
    } else {
        text(&checks, failed)
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
