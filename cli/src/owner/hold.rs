//! `bailiff hold`: the owner of a process asks the enforcer to keep it for a time.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::UserSocket;
use crate::args::span;
use crate::exit::{Failure, succeed};
use crate::output::{self, escaped, joined, print_message};

/// The flags of `hold`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Hold {
    /// How long, such as 2h. A rule may permit less.
    #[arg(value_name = "DURATION", value_parser = span)]
    length: Duration,
    #[command(flatten)]
    which: Which,
    /// Reason, shown to the administrators.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: UserSocket,
}

/// What is held.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// A process, and the workload that it belongs to.
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// A Slurm job.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// All of your processes and jobs on this machine.
    #[arg(long)]
    mine: bool,
}

const EXAMPLES: &str = "Examples:
  bailiff hold 2h 4711 --reason \"results are not saved yet\"
  bailiff hold 2h --job 8231
  bailiff hold 1h --mine

During a hold, bailiff-enforcer does not terminate your process because it is idle, if the rule
permits holds. The administrator decides in the rules how long and how often. A hold does not
protect against administrators, and ends with the process.

Exit codes: 0: held; 1: no rule permits it, or you have no such process; 64: invalid flags;
69: the enforcer is not running.";

/// A hold that the enforcer granted or refused.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    rule: String,
    target: String,
    /// Seconds; `None` if it was refused.
    left: Option<f64>,
    reason: String,
}

/// The response of the enforcer.
#[derive(Deserialize)]
struct Answers {
    holds: Vec<Answer>,
    /// Whether granted holds are on disk; `None` if none was granted.
    saved: Option<bool>,
}

/// Requests the hold and prints what was granted.
pub(crate) fn hold(flags: &Hold) -> Result<ExitCode, Failure> {
    let which = match &flags.which {
        Which { pid: Some(pid), .. } => json!({"pid": pid}),
        Which { job: Some(job), .. } => json!({"job": job}),
        Which { .. } => json!("mine"),
    };
    let seconds = flags.length.as_secs();
    if seconds == 0 {
        return Err(Failure::usage("the duration must be at least 1s"));
    }
    let question = json!({"command": "hold", "for_seconds": seconds, "reason": flags.reason, "which": which});
    let Answers { holds: answers, saved } = flags.socket.ask(&question)?;
    if saved == Some(false) {
        print_message("warning: the hold is not saved yet, and is lost if the enforcer stops now");
    }
    let text = if flags.json { output::json(&answers)? } else { joined(answers.iter().map(line), "") };
    succeed(&text)?;
    let is_held = answers.iter().any(|answer| answer.left.is_some());
    Ok(if is_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(answer: &Answer) -> String {
    let (target, rule) = (escaped(&answer.target), escaped(&answer.rule));
    match answer.left.map(Duration::try_from_secs_f64) {
        Some(Ok(left)) => {
            format!("held for {} (rule {rule}): {target}\n", humantime::format_duration(left))
        }
        _ => format!("not held (rule {rule}): {target}: {}\n", escaped(&answer.reason)),
    }
}
