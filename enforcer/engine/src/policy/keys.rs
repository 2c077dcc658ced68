//! Every key of a rules file except those of conditions, with its type and purpose. Parser and schema are
//! generated from these tables.

use super::{Mode, Order, Severity, Signal};
use crate::Kind;

/// A map of known keys.
#[derive(Debug)]
pub(super) struct KeyTable {
    /// Name of such a map for messages: `a rule`.
    pub(super) what: &'static str,
    /// Keys.
    pub(super) keys: &'static [Key],
}

/// A key of a map.
#[derive(Debug)]
pub(super) struct Key {
    /// Name of the key.
    pub(super) name: &'static str,
    /// Whether the key is required.
    pub(super) need: Need,
    /// Type of its value.
    pub(super) shape: Shape,
    /// Purpose.
    pub(super) help: &'static str,
}

/// Whether a key is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Required.
    Must,
    /// Optional.
    May,
}

impl Key {
    /// Returns purpose and type for messages.
    pub(super) fn explained(&self) -> String {
        let mut letters = self.help.trim_end_matches('.').chars();
        let first = letters.next().map(|letter| letter.to_ascii_lowercase());
        let help: String = first.into_iter().chain(letters).collect();
        let example = match self.shape {
            Shape::Version => ", `version: 1`".to_owned(),
            Shape::Share => ", such as `90%`".to_owned(),
            Shape::Word(words) => format!(": one of {}", words().join(", ")),
            Shape::Span => ", such as `30m` or `{samples: 60}`".to_owned(),
            Shape::Condition => ", such as `{gpu_util: {max: 1%}, cpu_util: {max: 5%}}`".to_owned(),
            Shape::List(Shape::Step) => ", such as `[{flag: warning}]`".to_owned(),
            _ => String::new(),
        };
        help + &example
    }
}

/// Type of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// The number 1.
    Version,
    /// `true` or `false`.
    Flag,
    /// Only `true`.
    True,
    /// A number without a unit.
    Count,
    /// `90%`.
    Share,
    /// Any text.
    Text,
    /// The name of a rule, a condition or a channel.
    Name,
    /// `30m`.
    Time,
    /// `30m` or `{samples: 60}`.
    Span,
    /// `3`, `30m` or `{samples: 3}`.
    Samples,
    /// `2026-12-31`.
    Date,
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// A map of known keys.
    Map(&'static KeyTable),
    /// A map with exactly one of these keys.
    OneOf(&'static KeyTable),
    /// A map from names to values.
    Named(&'static Shape),
    /// A list.
    List(&'static Shape),
    /// A list, or a single item.
    Many(&'static Shape),
    /// The absolute path of a program, and its arguments.
    Program,
    /// A condition.
    Condition,
    /// Selectors, combined by OR.
    Selectors,
    /// A condition with a reason and an end date.
    Exception,
    /// A step: one action and its time.
    Step,
}

use Need::{May, Must};

const fn key(name: &'static str, need: Need, shape: Shape, help: &'static str) -> Key {
    Key { name, need, shape, help }
}

fn modes() -> Vec<&'static str> {
    Mode::ALL.map(Mode::name).to_vec()
}

fn kinds() -> Vec<&'static str> {
    Kind::ALL.map(Kind::name).to_vec()
}

fn orders() -> Vec<&'static str> {
    Order::ALL.map(Order::name).to_vec()
}

fn severities() -> Vec<&'static str> {
    Severity::ALL.map(Severity::name).to_vec()
}

fn signals() -> Vec<&'static str> {
    let names = SIGNALS.iter().map(|signal| signal.name);
    names.flat_map(|name| std::iter::once(name).chain(name.strip_prefix("SIG"))).collect()
}

/// Keys of the file.
pub(super) static FILE: KeyTable = KeyTable {
    what: "a policy",
    keys: &[
        key("version", Must, Shape::Version, "Version of the file format."),
        key(
            "mode",
            May,
            Shape::Word(modes),
            "Mode of rules without their own `mode`. In dry-run mode, a rule does everything except the action. Default: dry-run.",
        ),
        key(
            "interval",
            May,
            Shape::Time,
            "Sampling interval that this file was written for. With another interval, destructive steps are withheld.",
        ),
        key("defaults", May, Shape::Map(&DEFAULTS), "Defaults for keys that a rule does not set."),
        key("limits", May, Shape::Map(&LIMITS), "Limits of destructive actions."),
        key(
            "allow_root",
            May,
            Shape::Flag,
            "If true, root's processes outside containers are not protected. Default: false.",
        ),
        key(
            "protect",
            May,
            Shape::Selectors,
            "Targets that match one of these selectors are protected from every rule, in addition to the built-in list. Alternatively, a list of entries as in `except`, each with a reason and, optionally, an end date.",
        ),
        key("conditions", May, Shape::Named(&Shape::Condition), "Named conditions, for `use`."),
        key(
            "notify",
            May,
            Shape::Named(&Shape::OneOf(&CHANNEL)),
            "Notification channels by name, for `notify` steps.",
        ),
        key("leases", May, Shape::Map(&LEASES), "The lease pool that this node's agent maintains."),
        key("rules", Must, Shape::List(&Shape::Map(&RULE)), "The rules; at least one is required."),
    ],
};

