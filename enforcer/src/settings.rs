//! Validated settings from the command line; nothing past this point sees an invalid value.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bailiff_http::listen;
use bailiff_lifecycle::logs;

use crate::flags;
use bailiff_engine::policy::Mode;

/// The longest time that any flag of the daemon may ask for.
const LONGEST: Duration = Duration::from_hours(24);
/// Below this an audit log would be set aside with nearly every entry.
const SMALLEST_AUDIT: u64 = 64 << 10;

/// How the daemon runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The rules.
    pub rules: PathBuf,
    /// The exporter's stream.
    pub stream: PathBuf,
    /// Trusted owners of the stream besides root and our own user.
    pub stream_owners: Vec<u32>,
    /// What any rule may do at most.
    pub most: Mode,
    /// What is served over HTTP.
    pub web: Web,
    /// The control socket.
    pub control: PathBuf,
    /// The directory of what outlives a restart.
    pub state: PathBuf,
    /// The audit log.
    pub audit: Audit,
    /// What is looked at before and after an action.
    pub host: Host,
    /// How long after a kill processes and memory may take to be gone.
    pub verify: Duration,
    /// What this node is called.
    pub node: String,
    /// The log.
    pub logs: logs::LogFlags,
}

/// What is served over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    /// `HOST:PORT` of each listener; none, and nothing is served.
    pub listen: Vec<String>,
    /// The web config.
    pub config: Option<PathBuf>,
    /// A POST to `/-/reload` is answered.
    pub lifecycle: bool,
}

/// The audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Its file.
    pub file: PathBuf,
    /// Bytes at which it is set aside.
    pub max_bytes: u64,
    /// How many of those are kept.
    pub keep: u32,
}

/// What is looked at before and after an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `/proc`.
    pub procfs: PathBuf,
    /// How paths of GPU device files begin.
    pub devices: String,
    /// The PID namespace is the host's, whatever its link says.
    pub trust_pid_namespace: bool,
}

impl TryFrom<flags::Run> for Settings {
    type Error = String;

    fn try_from(flags: flags::Run) -> Result<Self, String> {
        let verify = duration("--verify", &flags.verify)?;
        if verify.is_zero() || verify > LONGEST {
            return Err(format!("--verify={} must be more than nothing and at most a day", flags.verify));
        }
        if flags.devices.is_empty() {
            return Err("--devices= would take every file for a GPU; /dev/nvidia is usual".to_owned());
        }
        let wanted = flags.listen.into_iter().filter(|address| !address.is_empty());
        Ok(Self {
            rules: flags.rules,
            stream: flags.stream,
            stream_owners: flags.stream_user.iter().map(|name| user(name)).collect::<Result<_, _>>()?,
            most: if flags.dry_run { Mode::DryRun } else { Mode::Enforce },
            web: Web {
                listen: wanted.map(address).collect::<Result<_, _>>()?,
                config: flags.web_config,
                lifecycle: flags.lifecycle,
            },
            control: flags.control,
            state: flags.state,
            audit: Audit {
                file: flags.audit,
                max_bytes: audit_size(&flags.audit_max_size)?,
                keep: flags.audit_keep,
            },
            host: Host {
                procfs: flags.procfs,
                devices: flags.devices,
                trust_pid_namespace: flags.trust_pid_namespace,
            },
            verify,
            node: flags.node.name(),
            logs: flags.logs,
        })
    }
}

/// A moment as a flag names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Since the Unix epoch.
    At(Duration),
    /// So long ago.
    Ago(Duration),
}

impl When {
    /// Understands `2026-03-01T00:00:00Z` and `7d`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(flag: &str, text: &str) -> Result<Self, String> {
        if let Ok(time) = humantime::parse_rfc3339(text) {
            let since = time.duration_since(UNIX_EPOCH);
            return since.map(Self::At).map_err(|_| format!("{flag}={text} is before 1970"));
        }
        humantime::parse_duration(text).map(Self::Ago).map_err(|_| {
            format!(
                "{flag}={text} is neither a time such as 2026-03-01T00:00:00Z nor how long ago, such as 7d"
            )
        })
    }

    /// Since the Unix epoch.
    #[must_use]
    pub const fn since_epoch(self, now: Duration) -> Duration {
        match self {
            Self::At(since) => since,
            Self::Ago(ago) => now.saturating_sub(ago),
        }
    }
}

