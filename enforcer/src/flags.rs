//! Command-line flags as they are parsed. `settings` validates them.

use std::path::PathBuf;

use bailiff_http::hosts::HostFlags;
use bailiff_lifecycle::logs;
use bailiff_lifecycle::node::NodeFlags;
use bailiff_lifecycle::permissions::PermissionFlags;
use clap::{Args, Parser, Subcommand};

/// Default path of the control socket.
const CONTROL: &str = "/run/bailiff/enforcer/control.sock";

/// Apply rules to GPU processes: flag, notify, terminate, verify.
///
/// Rules run in dry-run mode unless the rules file sets `mode: enforce`. A condition that depends on missing
/// data is unknown, and a rule does not act on an unknown condition.
#[derive(Debug, Parser)]
#[command(name = "bailiff-enforcer", version, after_help = EXAMPLES)]
pub struct Flags {
    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon
    Run(Box<Run>),
    /// Check a rules file and print every fault with line and column
    Check(Check),
    /// Test rules against given observations and expected steps
    Test(Test),
    /// Explain why a rule acts or does not act on a process
    Explain(Explain),
    /// Show rules, flagged targets, pending steps, past actions and holds
    #[command(after_help = STATUS)]
    Status(Status),
    /// Withhold all destructive steps until resume
    Pause(Pause),
    /// End a pause, and close open breakers
    #[command(after_help = RESUME)]
    Resume(Control),
    /// Reload the rules file and print the outcome
    #[command(after_help = RELOAD)]
    Reload(Control),
    /// Print the JSON Schema of the rules, for editors
    #[command(after_help = SCHEMA)]
    Schema,
    /// Simulate rules on a recording made by bailiff-exporter --record
    Replay(Replay),
    /// Simulate rules on data from Prometheus
    Backtest(Backtest),
    /// Send signals and read /proc for the daemon that started this process
    #[command(hide = true)]
    PrivilegedProcess {
        /// Mount point of the host's /proc.
        procfs: PathBuf,
        /// Prefix of the paths of GPU device files.
        devices: String,
    },
}

/// Run the daemon.
///
/// Evaluates all rules on every snapshot from the exporter. Before the daemon sends a signal, it checks in
/// /proc that the process still has the same start time, owner and cgroup. It reloads the rules on SIGHUP and
/// when the file changes. While the file is invalid, the previous rules stay in force and all destructive
/// steps are withheld.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, args_override_self = true)]
pub struct Run {
    /// Rules file. The daemon does not start if it is invalid.
    #[arg(value_name = "FILE", default_value = "/etc/bailiff/rules.yaml")]
    pub rules: PathBuf,
    /// Permissions of the rules, the programs in them, and the web config.
    #[command(flatten)]
    pub permissions: PermissionFlags,
    /// Socket that the exporter creates with --stream. It is trusted only if the process that listens on it
    /// runs as the owner of the socket, and the owner is root, the user of this program, or a user given by
    /// --stream.user.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff/exporter/stream.sock")]
    pub stream: PathBuf,
    /// User that the exporter runs as, by name or UID; may be repeated.
    #[arg(long = "stream.user", value_name = "USER")]
    pub stream_user: Vec<String>,
    /// Put all rules in dry-run mode: the daemon records actions but does not carry them out.
    #[arg(long)]
    pub dry_run: bool,
    /// Address to listen on, HOST:PORT; may be repeated; empty to disable HTTP. The default is loopback,
    /// because the pages name users and their programs.
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = "127.0.0.1:9837")]
    pub listen: Vec<String>,
    /// Web config (docs/web-config.md): TLS, client certificates, basic authentication and rate limit.
    /// Changes take effect at once. Default: plain HTTP without authentication.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Names of the server.
    #[command(flatten)]
    pub hosts: HostFlags,
    /// Enable reloading by POST to /-/reload. Without this flag, HTTP is read-only.
    #[arg(long = "web.enable-lifecycle")]
    pub lifecycle: bool,
    /// Unix socket for the commands status, explain, pause, resume and reload; owner and group may connect.
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
    /// Directory for state that survives a restart: budgets, cooldowns, breakers, streaks.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/bailiff")]
    pub state: PathBuf,
    /// Audit log, in JSON Lines format. While it cannot be written, all destructive steps are withheld.
    #[arg(long = "audit", value_name = "FILE", default_value = "/var/log/bailiff/audit.jsonl")]
    pub audit: PathBuf,
    /// Size at which the audit log is rotated, such as 64MiB.
    #[arg(long = "audit.max-size", value_name = "SIZE", default_value = "64MiB")]
    pub audit_max_size: String,
    /// Number of rotated audit logs to keep.
    #[arg(long = "audit.keep", value_name = "N", default_value = "5")]
    pub audit_keep: u32,
    /// Mount point of the host's /proc.
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    pub procfs: PathBuf,
    /// Path prefix of GPU device files.
    #[arg(long, value_name = "PREFIX", default_value = "/dev/nvidia")]
    pub devices: String,
    /// Treat the PID namespace of --procfs as the host's. Without this flag, all destructive steps are withheld if
    /// this program does not run in the host's PID namespace.
    #[arg(long)]
    pub trust_pid_namespace: bool,
    /// Time after a kill within which processes must exit and their memory must be released.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub verify: String,
    /// Directory in which Slurm's hooks save the GPUs of jobs, for the step `cancel_job`.
    #[arg(long = "slurm.dir", value_name = "PATH", default_value = "/run/bailiff/slurm")]
    pub slurm_dir: PathBuf,
    /// Name of this node.
    #[command(flatten)]
    pub node: NodeFlags,
    /// Log level and format.
    #[command(flatten)]
    pub logs: logs::LogFlags,
}

