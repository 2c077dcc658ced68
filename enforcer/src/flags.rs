//! The command line, as it is written. What it means is decided in `settings`.

use std::path::PathBuf;

use bailiff_lifecycle::logs;
use bailiff_lifecycle::node::NodeFlags;
use clap::{Args, Parser, Subcommand};

/// Default path of the control socket.
const CONTROL: &str = "/run/bailiff/enforcer.sock";

/// Judges what bailiff-exporter saw by rules that you write; warns, ends, verifies, records.
///
/// A rule is in dry-run mode until its file says `mode: enforce`: see first what it would do. What was not observed is
/// unknown, and nothing is ever done to anybody for what is unknown.
#[derive(Debug, Parser)]
#[command(name = "bailiff-enforcer", version, after_help = EXAMPLES)]
pub struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the daemon
    Run(Box<Run>),
    /// Check a rules file and print every fault with line and column
    Check(Check),
    /// Runs tests of rules: series of observations, and what should come of them
    Test(Test),
    /// Explain why a rule does, or does not, act on a process
    Explain(Explain),
    /// Show rules, flags, coming steps, completed actions and holds
    #[command(after_help = STATUS)]
    Status(Status),
    /// Withholds everything destructive: the emergency brake. Flags and notices go on
    Pause(Pause),
    /// Ends a pause, and closes breakers that are open
    #[command(after_help = RESUME)]
    Resume(Control),
    /// Reload the rules file and print the outcome
    #[command(after_help = RELOAD)]
    Reload(Control),
    /// Prints the JSON Schema of the rules, for editors
    #[command(after_help = SCHEMA)]
    Schema,
    /// Simulate rules over a recording of the exporter (--record)
    Replay(Replay),
    /// Simulate rules over the data in Prometheus
    Backtest(Backtest),
    /// Continues what its parent had stopped, once that is gone
    #[command(hide = true)]
    Watchdog,
}

/// Run the daemon.
///
/// Reads the exporter's stream and evaluates every snapshot by all rules. Before any signal it reads /proc itself:
/// unless start time, owner and cgroup are unchanged, nothing is done. SIGHUP or a change of the file reloads the rules;
/// while the file is invalid, the previous rules stay in force and all destructive steps are withheld.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, args_override_self = true)]
pub struct Run {
    /// The rules file; an invalid one is refused at start.
    #[arg(value_name = "FILE", default_value = "/etc/bailiff/rules.yaml")]
    pub rules: PathBuf,
    /// The exporter's stream: the socket of its --stream. It is believed only where its owner listens on it, and that is
    /// root, the user of this program, or one that --stream.user names.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff/stream.sock")]
    pub stream: PathBuf,
    /// The user that the exporter runs as, by name or number; may be given several times.
    #[arg(long = "stream.user", value_name = "USER")]
    pub stream_user: Vec<String>,
    /// Dry run for all rules: everything but the action is done and recorded.
    #[arg(long)]
    pub dry_run: bool,
    /// Address to listen on, HOST:PORT; may be repeated, and empty for none. The default is loopback, because the pages
    /// name users and their programs.
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = "127.0.0.1:9837")]
    pub listen: Vec<String>,
    /// TLS, client certificates, basic authentication and rate limit, in the format of Prometheus' exporter toolkit
    /// (docs/web-config.md). Changes take effect at once. Default: plain HTTP without authentication.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Lets a POST to /-/reload reload the rules. Without this, HTTP only reads.
    #[arg(long = "web.enable-lifecycle")]
    pub lifecycle: bool,
    /// Unix socket for the commands status, explain, pause, resume and reload; owner and group may ask.
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
    /// Directory of what must outlive a restart: budgets, cooldowns, breakers, streaks.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/bailiff")]
    pub state: PathBuf,
    /// The audit log, an object of JSON a line. While it cannot be written, nothing destructive is done.
    #[arg(long = "audit", value_name = "FILE", default_value = "/var/log/bailiff/audit.jsonl")]
    pub audit: PathBuf,
    /// Size at which the audit log is set aside and begun again, such as 64MiB.
    #[arg(long = "audit.max-size", value_name = "SIZE", default_value = "64MiB")]
    pub audit_max_size: String,
    /// How many audit logs that were set aside are kept.
    #[arg(long = "audit.keep", value_name = "N", default_value = "5")]
    pub audit_keep: u32,
    /// Where the host's /proc is mounted.
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    pub procfs: PathBuf,
    /// How paths of GPU device files begin.
    #[arg(long, value_name = "PREFIX", default_value = "/dev/nvidia")]
    pub devices: String,
    /// Treat the PID namespace of --procfs as the host's. Without this, all rules are in dry-run mode if this program itself
    /// does not run in the host's PID namespace.
    #[arg(long)]
    pub trust_pid_namespace: bool,
    /// How long after a kill processes and memory may take to be gone.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub verify: String,
    /// What this node is called.
    #[command(flatten)]
    pub node: NodeFlags,
    /// What to log, and how.
    #[command(flatten)]
    pub logs: logs::LogFlags,
}

