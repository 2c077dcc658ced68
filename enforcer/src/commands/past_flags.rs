//! Flags and exit codes of the commands that evaluate recorded data.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use bailiff_lifecycle::exit::{Exit, Stop};

use super::simulation::Admin;
use super::{Failure, Form, backtest, replay, test};
use crate::flags;
use bailiff_engine::engine::Now;

/// Validates the flags of a command and runs it.
///
/// # Errors
/// If the flags are invalid, or the command failed.
pub fn past<F, S>(flags: &F, now: Now, run: impl FnOnce(S) -> Result<Exit, Failure>) -> Result<Exit, Stop>
where
    S: for<'a> TryFrom<(&'a F, Now), Error = Failure>,
{
    report(S::try_from((flags, now)).and_then(run))
}

/// Prints errors of several lines; the caller prints the others.
///
/// # Errors
/// If the caller has to print the error.
pub fn report(outcome: Result<Exit, Failure>) -> Result<Exit, Stop> {
    match outcome {
        Ok(exit) => Ok(exit),
        Err(Failure::Faults(faults)) => {
            // A closed standard error is no reason for another exit code.
            let _ = writeln!(io::stderr(), "{}", faults.trim_end());
            Ok(Exit::Usage)
        }
        Err(failure @ Failure::Settings(_)) => Err(Stop::Usage(failure.to_string())),
        Err(failure) => Err(Stop::Failed(failure.into())),
    }
}

const fn form(json: bool) -> Form {
    if json { Form::Json } else { Form::Text }
}

impl From<flags::Test> for test::RuleTestSettings {
    fn from(flags: flags::Test) -> Self {
        Self { files: flags.files, form: form(flags.json) }
    }
}

impl TryFrom<(&flags::Replay, Now)> for replay::ReplaySettings {
    type Error = Failure;

    fn try_from((flags, now): (&flags::Replay, Now)) -> Result<Self, Failure> {
        Ok(Self {
            rules: flags.rules.clone(),
            record: flags.record.clone(),
            admin: admin(flags.resume_after.as_deref())?,
            form: form(flags.json),
            now: now.wall,
        })
    }
}

impl TryFrom<(&flags::Backtest, Now)> for backtest::BacktestSettings {
    type Error = Failure;

    fn try_from((flags, now): (&flags::Backtest, Now)) -> Result<Self, Failure> {
        Ok(Self {
            rules: flags.rules.clone(),
            prometheus: flags.prometheus.clone(),
            token_file: flags.token_file.clone(),
            from: moment("--from", &flags.from, now)?,
            to: moment("--to", &flags.to, now)?,
            instance: flags.instance.clone(),
            children: children(flags.assume_children_idle),
            chunk: length("--chunk", &flags.chunk)?,
            interval: flags.interval.as_deref().map(|text| length("--interval", text)).transpose()?,
            admin: admin(flags.resume_after.as_deref())?,
            form: form(flags.json),
            now: now.wall,
        })
    }
}

const fn children(idle: bool) -> backtest::Children {
    if idle { backtest::Children::Idle } else { backtest::Children::Unknown }
}

fn admin(resume_after: Option<&str>) -> Result<Admin, Failure> {
    resume_after.map_or(Ok(Admin::Away), |text| length("--resume-after", text).map(Admin::Resumes))
}

fn length(flag: &str, text: &str) -> Result<Duration, Failure> {
    humantime::parse_duration(text)
        .map_err(|error| Failure::Settings(format!("{flag} {text:?} is not a duration such as 1h: {error}")))
}

/// Parses a time, or an age such as `7d`, to a time since the Unix epoch.
fn moment(flag: &str, text: &str, now: Now) -> Result<Duration, Failure> {
    let wrong = || {
        let what = "neither a time such as 2026-03-01T00:00:00Z nor an age such as 7d";
        Failure::Settings(format!("{flag} {text:?} is {what}"))
    };
    if let Ok(ago) = humantime::parse_duration(text) {
        return now.wall.checked_sub(ago).ok_or_else(wrong);
    }
    let time = humantime::parse_rfc3339(text).map_err(|_| wrong())?;
    time.duration_since(UNIX_EPOCH).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_or_how_long_ago() {
        let now = Now { wall: Duration::from_hours(490_896), ..Now::default() };
        let day = Duration::from_hours(24);
        let cases = [
            ("2026-01-01T00:00:00Z", Some(now.wall)),
            ("1d", Some(now.wall.saturating_sub(day))),
            ("0s", Some(now.wall)),
            ("2025-12-31T00:00:00Z", Some(now.wall.saturating_sub(day))),
            ("yesterday", None),
            ("1960-01-01T00:00:00Z", None),
            ("900000d", None),
        ];
        for (text, expected) in cases {
            assert_eq!(moment("--from", text, now).ok(), expected, "{text}");
        }
    }
}
