//! Flags and exit codes of the commands that evaluate recorded data.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use bailiff_lifecycle::exit::{Exit, Stop};

use super::Failure;
use super::simulation::Admin;

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

/// Returns the assumed behavior of the administrator, from `--resume-after`.
pub(super) fn admin(resume_after: Option<&str>) -> Result<Admin, Failure> {
    resume_after.map_or(Ok(Admin::Away), |text| length("--resume-after", text).map(Admin::Resumes))
}

/// Parses a duration such as `1h`.
pub(super) fn length(flag: &str, text: &str) -> Result<Duration, Failure> {
    humantime::parse_duration(text)
        .map_err(|error| Failure::Settings(format!("{flag} {text:?} is not a duration such as 1h: {error}")))
}

/// Parses a time, or an age such as `7d`, to a time since the Unix epoch.
pub(super) fn moment(flag: &str, text: &str, now: Duration) -> Result<Duration, Failure> {
    let wrong = || {
        let what = "neither a time such as 2026-03-01T00:00:00Z nor an age such as 7d";
        Failure::Settings(format!("{flag} {text:?} is {what}"))
    };
    if let Ok(ago) = humantime::parse_duration(text) {
        return now.checked_sub(ago).ok_or_else(wrong);
    }
    let time = humantime::parse_rfc3339(text).map_err(|_| wrong())?;
    time.duration_since(UNIX_EPOCH).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_or_how_long_ago() {
        let now = Duration::from_hours(490_896);
        let day = Duration::from_hours(24);
        let cases = [
            ("2026-01-01T00:00:00Z", Some(now)),
            ("1d", Some(now.saturating_sub(day))),
            ("0s", Some(now)),
            ("2025-12-31T00:00:00Z", Some(now.saturating_sub(day))),
            ("yesterday", None),
            ("1960-01-01T00:00:00Z", None),
            ("900000d", None),
        ];
        for (text, expected) in cases {
            assert_eq!(moment("--from", text, now).ok(), expected, "{text}");
        }
    }
}