/// Reads rules as the daemon would.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer check /etc/bailiff/rules.yaml
  bailiff-enforcer check rules.yaml --against http://127.0.0.1:9837   does the node run just this?
  kubectl get configmap rules -o jsonpath='{.data.rules\\.yaml}' | bailiff-enforcer check -

Exit codes: 0 all are good, 1 the node runs another policy or does not answer, 64 a file makes no
sense.")]
pub struct Check {
    /// Files of rules; - is the standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print each file's errors and warnings as JSON.
    #[arg(long, conflicts_with = "against")]
    pub json: bool,
    /// An enforcer's address: says whether it runs just this policy.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// The name under which that enforcer is asked, where its web config wants one.
    #[arg(long, value_name = "NAME", requires_all = ["against", "password_file"])]
    pub user: Option<String>,
    /// A file with the password of that name.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

/// Runs tests of rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer test tests/*.yaml

Exit codes: 0 all passed, 1 a test failed, 64 invalid file.")]
pub struct Test {
    /// Files of tests.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Prints JSON: every step that did happen.
    #[arg(long)]
    pub json: bool,
}

/// Explain why a rule does, or does not, act.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer explain --pid 4100                every rule that could be about it
  bailiff-enforcer explain --pid 4100 --rule idle    every gate, value and limit of one
  bailiff-enforcer explain --rule idle               all that the rule is about

Exit codes: 0 done, even without a result, 1 the daemon does not answer, or has evaluated
nothing yet, 64 invalid flags.")]
pub struct Explain {
    /// About this process.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// By this rule.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
    /// Where the daemon listens.
    #[command(flatten)]
    pub control: Control,
}

/// Show the status of the daemon.
#[derive(Debug, Args)]
pub struct Status {
    /// Prints JSON: everything, where the tables show the most important.
    #[arg(long)]
    pub json: bool,
    /// Where the daemon listens.
    #[command(flatten)]
    pub control: Control,
}

/// Withholds everything destructive.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer pause                             until resume, restarts included
  bailiff-enforcer pause --for 2h --reason \"driver upgrade\"

It needs root, or the group of the daemon's socket.

Exit codes: 0 paused, 1 the daemon does not answer, or refuses, 64 invalid flags.")]
pub struct Pause {
    /// For so long, such as 1h; without it until `resume`.
    #[arg(long = "for", value_name = "DURATION")]
    pub time: Option<String>,
    /// Why; it is shown and recorded.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Where the daemon listens.
    #[command(flatten)]
    pub control: Control,
}

/// Where the daemon listens.
#[derive(Debug, Args)]
pub struct Control {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
}

/// Simulate rules over a recording.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-exporter --record=/var/tmp/gpus.ndjson     a day later:
  bailiff-enforcer replay /var/tmp/gpus.ndjson --rules rules.yaml

Exit codes: 0 done, whatever the rules would do, 1 a file cannot be read or is not a record, 64
invalid flags or rules.")]
pub struct Replay {
    /// The record: a snapshot a line.
    #[arg(value_name = "RECORD")]
    pub record: PathBuf,
    /// The rules.
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// Once a breaker has opened, an admin is taken to resume after so long, such as 1h; without it, never.
    #[arg(long, value_name = "DURATION")]
    pub resume_after: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// Simulate rules over the data in Prometheus.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 --from 7d --to 0s
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 \\
      --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z
  bailiff-enforcer backtest rules.yaml --prometheus http://prometheus:9090 --from 7d \\
      --assume-children-idle         where rules ask for cpu_util

Gaps are unknown, and so is what Prometheus does not hold: both are reported.

Exit codes: 0 done, whatever the rules would do, 1 a file cannot be read, or Prometheus does not
answer or holds nothing of an exporter, 64 invalid flags or rules.")]
pub struct Backtest {
    /// The rules.
    #[arg(value_name = "FILE")]
    pub rules: PathBuf,
    /// The address of Prometheus.
    #[arg(long, value_name = "URL")]
    pub prometheus: String,
    /// The beginning: a time such as 2026-03-01T00:00:00Z, or how long ago, such as 7d.
    #[arg(long, value_name = "TIME")]
    pub from: String,
    /// The end: a time, or how long ago.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub to: String,
    /// Only the exporter with this label `instance`; without it all, one after another.
    #[arg(long, value_name = "INSTANCE")]
    pub instance: Option<String>,
    /// Takes helpers without GPU memory to be idle: Prometheus holds no CPU time of them. Without this, `cpu_util` is
    /// unknown, of processes and workloads, and rules that need it do nothing.
    #[arg(long)]
    pub assume_children_idle: bool,
    /// A file with a bearer token, where Prometheus wants one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The time between two scrapes, such as 15s, where it is not to be measured.
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<String>,
    /// How much is asked for at once.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub chunk: String,
    /// Once a breaker has opened, an admin is taken to resume after so long, such as 1h; without it, never.
    #[arg(long, value_name = "DURATION")]
    pub resume_after: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "Examples:
  bailiff-enforcer check rules.yaml                  before anything else
  bailiff-enforcer run rules.yaml --dry-run            see what the rules would do, without any action
  bailiff-enforcer status                            rules, coming steps, holds
  bailiff-enforcer explain --pid 4100                why it does that, or does not
  bailiff-enforcer pause --for 1h                    the emergency brake

Exit codes: 0 done, 1 failed, 64 invalid flags or file.";

const RUN_EXAMPLES: &str = "Examples:
  bailiff-exporter --stream=/run/bailiff/stream.sock  what it reads
  bailiff-enforcer run                               with the rules of /etc/bailiff/rules.yaml
  bailiff-enforcer run rules.yaml --dry-run            flags and notifications only
  bailiff-enforcer run --web.listen-address=         without pages

Exit codes: 0 stopped by a signal, 1 failed, 64 invalid flags or file.";

const STATUS: &str = "Examples:
  bailiff-enforcer status
  bailiff-enforcer status --json | jq '.rules[] | {name, mode}'

Exit codes: 0 done, 1 the daemon does not answer, 64 invalid flags.";

const RESUME: &str = "Examples:
  bailiff-enforcer resume

It needs root, or the group of the daemon's socket.

Exit codes: 0 resumed, 1 the daemon does not answer, or refuses, 64 invalid flags.";

const RELOAD: &str = "Examples:
  bailiff-enforcer check /etc/bailiff/rules.yaml && bailiff-enforcer reload

It needs root, or the group of the daemon's socket.

Exit codes: 0 the file is in force, 1 the daemon does not answer, or refuses, 64 the file makes no
sense, and what was in force goes on.";

const SCHEMA: &str = "Examples:
  bailiff-enforcer schema > rules.schema.json

An editor uses it where the rules begin with `# yaml-language-server: $schema=rules.schema.json`.

Exit codes: 0 done, 1 it cannot be written, 64 invalid flags.";