/// Understands `5s`, `1h 30m`.
///
/// # Errors
/// If it is no duration.
pub fn duration(flag: &str, text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{flag}={text} is no duration such as 10s or 1h: {error}"))
}

/// A user by number or name.
fn user(name: &str) -> Result<u32, String> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    match nix::unistd::User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("--stream.user={name}: there is no such user")),
        Err(error) => Err(format!("--stream.user={name}: the name service does not answer: {error}")),
    }
}

fn address(text: String) -> Result<String, String> {
    if listen::is_address(&text) {
        return Ok(text);
    }
    Err(format!("--web.listen-address={text} is no HOST:PORT, such as 127.0.0.1:9837 or :9837"))
}

fn audit_size(text: &str) -> Result<u64, String> {
    let bytes = bailiff_size::size(text).map_err(|error| format!("--audit.max-size={text}: {error}"))?;
    if bytes < SMALLEST_AUDIT {
        return Err(format!("--audit.max-size={text} is too small: at least 64KiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::flags::{Command, Flags};

    fn settings(flags: &[&str]) -> Result<Settings, String> {
        let flags = [&["bailiff-enforcer", "run"], flags].concat();
        match Flags::try_parse_from(flags).map_err(|error| error.to_string())?.command {
            Command::Run(run) => Settings::try_from(*run),
            other => panic!("{other:?} is not run"),
        }
    }

    #[test]
    fn the_command_line_is_in_order() {
        Flags::command().debug_assert();
    }

    #[test]
    fn the_defaults_make_sense() {
        let settings = settings(&[]).expect("no flag is needed");
        assert_eq!(settings.rules, PathBuf::from("/etc/bailiff/rules.yaml"));
        assert_eq!(
            settings.web,
            Web { listen: vec!["127.0.0.1:9837".into()], config: None, lifecycle: false }
        );
        assert_eq!(settings.most, Mode::Enforce);
        assert_eq!((settings.audit.max_bytes, settings.audit.keep), (64 << 20, 5));
        assert_eq!(settings.verify, Duration::from_secs(10));
    }

    #[test]
    fn nothing_is_served_where_nothing_is_asked_for() {
        assert_eq!(settings(&["--web.listen-address="]).expect("it is allowed").web.listen, [""; 0]);
        let two = settings(&["--web.listen-address=:1", "--web.listen-address=[::1]:2", "--dry-run"]);
        let two = two.expect("two addresses");
        assert_eq!((two.web.listen, two.most), (vec![":1".into(), "[::1]:2".into()], Mode::DryRun));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases = [
            ("--verify=soon", "--verify=soon is no duration"),
            ("--verify=0s", "--verify=0s must be more than nothing"),
            ("--verify=2d", "--verify=2d must be more than nothing and at most a day"),
            ("--web.listen-address=9837", "--web.listen-address=9837 is no HOST:PORT"),
            ("--audit.max-size=64MB", "--audit.max-size=64MB: `MB` is not a memory unit: did you mean MiB?"),
            ("--audit.max-size=64", "--audit.max-size=64: `64` has no unit: write `64MiB`"),
            ("--audit.max-size=1KiB", "--audit.max-size=1KiB is too small"),
            (
                "--audit.max-size=99999999999GiB",
                "--audit.max-size=99999999999GiB: `99999999999GiB` is too large",
            ),
            ("--devices=", "--devices= would take every file"),
        ];
        for (flag, why) in cases {
            let error = settings(&[flag]).expect_err(flag);
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn moments() {
        let day = Duration::from_hours(24);
        let at = When::parse("--from", "1970-01-02T00:00:00Z").expect("it is a time");
        assert_eq!((at, at.since_epoch(day * 9)), (When::At(day), day));
        let ago = When::parse("--from", "2d").expect("it is one");
        assert_eq!(ago.since_epoch(day * 9), day * 7);
        assert!(
            When::parse("--from", "yesterday").expect_err("it is neither").starts_with("--from=yesterday")
        );
    }
}
