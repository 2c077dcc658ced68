//! Validated settings from the command line; later code sees no invalid value.

use std::path::PathBuf;
use std::time::Duration;

use bailiff_http::hosts::Hosts;
use bailiff_http::listen;
use bailiff_lifecycle::logs;
use bailiff_lifecycle::permissions::FilePermissions;

use crate::actions::ExecutorSettings;
use crate::audit::AuditSettings;
use crate::flags;
use crate::stream::Source;
use bailiff_engine::policy::Mode;

/// Longest duration that a flag of the daemon accepts.
const LONGEST: Duration = Duration::from_hours(24);
/// Minimum size of the audit log, in bytes. A smaller log would be rotated at nearly every entry.
const SMALLEST_AUDIT: u64 = 64 << 10;

/// Settings of the daemon.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of the rules file.
    pub rules: PathBuf,
    /// Permissions that the rules file, its programs and the web config must have.
    pub permissions: FilePermissions,
    /// The exporter's stream.
    pub stream: Source,
    /// Upper limit for the mode of every rule.
    pub most: Mode,
    /// HTTP settings.
    pub web: Web,
    /// Path of the control socket.
    pub control: PathBuf,
    /// Directory of the state that survives a restart.
    pub state: PathBuf,
    /// Settings of the audit log.
    pub audit: AuditSettings,
    /// Settings of the executor, and where the processes and devices of the host are.
    pub executor: ExecutorSettings,
    /// Whether the PID namespace is treated as the host's without a check.
    pub trust_pid_namespace: bool,
    /// Name of this node.
    pub node: String,
    /// Log level and format.
    pub logs: logs::LogFlags,
}

/// HTTP settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    /// Listening addresses, `HOST:PORT`; empty to disable HTTP.
    pub listen: Vec<String>,
    /// Path of the web config file.
    pub config: Option<PathBuf>,
    /// Names under which pages are served.
    pub hosts: Hosts,
    /// Whether POST `/-/reload` is enabled.
    pub lifecycle: bool,
}

impl Settings {
    /// Returns the path of the users' socket, which is beside the control socket.
    pub fn users(&self) -> PathBuf {
        self.control.with_file_name("user.sock")
    }
}

impl TryFrom<flags::Run> for Settings {
    type Error = String;

    fn try_from(flags: flags::Run) -> Result<Self, String> {
        let verify = duration("--verify", &flags.verify)?;
        if verify.is_zero() || verify > LONGEST {
            return Err(format!("--verify={} must be above 0 and at most 24h", flags.verify));
        }
        if flags.devices.is_empty() {
            return Err("--devices must not be empty; the usual prefix is /dev/nvidia".to_owned());
        }
        let node = flags.node.name();
        let permissions = flags.permissions.required();
        let wanted = flags.listen.into_iter().filter(|address| !address.is_empty());
        Ok(Self {
            rules: flags.rules,
            permissions,
            stream: Source {
                path: flags.stream,
                owners: flags.stream_user.iter().map(|name| user(name)).collect::<Result<_, _>>()?,
                procfs: flags.procfs.clone(),
            },
            most: if flags.dry_run { Mode::DryRun } else { Mode::Enforce },
            web: Web {
                listen: wanted.map(address).collect::<Result<_, _>>()?,
                config: flags.web_config,
                hosts: flags.hosts.hosts(&node)?,
                lifecycle: flags.lifecycle,
            },
            control: flags.control,
            audit: AuditSettings {
                path: flags.audit,
                max_bytes: audit_size(&flags.audit_max_size)?,
                keep: flags.audit_keep,
                kept: Some(flags.state.join("audit.unwritten.jsonl")),
            },
            state: flags.state,
            executor: ExecutorSettings {
                procfs: flags.procfs,
                devices: flags.devices,
                verify,
                node: node.clone(),
                permissions,
                slurm: flags.slurm_dir,
                ..ExecutorSettings::default()
            },
            trust_pid_namespace: flags.trust_pid_namespace,
            node,
            logs: flags.logs,
        })
    }
}

/// Parses a duration such as `5s` or `1h 30m`.
///
/// # Errors
/// If the text is not a duration.
pub fn duration(flag: &str, text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{flag}={text} is not a duration such as 10s or 1h: {error}"))
}

/// Returns the uid of a user that is given by number or name.
fn user(name: &str) -> Result<u32, String> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    match nix::unistd::User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("--stream.user={name}: there is no such user")),
        Err(error) => Err(format!("--stream.user={name}: the name service failed: {error}")),
    }
}

fn address(text: String) -> Result<String, String> {
    if listen::is_address(&text) {
        return Ok(text);
    }
    Err(format!("--web.listen-address={text} is not HOST:PORT, such as 127.0.0.1:9837 or :9837"))
}

fn audit_size(text: &str) -> Result<u64, String> {
    let bytes = bailiff_size::size(text).map_err(|error| format!("--audit.max-size={text}: {error}"))?;
    if bytes < SMALLEST_AUDIT {
        return Err(format!("--audit.max-size={text} is too small; the minimum is 64KiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use bailiff_http::hosts::HostFlags;

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
        let hosts = HostFlags::default().hosts(&settings.node).expect("no name is given");
        assert_eq!(
            settings.web,
            Web { listen: vec!["127.0.0.1:9837".into()], config: None, hosts, lifecycle: false }
        );
        assert_eq!(settings.most, Mode::Enforce);
        assert_eq!((settings.audit.max_bytes, settings.audit.keep), (64 << 20, 5));
        assert_eq!(settings.executor.verify, Duration::from_secs(10));
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
            ("--verify=soon", "--verify=soon is not a duration"),
            ("--verify=0s", "--verify=0s must be above 0"),
            ("--verify=2d", "--verify=2d must be above 0 and at most 24h"),
            ("--web.listen-address=9837", "--web.listen-address=9837 is not HOST:PORT"),
            ("--audit.max-size=64MB", "--audit.max-size=64MB: `MB` is not a memory unit: did you mean MiB?"),
            ("--audit.max-size=64", "--audit.max-size=64: `64` has no unit: write `64MiB`"),
            ("--audit.max-size=1KiB", "--audit.max-size=1KiB is too small"),
            (
                "--audit.max-size=99999999999GiB",
                "--audit.max-size=99999999999GiB: `99999999999GiB` is too large",
            ),
            ("--devices=", "--devices must not be empty"),
        ];
        for (flag, why) in cases {
            let error = settings(&[flag]).expect_err(flag);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
