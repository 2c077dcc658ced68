#![expect(clippy::disallowed_methods, reason = "runs Slurm's programs")]
//! Runs Slurm's programs, without a shell and with deadlines.

use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bailiff_engine::guard::Refusal;
use bailiff_engine::job;
use bailiff_engine::policy::Slurm;
use bailiff_engine::verdict::Outcome;
use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::file::{self, PATIENCE};
use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_subprocess::{ChildError, Talk};

use crate::programs;

/// Time limit of a query. `scancel` gives up by itself after about 10 s.
const QUERY: Duration = Duration::from_secs(5);
const SCANCEL: Duration = Duration::from_secs(12);
/// Slurm's defaults of `KillWait` and `UnkillableStepTimeout`.
const KILL_WAIT: Duration = Duration::from_secs(30);
const UNKILLABLE: Duration = Duration::from_mins(1);
/// Maximum number of characters of a comment that are read and written.
const COMMENT: usize = 1024;

/// Slurm's programs, with the settings that they need.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    pub(super) slurm: &'a Slurm,
    pub(super) permissions: FilePermissions,
}

/// What `scancel` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sent {
    /// Slurm has accepted the request.
    Accepted,
    /// Slurm has refused it.
    Denied(String),
    /// Slurm may or may not carry it out.
    Unknown(String),
}

impl Programs<'_> {
    /// Returns what `squeue` prints about a job; nothing if Slurm does not show the job.
    ///
    /// # Errors
    /// [`Outcome::NoAnswer`] if Slurm does not answer, [`Outcome::Refused`] if `squeue` cannot be run.
    pub(super) fn query(&self, name: &str) -> Result<String, Refusal> {
        let (jobs, format) = (format!("--jobs={name}"), format!("--format={}", job::FORMAT));
        let output = self.run("squeue", &["--noheader", "--states=all", &jobs, &format], QUERY)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        match said(&output) {
            // A finished job, after Slurm has forgotten it, and a job that this user may not see.
            why if why.contains("Invalid job id") => Ok(String::new()),
            why => Err(no_answer(&why)),
        }
    }

    /// Appends a text to the job's `AdminComment`, which only administrators of Slurm can set.
    ///
    /// # Errors
    /// With the reason why that failed.
    pub(super) fn comment(&self, name: &str, text: &str) -> Result<(), String> {
        let (jobs, format) = (format!("--jobs={name}"), format!("--Format=admin_comment:{COMMENT}"));
        let before = self.success("squeue", &["--noheader", &jobs, &format])?;
        let before = match before.trim() {
            "(null)" | "N/A" => "",
            before => before,
        };
        let comment = format!("admincomment={}", joined(before, text)?);
        self.success("scontrol", &["update", &format!("jobid={name}"), &comment]).map(drop)
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// [`Outcome::Refused`] if `scancel` cannot be run.
    pub(super) fn scancel(&self, name: &str) -> Result<Sent, Refusal> {
        match self.run("scancel", &[name], SCANCEL) {
            Ok(output) if output.status.success() => Ok(Sent::Accepted),
            Ok(output) => Ok(match said(&output) {
                why if why.to_ascii_lowercase().contains("permission denied") => Sent::Denied(why),
                why => Sent::Unknown(why),
            }),
            Err(refusal) if refusal.outcome == Outcome::NoAnswer => Ok(Sent::Unknown(refusal.why)),
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns the time after which Slurm gives a cancelled job's processes up.
    pub(super) fn patience(&self) -> Duration {
        let config = self.success("scontrol", &["show", "config"]).unwrap_or_default();
        setting(&config, "KillWait").unwrap_or(KILL_WAIT)
            + setting(&config, "UnkillableStepTimeout").unwrap_or(UNKILLABLE)
    }

    fn success(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = self.run(program, arguments, QUERY).map_err(|refusal| refusal.why)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(said(&output))
    }

    fn run(&self, program: &str, arguments: &[&str], deadline: Duration) -> Result<Output, Refusal> {
        let refused = |why: &str| Refusal::refused(format!("cannot run {program}: {why}"));
        let permissions = self.permissions;
        // It is checked each time, because its permissions may have changed.
        let checked = file::within(Path::new(program), PATIENCE, move |name| {
            let path = name.to_str().and_then(programs::located);
            let path = path.ok_or_else(|| io::Error::other("it is not in PATH"))?;
            permissions.check(&path).map(|()| path)
        });
        let path = checked.map_err(|error| refused(&plain(&error)))?;
        let mut command = Command::new(&path);
        command.args(arguments).env_clear().env("PATH", programs::search_path()).env("LC_ALL", "C");
        command.env("SLURM_CONF", &self.slurm.conf).env("SLURM_TIME_FORMAT", "%s").current_dir("/");
        bailiff_subprocess::run(command, &Talk::within(deadline)).map_err(|error| match error {
            ChildError::Start(error) => refused(&plain(&error)),
            error => no_answer(&format!("{program}: {error}")),
        })
    }
}

fn no_answer(why: &str) -> Refusal {
    Refusal { outcome: Outcome::NoAnswer, why: format!("no answer from Slurm: {why}") }
}

/// Returns the first line of a failed program's error message.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = text.lines().find(|line| !line.trim().is_empty()).map(str::trim);
    first.map_or_else(|| output.status.to_string(), |line| line.chars().take(200).collect())
}

/// Appends a text to a comment, in one line.
///
/// # Errors
/// If the result would be too long. Then the comment may also be longer than what was read of it.
fn joined(before: &str, text: &str) -> Result<String, String> {
    let all = if before.is_empty() { text.to_owned() } else { format!("{before}; {text}") };
    if all.chars().count() > COMMENT {
        return Err(format!("it would have more than {COMMENT} characters"));
    }
    Ok(all.replace(|letter: char| letter.is_control(), " "))
}

/// Returns a duration from the output of `scontrol show config`, such as `KillWait = 30 sec`.
fn setting(config: &str, name: &str) -> Option<Duration> {
    let mut settings = config.lines().filter_map(|line| line.split_once('='));
    let (_, value) = settings.find(|(key, _)| key.trim() == name)?;
    value.split_whitespace().next()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_is_appended_in_one_line() {
        assert_eq!(joined("", "bailiff n1").unwrap(), "bailiff n1");
        assert_eq!(joined("by\nadmin", "bailiff n1").unwrap(), "by admin; bailiff n1");
        let long = "x".repeat(COMMENT - 12);
        assert_eq!(joined(&long, "bailiff n1").unwrap(), format!("{long}; bailiff n1"));
        assert!(joined(&format!("{long}x"), "bailiff n1").is_err(), "no text of others is lost");
    }

    #[test]
    fn settings_of_slurm() {
        let config = "KillWait                = 2 sec\nUnkillableStepTimeout   = 61 sec\nX = (null)\n";
        assert_eq!(setting(config, "KillWait"), Some(Duration::from_secs(2)));
        assert_eq!(setting(config, "UnkillableStepTimeout"), Some(Duration::from_secs(61)));
        assert_eq!((setting(config, "X"), setting(config, "Kill")), (None, None));
    }
}
