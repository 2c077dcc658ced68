//! Validated settings from the command line; nothing past this point sees an invalid value.

use std::path::PathBuf;
use std::time::Duration;

use bailiff_http::hosts::Hosts;
use bailiff_http::listen;
use bailiff_lifecycle::logs;
use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_lifecycle::user::User;
use bailiff_sampler::{Claims, Commands, Mps, Namespace, PodResourcesSettings, SamplerSettings};
use bailiff_snapshot::PidNamespace;

use crate::flags::{Flags, Once};
use crate::leases;
use crate::mps;
use crate::page::Format;
use crate::schedule::Schedule;

/// Minimum of every duration flag. With shorter sampling intervals, the driver would be busy only with
/// queries.
const SHORTEST: Duration = Duration::from_millis(10);

/// Maximum of every duration flag.
const LONGEST: Duration = Duration::from_hours(24);

/// Settings of the exporter.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Settings of the HTTP server.
    pub web: Web,
    /// Sampling schedule.
    pub schedule: Schedule,
    /// Settings of the sampler.
    pub sampler: SamplerSettings,
    /// Lease pool; `None` without `--lease.redis`.
    pub leases: Option<leases::LeaseSettings>,
    /// How MPS control daemons are queried.
    pub mps: mps::MpsSettings,
    /// Outputs of snapshots besides the pages.
    pub outlets: Outlets,
    /// Format of the page to print with `--once`; `None` to serve.
    pub once: Option<Format>,
    /// Name of this node.
    pub node: String,
    /// Log settings.
    pub logs: logs::LogFlags,
}

/// Settings of the HTTP server.
#[derive(Debug, Clone)]
pub struct Web {
    /// `HOST:PORT` of each listener.
    pub listen: Vec<String>,
    /// Path of the metrics page.
    pub telemetry: String,
    /// URL of the enforcer's page.
    pub enforcer: Option<String>,
    /// Web configuration file (TLS, authentication, rate limit).
    pub config: Option<PathBuf>,
    /// Permissions that the file must have.
    pub permissions: FilePermissions,
    /// User to change to once sockets and the record file are open.
    pub user: Option<User>,
    /// Names under which pages are served.
    pub hosts: Hosts,
    /// Maximum number of concurrent connections.
    pub max_connections: usize,
}

/// Outputs of snapshots besides the pages.
#[derive(Debug, Clone, Default)]
pub struct Outlets {
    /// Path of the stream's Unix socket.
    pub stream: Option<PathBuf>,
    /// Path of the record file.
    pub record: Option<PathBuf>,
}

impl TryFrom<Flags> for Settings {
    type Error = String;

    fn try_from(flags: Flags) -> Result<Self, String> {
        let interval = duration("--interval", &flags.interval)?;
        let deadline = duration("--deadline", &flags.deadline)?;
        let leases = pool(&flags, (interval, deadline))?;
        let mps = daemons(&flags)?;
        let claims = if leases.is_some() { Claims::Read } else { Claims::Left };
        let (pod_resources, lookback) = (kubelet(&flags)?, duration("--look-back", &flags.lookback)?);
        let node = flags.node.name();
        Ok(Self {
            web: Web {
                listen: flags.listen.into_iter().map(address).collect::<Result<_, _>>()?,
                telemetry: telemetry(flags.telemetry)?,
                enforcer: flags.enforcer.filter(|url| !url.is_empty()).map(enforcer).transpose()?,
                config: flags.web_config,
                permissions: flags.permissions.required(),
                user: flags.user,
                hosts: flags.hosts.hosts(&node)?,
                max_connections: connections(flags.max_connections)?,
            },
            schedule: Schedule { interval, max_processes: flags.max_processes },
            sampler: SamplerSettings {
                nvml_library: flags.nvml_library,
                procfs: flags.procfs,
                cgroupfs: flags.cgroupfs,
                pods: flags.pods,
                quotas: Some(flags.quota_dir),
                slurm: Some(flags.slurm_dir),
                pod_resources,
                interval,
                deadline,
                lookback,
                commands: if flags.command { Commands::Read } else { Commands::Left },
                claims,
                notebooks: flags.notebook,
                mps: Mps::Read,
                namespace: if flags.trust_pid_namespace { Namespace::Trusted } else { Namespace::Checked },
                activity: flags.gpm,
                mig_idle: flags.mig_idle,
                kernel_log: flags.kernel_log,
                ..SamplerSettings::default()
            },
            leases,
            mps,
            outlets: Outlets { stream: flags.stream, record: flags.record },
            once: flags.once.map(|once| if once == Once::Text { Format::Text } else { Format::OpenMetrics }),
            node,
            logs: flags.logs,
        })
    }
}

/// Checks the maximum number of connections.
fn connections(most: usize) -> Result<usize, String> {
    if most == 0 {
        return Err("--web.max-connections=0 would refuse every connection".to_owned());
    }
    Ok(most)
}

