//! The commands besides `run`: clients of the daemon, and evaluation of recorded data.

pub mod backtest;
pub mod check;
pub mod explain;
mod failure;
mod files;
mod layout;
mod past_flags;
pub mod pause;
mod playback;
pub mod replay;
pub mod simulation;
pub mod status;
mod table;
pub mod test;

use std::path::Path;

use anyhow::{Context, Result, bail};
use bailiff_exposition::terminal::line;
use bailiff_lifecycle::control;
use serde_json::Value;

use crate::control::Question;
pub use failure::Failure;
pub use past_flags::report;
pub use table::columns;

/// Sends a request to the daemon.
///
/// # Errors
/// If no daemon answers, or the response is an error.
pub fn query(control: &Path, question: &Question) -> Result<Value> {
    let answer = say(control, question)?;
    if answer["ok"] == true {
        return Ok(answer);
    }
    bail!("{}", refusal(&answer))
}

fn say(control: &Path, question: &Question) -> Result<Value> {
    let question = serde_json::to_value(question).context("cannot serialize the request")?;
    control::query(control, &question)
}

fn refusal(answer: &Value) -> String {
    answer["error"].as_str().map_or_else(|| "refused without a reason".to_owned(), line)
}