/// `defaults`.
pub(super) static DEFAULTS: KeyTable = KeyTable {
    what: "`defaults`",
    keys: &[
        key(
            "max_gap",
            May,
            Shape::Count,
            "Number of consecutive unknown samples that a streak survives; with more, it restarts. Default: 2.",
        ),
        key(
            "startup_grace",
            May,
            Shape::Time,
            "Targets younger than this are skipped, including leases. Default: 10m.",
        ),
        key(
            "clear_after",
            May,
            Shape::Samples,
            "Number of consecutive samples that are not true after which a flag clears. Default: 3.",
        ),
        key("grace", May, Shape::Time, "Time between SIGTERM and SIGKILL. Default: 60s."),
        key(
            "cooldown",
            May,
            Shape::Time,
            "After an action, destructive steps of the next match of the same target are withheld for this time. Default: 30m.",
        ),
    ],
};

/// `leases`.
pub(super) static LEASES: KeyTable = KeyTable {
    what: "`leases`",
    keys: &[
        key(
            "redis",
            May,
            Shape::Text,
            "URL of the Redis server: `redis://HOST:PORT/DB` or `redis+unix:///PATH`.",
        ),
        key(
            "redis_file",
            May,
            Shape::Text,
            "Absolute path of a file whose first line is the URL. Use it for a URL with a password.",
        ),
        key(
            "prefix",
            May,
            Shape::Text,
            "Prefix of the pool's Redis keys, the same as --redis-prefix in GPU.py. Default: GPU.",
        ),
        key(
            "reap",
            May,
            Shape::Flag,
            "If true, leases whose processes on this host have exited are released at once, or quarantined while the GPU is in use. Default: true.",
        ),
        key(
            "legacy_idle_grace",
            May,
            Shape::Time,
            "A GPU that was taken with GPU.py is freed once the process that took it has exited and no process has been on the GPU for this time. Without this key, such a GPU is not freed.",
        ),
        key(
            "lost_after",
            May,
            Shape::Time,
            "A GPU is returned to the pool after it has been unused, and recorded neither as idle nor as taken, for this time. Default: 30s.",
        ),
    ],
};

/// `limits`.
pub(super) static LIMITS: KeyTable = KeyTable {
    what: "`limits`",
    keys: &[
        key(
            "per_gpu_hour",
            May,
            Shape::Count,
            "Maximum number of actions per hour that free the same GPU. Default: 2.",
        ),
        key(
            "per_user_hour",
            May,
            Shape::Count,
            "Maximum number of actions per hour against one user. Default: 3.",
        ),
        key(
            "per_node_hour",
            May,
            Shape::Count,
            "Maximum number of actions per hour on this node. Default: 6.",
        ),
        key(
            "max_processes",
            May,
            Shape::Count,
            "Actions against a workload with more processes than this are refused. Default: 512.",
        ),
        key(
            "mass_share",
            May,
            Shape::Share,
            "The mass breaker opens if this share of all workloads matches at once and no other workload was observed busy within `for`. Default: 90%.",
        ),
        key(
            "mass_min",
            May,
            Shape::Count,
            "With fewer workloads on the node, the mass breaker does not open. Default: 4.",
        ),
        key(
            "breaker_reset",
            May,
            Shape::Time,
            "A breaker that opened because of failures or unknown targets closes once the cause has been absent for this time. Default: 1h.",
        ),
    ],
};

/// Keys of a channel.
pub(super) static CHANNEL: KeyTable = KeyTable {
    what: "a channel",
    keys: &[
        key("tty", May, Shape::True, "The owner's terminals."),
        key("webhook", May, Shape::OneOf(&WEBHOOK), "An HTTP POST request with JSON."),
        key(
            "exec",
            May,
            Shape::Program,
            "A program with its absolute path, started without a shell. It receives the notification as JSON on standard input.",
        ),
    ],
};

/// Keys of a webhook.
pub(super) static WEBHOOK: KeyTable = KeyTable {
    what: "a webhook",
    keys: &[
        key("url", May, Shape::Text, "URL. If it contains a secret, use `url_file`."),
        key(
            "url_file",
            May,
            Shape::Text,
            "Absolute path of a file whose first line is the URL. The file is read for each notification.",
        ),
    ],
};