/// Returns the settings of the lease pool. An empty URL means no pool, because the environment variable may
/// be set and empty.
fn pool(
    flags: &Flags,
    (interval, deadline): (Duration, Duration),
) -> Result<Option<leases::LeaseSettings>, String> {
    let Some(redis) = flags.lease_redis.clone().filter(|redis| !redis.is_empty()) else { return Ok(None) };
    bailiff_lease::check(&redis).map_err(|error| format!("--lease.redis: {error}"))?;
    let trusted = flags.trust_pid_namespace;
    Ok(Some(leases::LeaseSettings {
        redis: leases::Secret(redis),
        prefix: flags.lease_prefix.clone(),
        deadline,
        interval,
        procfs: flags.procfs.clone(),
        namespace: if trusted { PidNamespace::Host } else { PidNamespace::Unknown },
    }))
}

fn daemons(flags: &Flags) -> Result<mps::MpsSettings, String> {
    Ok(mps::MpsSettings {
        control: flags.mps_control.clone().into(),
        interval: duration("--mps.interval", &flags.mps_interval)?,
        procfs: flags.procfs.clone(),
    })
}

fn kubelet(flags: &Flags) -> Result<Option<PodResourcesSettings>, String> {
    let interval = duration("--pod-resources.interval", &flags.pod_resources_interval)?;
    let containers = flags.containers.clone();
    Ok(flags.pod_resources.clone().map(|socket| PodResourcesSettings { socket, interval, containers }))
}

fn duration(flag: &str, text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|error| format!("{flag}={text} is not a duration such as 5s or 200ms: {error}"))?;
    if duration < SHORTEST {
        return Err(format!("{flag}={text} is too short; the minimum is {SHORTEST:?}"));
    }
    if duration > LONGEST {
        return Err(format!("{flag}={text} is too long; the maximum is 24h"));
    }
    Ok(duration)
}

fn address(text: String) -> Result<String, String> {
    if listen::is_address(&text) {
        return Ok(text);
    }
    Err(format!("--web.listen-address={text} is not HOST:PORT, such as 127.0.0.1:9836 or :9836"))
}

fn telemetry(path: String) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'<' | b'>');
    if !path.starts_with('/') || !path.bytes().all(plain) {
        return Err(format!("--web.telemetry-path={path} is not a path such as /metrics"));
    }
    if path == "/" || path.starts_with("/-/") {
        return Err(format!("--web.telemetry-path={path} is the path of another page"));
    }
    Ok(path)
}

/// Validates the enforcer's URL: a browser must open it as a page, so `javascript:` and similar are refused.
fn enforcer(url: String) -> Result<String, String> {
    let beginnings = ["http://", "https://", "/"];
    if beginnings.iter().any(|beginning| url.starts_with(beginning)) {
        return Ok(url);
    }
    Err(format!("--web.enforcer-url={url} is not a URL such as http://node-7:9837/"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, String> {
        let flags = [&["bailiff-exporter"], flags].concat();
        Settings::try_from(Flags::try_parse_from(flags).map_err(|error| error.to_string())?)
    }

    #[test]
    fn the_defaults_make_sense() {
        let settings = settings(&[]).expect("no flag is needed");
        assert_eq!(settings.web.listen, ["127.0.0.1:9836"]);
        assert_eq!(
            (settings.schedule.interval, settings.schedule.max_processes),
            (Duration::from_secs(5), 1024)
        );
        assert_eq!(settings.sampler.deadline, Duration::from_secs(2));
        assert_eq!(settings.once, None);
        assert!(settings.sampler.pod_resources.is_none());
    }

    #[test]
    fn kubelet_is_asked_every_30_seconds() {
        let settings = settings(&["--pod-resources"]).expect("a path is not needed");
        let kubelet = settings.sampler.pod_resources.expect("it is asked");
        assert_eq!(kubelet.interval, Duration::from_secs(30));
        assert_eq!(kubelet.socket, PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases = [
            ("--interval=soon", "--interval=soon is not a duration"),
            ("--interval=0s", "--interval=0s is too short"),
            ("--deadline=5", "--deadline=5 is not a duration"),
            ("--web.listen-address=9836", "--web.listen-address=9836 is not HOST:PORT"),
            ("--web.telemetry-path=metrics", "--web.telemetry-path=metrics is not a path"),
            ("--web.telemetry-path=/", "--web.telemetry-path=/ is the path of another page"),
            ("--web.telemetry-path=/-/ready", "--web.telemetry-path=/-/ready is the path of another page"),
            ("--web.enforcer-url=javascript:alert(1)", "--web.enforcer-url=javascript:alert(1) is not a URL"),
            ("--web.max-connections=0", "--web.max-connections=0 would refuse every connection"),
        ];
        for (flag, why) in cases {
            let error = settings(&[flag]).expect_err(flag);
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn once_has_a_format_of_its_own() {
        for (flag, format) in [
            ("--once", Format::Text),
            ("--once=text", Format::Text),
            ("--once=openmetrics", Format::OpenMetrics),
        ] {
            assert_eq!(settings(&[flag]).expect(flag).once, Some(format), "{flag}");
        }
    }

    #[test]
    fn flags_may_be_given_as_often_as_they_make_sense() {
        let two =
            settings(&["--web.listen-address=:1", "--web.listen-address=[::1]:2"]).expect("two addresses");
        assert_eq!(two.web.listen, [":1", "[::1]:2"]);
        assert_eq!(
            settings(&["--interval=200ms"]).expect("it is one").schedule.interval,
            Duration::from_millis(200)
        );
    }
}
