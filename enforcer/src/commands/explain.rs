//! `explain`: why a rule acts on a target or does not, gate by gate.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_exposition::terminal::{Colors, line, printable_json};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::layout::length;
use super::query;
use crate::control::Question;
use crate::flags;
use crate::status::held_by_owner;
use bailiff_engine::engine::{Explained, GateReport};
use bailiff_snapshot::Truth;

/// Queries the daemon and prints the explanation.
///
/// # Errors
/// If the daemon does not respond.
pub fn run(flags: &flags::Explain, colors: Colors, out: &mut dyn Write) -> Result<()> {
    let question = Question::Explain { pid: flags.pid, rule: flags.rule.clone() };
    let answer = query(&flags.control.control, &question)?;
    if flags.json {
        writeln!(out, "{}", printable_json(&answer["explanation"].to_string()))?;
        return Ok(());
    }
    let explained: Vec<Explained> = serde_json::from_value(answer["explanation"].clone())
        .context("cannot parse the daemon's response; check that the daemon has the same version")?;
    if explained.is_empty() {
        writeln!(out, "{}", nothing(flags.pid))?;
    }
    for one in &explained {
        write!(out, "{}", text(one, colors))?;
    }
    Ok(())
}

/// Returns why there is no explanation.
fn nothing(pid: Option<u32>) -> String {
    let Some(pid) = pid else {
        return "the last snapshot contains no target of any rule".to_owned();
    };
    let there = i32::try_from(pid).ok().and_then(Pid::from_raw).map(test_kill_process);
    match there {
        None | Some(Err(Errno::SRCH)) => format!("there is no process {pid}"),
        Some(_) => format!(
            "process {pid} is not part of any target: in the last snapshot, neither it nor its workload held \
             GPU memory, or no rule applies to it"
        ),
    }
}

/// Formats the explanation of one rule for one target.
pub fn text(explained: &Explained, colors: Colors) -> String {
    let pending = &explained.pending;
    let owner = pending.user.as_deref().map(|user| format!(" of {}", line(user))).unwrap_or_default();
    let comm = pending.comm.as_deref().map(|comm| format!(" ({})", line(comm))).unwrap_or_default();
    let (rule, target) = (line(&pending.rule), line(&pending.target.0));
    let title = format!("{rule} {}: {target}{comm}{owner}", pending.mode.name());
    let mut text = format!("{}\n", colors.title(&title));
    for gate in &explained.gates {
        text.push_str(&gate_text(gate, colors));
    }
    let (unknown, max_gap) = explained.unknown;
    let _ = writeln!(
        text,
        "  now {}; streak {}/{}, consecutive unknown samples {unknown} of at most {max_gap}",
        explained.outcome.name(),
        pending.streak,
        pending.needed,
    );
    text.push_str(&next(explained));
    if let Some(last) = &explained.last {
        let ago = Duration::try_from_secs_f64(last.seconds_ago).map(length).unwrap_or_default();
        let why = if last.detail.is_empty() { String::new() } else { format!(": {}", line(&last.detail)) };
        let _ =
            writeln!(text, "  last action, {ago} ago: {}: {}{why}", line(&last.step), last.outcome.name());
    }
    if let Some(hold) = &explained.owner_hold {
        let _ = writeln!(text, "  {}", line(&held_by_owner(hold)));
    }
    for hold in &explained.holds {
        let _ = writeln!(text, "  held: {} ({})", hold.name(), hold.meaning());
    }
    text.push('\n');
    text
}

/// Describes the next step, or why there is none.
fn next(explained: &Explained) -> String {
    let pending = &explained.pending;
    let picked = explained.pick.as_ref().map(|pick| format!("  {}\n", line(pick))).unwrap_or_default();
    let left = pending.samples_left;
    let time = pending.due_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(length);
    let time = time.unwrap_or_else(|| "unknown".to_owned());
    let next = match (&pending.next, pending.streak, pending.hold) {
        (None, ..) => match exempt(explained) {
            Some(why) => format!("  {why}; no steps follow\n"),
            None if explained.pick.is_some() => String::new(),
            None => "  all steps are completed\n".to_owned(),
        },
        (Some(step), _, Some(hold)) => format!("  next: {step}, withheld: {}\n", hold.meaning()),
        (Some(step), 0, None) => format!("  next: {step}, {left} true samples from now ({time})\n"),
        (Some(step), _, None) => format!("  next: {step}, after {left} more true samples ({time})\n"),
    };
    picked + &next
}

/// Returns why the target is exempt from the rule.
fn exempt(explained: &Explained) -> Option<String> {
    let gate = explained.gates.last()?;
    let why = gate.why.as_deref().map(|why| format!(": {}", line(why))).unwrap_or_default();
    let what = match (gate.gate.as_str(), gate.passes) {
        ("protection" | "except", Truth::False) => "exempt",
        ("protection" | "except", Truth::Unknown) => "unknown whether it is exempt",
        ("select", Truth::False) => "not selected",
        ("select", Truth::Unknown) => "unknown whether it is selected",
        _ => return None,
    };
    Some(format!("{what}{why}"))
}

fn gate_text(gate: &GateReport, colors: Colors) -> String {
    let passes = match gate.passes {
        Truth::True => "passes".to_owned(),
        Truth::False => colors.bad("does not pass"),
        Truth::Unknown => colors.bad("unknown, so the target is skipped"),
    };
    let name = &gate.gate;
    let verdict = match (name.as_str(), gate.passes) {
        ("when" | "from", truth) => truth.name().to_owned(),
        _ => passes,
    };
    let why = gate.why.as_deref().map(|why| format!(" ({})", line(why))).unwrap_or_default();
    let mut text = format!("  {name}: {verdict}{why}\n");
    for leaf in &gate.leaves {
        let _ = writeln!(
            text,
            "    {:<7} {} is {}; required {} [{}]",
            leaf.outcome.name(),
            leaf.name,
            line(&leaf.value),
            line(&leaf.comparison),
            leaf.source,
        );
    }
    text
}
