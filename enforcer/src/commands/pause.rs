//! `pause`, `resume` and `reload`: commands that change a running daemon.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_exposition::human::Span;
use bailiff_exposition::terminal::{Colors, line};
use bailiff_lifecycle::exit::{Exit, Stop};
use serde_json::Value;

use super::{query, refusal, say};
use crate::control::Question;
use crate::flags;
use crate::settings::duration;
use crate::status::NOT_LOADED;

/// Pauses the daemon and prints the duration.
///
/// # Errors
/// If the flags are invalid, no daemon responds, or the daemon refuses.
pub fn pause(flags: &flags::Pause, out: &mut dyn Write) -> Result<(), Stop> {
    let time = flags.time.as_deref().map(|text| duration("--for", text)).transpose().map_err(Stop::Usage)?;
    // Rounded up to whole seconds.
    let seconds = time.map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
    if seconds == Some(0) {
        let text = flags.time.as_deref().unwrap_or_default();
        return Err(Stop::Usage(format!("--for={text} must be above 0; to end a pause, use resume")));
    }
    let question = Question::Pause { for_seconds: seconds, reason: flags.reason.clone() };
    let answer = query(&flags.control.control, &question)?;
    let outcome_of = seconds.map_or_else(
        || "until bailiff-enforcer resume".to_owned(),
        |seconds| format!("for {}", Span(Duration::from_secs(seconds))),
    );
    print(
        out,
        &format!("paused {outcome_of}: destructive steps are withheld; flags and notifications continue"),
    )?;
    if answer["saved"] != true {
        print(out, "the pause is not on disk yet; until it is, it does not survive a restart of the daemon")?;
    }
    Ok(())
}

/// Ends a pause.
///
/// # Errors
/// If no daemon responds, or the daemon refuses.
pub fn resume(control: &Path, out: &mut dyn Write) -> Result<()> {
    query(control, &Question::Resume)?;
    print(out, "resumed: the pause has ended, and all breakers are closed")
}

/// Reloads the rules; a file that was not loaded returns [`Exit::Usage`].
///
/// # Errors
/// If no daemon responds, or the user may not reload.
pub fn reload(control: &Path, colors: Colors, out: &mut dyn Write) -> Result<Exit> {
    let answer = say(control, &Question::Reload)?;
    let (exit, text) = outcome(&answer, colors).map_err(|why| anyhow::anyhow!(why))?;
    print(out, &text)?;
    Ok(exit)
}

fn outcome(answer: &Value, colors: Colors) -> Result<(Exit, String), String> {
    if answer["ok"] == true {
        let name = answer["sha256"].as_str().map_or_else(String::new, |name| format!(": {}", line(name)));
        let result = answer["result"].as_str().map_or_else(|| "done".to_owned(), line);
        return Ok((Exit::Done, format!("{result}{name}")));
    }
    let faults: Vec<String> =
        answer["faults"].as_array().into_iter().flatten().filter_map(Value::as_str).map(line).collect();
    if faults.is_empty() {
        return Err(refusal(answer));
    }
    Ok((Exit::Usage, format!("{}\n{}", colors.bad(NOT_LOADED), faults.join("\n"))))
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    writeln!(out, "{text}").context("cannot print")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reload_outcome_is_printed() {
        let outcome_of = |answer: Value| outcome(&answer, Colors::Plain);
        let applied = outcome_of(json!({"ok": true, "result": "applied", "sha256": "ab"}));
        assert_eq!(applied, Ok((Exit::Done, "applied: ab".into())));
        assert_eq!(
            outcome_of(json!({"ok": true, "result": "unchanged"})),
            Ok((Exit::Done, "unchanged".into()))
        );
        let refused =
            outcome_of(json!({"ok": false, "error": "refused", "faults": ["3:9: \u{1b}[2Jone", "4:1: two"]}));
        let (exit, text) = refused.expect("it went as it went");
        assert_eq!(exit, Exit::Usage);
        assert!(text.ends_with("stay in force\n3:9: \u{fffd}[2Jone\n4:1: two"), "{text}");
        assert_eq!(outcome_of(json!({"ok": false, "error": "root only"})), Err("root only".into()));
        assert_eq!(outcome_of(json!({})), Err("refused without a reason".into()));
    }
}
