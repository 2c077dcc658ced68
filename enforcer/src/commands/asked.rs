//! What the flags of `test`, `replay` and `backtest` mean.

use std::time::Duration;

use bailiff_lifecycle::exit::{Exit, Stop};

use super::backtest::{self, Children};
use super::rehearsal::Admin;
use super::{Failure, Form, replay, test};
use crate::flags;
use crate::settings::{When, duration};

/// How much of Prometheus is asked for at once.
const CHUNK: Duration = Duration::from_hours(1);

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure.exit() {
            Exit::Usage => Self::Usage(failure.to_string()),
            Exit::Done | Exit::Failed => Self::Failed(failure.into()),
        }
    }
}

/// The settings of `test`, one for each file.
#[must_use]
pub fn test(flags: flags::Test) -> Vec<test::Settings> {
    let form = form(flags.json);
    flags.files.into_iter().map(|file| test::Settings { file, form }).collect()
}

/// The settings of `replay`.
///
/// # Errors
/// Where a flag makes no sense.
pub fn replay(flags: flags::Replay, now: Duration) -> Result<replay::Settings, String> {
    Ok(replay::Settings {
        rules: flags.rules,
        record: flags.record,
        admin: admin(flags.resume_after.as_deref())?,
        form: form(flags.json),
        now,
    })
}

/// The settings of `backtest`.
///
/// # Errors
/// Where a flag makes no sense.
pub fn backtest(flags: flags::Backtest, now: Duration) -> Result<backtest::Settings, String> {
    let from = When::parse("--from", &flags.from)?.since_epoch(now);
    let to = When::parse("--to", &flags.to)?.since_epoch(now);
    if from >= to {
        return Err(format!("--from={} is not before --to={}", flags.from, flags.to));
    }
    Ok(backtest::Settings {
        rules: flags.rules,
        prometheus: flags.prometheus,
        token_file: flags.token_file,
        from,
        to,
        instance: flags.instance,
        children: if flags.children_idle { Children::Idle } else { Children::Unknown },
        chunk: CHUNK,
        interval: flags.interval.map(|text| duration("--interval", &text)).transpose()?,
        admin: admin(flags.resume_after.as_deref())?,
        form: form(flags.json),
        now,
    })
}

fn admin(resume_after: Option<&str>) -> Result<Admin, String> {
    resume_after.map_or(Ok(Admin::Away), |text| Ok(Admin::Resumes(duration("--resume-after", text)?)))
}

const fn form(json: bool) -> Form {
    if json { Form::Json } else { Form::Text }
}