/// Keys of a rule.
pub(super) static RULE: KeyTable = KeyTable {
    what: "a rule",
    keys: &[
        key("name", Must, Shape::Name, "Unique name, used in metrics and the audit log."),
        key("mode", May, Shape::Word(modes), "Whether the rule acts. Default: the file's `mode`."),
        key("target", Must, Shape::Word(kinds), "Kind of target that the rule matches."),
        key("select", May, Shape::Condition, "Only targets that match this condition."),
        key("except", May, Shape::List(&Shape::Exception), "Targets that are exempt from this rule."),
        key("when", Must, Shape::Condition, "Condition that must be true."),
        key("for", Must, Shape::Span, "How long the condition must be true."),
        key(
            "max_gap",
            May,
            Shape::Count,
            "Number of consecutive unknown samples that a streak survives; with more, it restarts.",
        ),
        key("startup_grace", May, Shape::Time, "Targets younger than this are skipped, including leases."),
        key(
            "clear_after",
            May,
            Shape::Samples,
            "Number of consecutive samples that are not true after which a flag clears.",
        ),
        key(
            "cooldown",
            May,
            Shape::Time,
            "After an action, destructive steps of the next match of the same target are withheld for this time.",
        ),
        key(
            "pick",
            May,
            Shape::Map(&PICK),
            "For `target: gpu`: which of the GPU's holders the steps apply to.",
        ),
        key("then", Must, Shape::List(&Shape::Step), "The steps in order; at least one is required."),
    ],
};

/// `pick`.
pub(super) static PICK: KeyTable = KeyTable {
    what: "`pick`",
    keys: &[
        key("from", Must, Shape::Condition, "Condition that a workload must meet to be a candidate."),
        key("idle_for", Must, Shape::Span, "How long a candidate must have met `from`."),
        key(
            "order",
            May,
            Shape::List(&Shape::Word(orders)),
            "Criteria by which a candidate is picked. The first criterion in which the candidates differ decides. lowest_priority compares the priorities of their leases. Default: lowest_priority, smallest_sufficient, longest_idle.",
        ),
    ],
};

/// Keys of an exception besides its condition.
pub(super) static EXCEPTION: KeyTable = KeyTable {
    what: "an exception",
    keys: &[
        key("until", May, Shape::Date, "Last day of the exception, in UTC."),
        key(
            "reason",
            Must,
            Shape::Text,
            "Reason for the exception, shown in the audit log and by `explain`.",
        ),
    ],
};

/// `terminate`.
pub(super) static TERMINATE: KeyTable = KeyTable {
    what: "`terminate`",
    keys: &[
        key("grace", May, Shape::Time, "Time between SIGTERM and SIGKILL."),
        key(
            "requires_notice",
            May,
            Shape::Flag,
            "If true, this step and each `signal` step before it are held until at least one channel has delivered a notification of this match. Default: false.",
        ),
    ],
};

/// `release_lease` and `shutdown_mps`.
pub(super) static NOTHING: KeyTable = KeyTable { what: "this action", keys: &[] };

/// `{samples: 60}`.
pub(super) static SAMPLES: KeyTable =
    KeyTable { what: "a span", keys: &[key("samples", Must, Shape::Count, "Number of samples.")] };

/// Keys of a step: `after`, and one action.
pub(super) static STEP: KeyTable = KeyTable {
    what: "a step",
    keys: &[
        key("after", May, Shape::Span, "Delay after the match, counted in true samples. Default: no delay."),
        key(
            "flag",
            May,
            Shape::Word(severities),
            "Raise a flag, which is shown as a metric and in the audit log until it clears.",
        ),
        key("notify", May, Shape::Many(&Shape::Name), "Send a notification on these channels."),
        key("signal", May, Shape::Word(signals), "Send a signal to every process of the target."),
        key(
            "terminate",
            May,
            Shape::Map(&TERMINATE),
            "Send SIGTERM, after the grace period send SIGKILL, then verify that the processes have exited and their memory was released.",
        ),
        key(
            "release_lease",
            May,
            Shape::Map(&NOTHING),
            "Release the lease, if it has not changed meanwhile (compare-and-delete).",
        ),
        key(
            "shutdown_mps",
            May,
            Shape::Map(&NOTHING),
            "Shut the MPS server down through its control daemon, only if it has no clients.",
        ),
        key(
            "exec",
            May,
            Shape::Program,
            "Run a program with its absolute path, without a shell. It receives the rule, the target and the observed values as JSON on standard input.",
        ),
    ],
};

const fn signal(name: &'static str, number: i32) -> Signal {
    Signal { number, name }
}

/// Signals that request something of a process. Signals that end or stop it at once, or report a crash, are
/// left out.
pub(super) static SIGNALS: [Signal; 13] = [
    signal("SIGHUP", libc::SIGHUP),
    signal("SIGINT", libc::SIGINT),
    signal("SIGQUIT", libc::SIGQUIT),
    signal("SIGUSR1", libc::SIGUSR1),
    signal("SIGUSR2", libc::SIGUSR2),
    signal("SIGALRM", libc::SIGALRM),
    signal("SIGTERM", libc::SIGTERM),
    signal("SIGCONT", libc::SIGCONT),
    signal("SIGURG", libc::SIGURG),
    signal("SIGXCPU", libc::SIGXCPU),
    signal("SIGVTALRM", libc::SIGVTALRM),
    signal("SIGWINCH", libc::SIGWINCH),
    signal("SIGPWR", libc::SIGPWR),
];
