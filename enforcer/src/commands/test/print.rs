//! Prints test results in the style of promtool.

use std::io::{self, Write};

use super::{RuleTestReport, TestReport};
use crate::commands::layout::{Layout, count, foreign};

/// Maximum number of listed steps per test.
const SHOWN_STEPS: usize = 40;

/// Writes a report.
pub(super) fn print(report: &RuleTestReport, out: &mut dyn Write) -> io::Result<()> {
    let mut layout = Layout::default();
    layout.say(0, &format!("Testing rules with {}", report.file));
    let failed = report.tests.iter().filter(|test| !test.failures.is_empty());
    for test in failed.clone() {
        layout.gap();
        failure(test, &mut layout);
    }
    let failed = failed.count();
    let all = count(report.tests.len() as u64, ("test", "tests"));
    if failed == 0 {
        layout.say(2, &format!("SUCCESS: {all}"));
    } else {
        layout.gap();
        layout.say(2, &format!("FAILED: {failed} of {all}"));
    }
    out.write_all(layout.text().as_bytes())
}

fn failure(test: &TestReport, layout: &mut Layout) {
    layout.say(
        2,
        &format!("FAILED: {}", test.name.split_whitespace().map(foreign).collect::<Vec<_>>().join(" ")),
    );
    for mismatch in &test.failures {
        layout.say(4, &format!("expected: {}", mismatch.expected));
        layout.say(4, &format!("     got: {}", mismatch.got));
    }
    if test.steps.is_empty() {
        return layout.say(4, "no steps were taken");
    }
    layout.say(4, "steps taken:");
    for step in test.steps.iter().take(SHOWN_STEPS) {
        layout.say(6, &format!("{}: {step}, streak {}", step.when(), step.streak));
    }
    if let Some(more) = test.steps.len().checked_sub(SHOWN_STEPS).filter(|more| *more > 0) {
        layout.say(6, &format!("and {more} more; --json shows all"));
    }
}