/// Check rules files as the daemon would.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer check /etc/bailiff/rules.yaml
  bailiff-enforcer check rules.yaml --against http://127.0.0.1:9837   also compare the node's policy
  kubectl get configmap rules -o jsonpath='{.data.rules\\.yaml}' | bailiff-enforcer check -

Exit codes: 0: all files are valid; 1: the node runs another policy or does not respond;
64: a file is invalid.")]
pub struct Check {
    /// Rules files; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print each file's errors and warnings as JSON.
    #[arg(long, conflicts_with = "against")]
    pub json: bool,
    /// Also check that the enforcer at this address runs the same policy.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// User name for that enforcer, if its web config requires one.
    #[arg(long, value_name = "NAME", requires_all = ["against", "password_file"])]
    pub user: Option<String>,
    /// File with the password of that user.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

/// Run rule tests.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer test tests/*.yaml

Exit codes: 0: all tests passed; 1: a test failed; 64: a file is invalid.")]
pub struct Test {
    /// Test files.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print all steps that were taken, as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Explain why a rule acts or does not act.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer explain --pid 4100                all rules for this process
  bailiff-enforcer explain --pid 4100 --rule idle    every check of one rule, with its values
  bailiff-enforcer explain --rule idle               all targets of the rule

Exit codes: 0: success, even if there is no result; 1: the daemon does not respond, or has not
evaluated a snapshot yet; 64: invalid flags.")]
pub struct Explain {
    /// PID of the process to explain.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Name of the rule to explain.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Control socket of the daemon.
    #[command(flatten)]
    pub control: Control,
}

/// Show the status of the daemon.
#[derive(Debug, Args)]
pub struct Status {
    /// Print all data as JSON. The tables show only a part of it.
    #[arg(long)]
    pub json: bool,
    /// Control socket of the daemon.
    #[command(flatten)]
    pub control: Control,
}

/// Withhold all destructive steps until resume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer pause                             until resume, also across restarts
  bailiff-enforcer pause --for 2h --reason \"driver upgrade\"

Requires root, or membership in the group of the daemon's socket.

Exit codes: 0: paused; 1: the daemon does not respond, or refuses; 64: invalid flags.")]
pub struct Pause {
    /// Duration of the pause, such as 1h. Default: until `resume`.
    #[arg(long = "for", value_name = "DURATION")]
    pub time: Option<String>,
    /// Reason, shown by status and recorded in the audit log.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Control socket of the daemon.
    #[command(flatten)]
    pub control: Control,
}

/// Control socket of the daemon.
#[derive(Debug, Args)]
pub struct Control {
    /// Control socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
}

/// Simulate rules on a recording.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-exporter --record=/var/tmp/gpus.ndjson     record for a day, then:
  bailiff-enforcer replay /var/tmp/gpus.ndjson --rules rules.yaml

Exit codes: 0: success, whatever the rules would do; 1: a file cannot be read or is not a
recording; 64: invalid flags or rules.")]
pub struct Replay {
    /// Recording made by bailiff-exporter --record, one snapshot per line.
    #[arg(value_name = "RECORD")]
    pub record: PathBuf,
    /// Rules file.
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// Assume that an administrator runs `resume` this long after a breaker opens, such as 1h. Default: never.
    #[arg(long, value_name = "DURATION")]
    pub resume_after: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Simulate rules on data from Prometheus.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 --from 7d --to 0s
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 \\
      --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 --from 7d \\
      --assume-children-idle         for rules that use cpu_util

Gaps and missing data count as unknown and are reported.

Exit codes: 0: success, whatever the rules would do; 1: a file cannot be read, or Prometheus does
not respond or has no data from an exporter; 64: invalid flags or rules.")]
pub struct Backtest {
    /// Rules file.
    #[arg(value_name = "FILE")]
    pub rules: PathBuf,
    /// Address of the Prometheus server.
    #[arg(long, value_name = "URL")]
    pub prometheus: String,
    /// Start of the period: a time such as 2026-03-01T00:00:00Z, or an age such as 7d.
    #[arg(long, value_name = "TIME")]
    pub from: String,
    /// End of the period: a time or an age.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub to: String,
    /// Use only the exporter with this `instance` label. Default: all, one after another.
    #[arg(long, value_name = "INSTANCE")]
    pub instance: Option<String>,
    /// Assume that child processes without GPU memory are idle, because Prometheus has no CPU time for them.
    /// Without this, `cpu_util` is unknown, and rules that use it never match.
    #[arg(long)]
    pub assume_children_idle: bool,
    /// File with a bearer token for Prometheus.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Scrape interval, such as 15s. Default: measured from the data.
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<String>,
    /// Time range of each query.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub chunk: String,
    /// Assume that an administrator runs `resume` this long after a breaker opens, such as 1h. Default: never.
    #[arg(long, value_name = "DURATION")]
    pub resume_after: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "Examples:
  bailiff-enforcer check rules.yaml                  check a rules file
  bailiff-enforcer run rules.yaml --dry-run          flags and notifications only
  bailiff-enforcer status                            show rules, pending steps and holds
  bailiff-enforcer explain --pid 4100                why each rule does or does not match a process
  bailiff-enforcer pause --for 1h                    withhold all destructive steps

Exit codes: 0: success; 1: failure; 64: invalid flags or an invalid file.";

const RUN_EXAMPLES: &str = "Examples:
  bailiff-exporter --stream=/run/bailiff/exporter/stream.sock  start the exporter with its stream
  bailiff-enforcer run                               use /etc/bailiff/rules.yaml
  bailiff-enforcer run rules.yaml --dry-run          flags and notifications only
  bailiff-enforcer run --web.listen-address=         without HTTP

Exit codes: 0: stopped by a signal; 1: failure; 64: invalid flags or an invalid file.";

const STATUS: &str = "Examples:
  bailiff-enforcer status
  bailiff-enforcer status --json | jq '.rules[] | {name, mode}'

Exit codes: 0: success; 1: the daemon does not respond; 64: invalid flags.";

const RESUME: &str = "Examples:
  bailiff-enforcer resume

Requires root, or membership in the group of the daemon's socket.

Exit codes: 0: resumed; 1: the daemon does not respond, or refuses; 64: invalid flags.";

const RELOAD: &str = "Examples:
  bailiff-enforcer check /etc/bailiff/rules.yaml && bailiff-enforcer reload

Requires root, or membership in the group of the daemon's socket.

Exit codes: 0: the file is in force; 1: the daemon does not respond, or refuses; 64: the file is
invalid, and the previous rules stay in force.";

const SCHEMA: &str = "Examples:
  bailiff-enforcer schema > rules.schema.json

Editors use the schema if the rules file begins with
`# yaml-language-server: $schema=rules.schema.json`.

Exit codes: 0: success; 1: the schema cannot be written; 64: invalid flags.";
