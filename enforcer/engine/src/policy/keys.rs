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
            Shape::Share => ", as `90%`".to_owned(),
            Shape::Word(words) => format!(": one of {}", words().join(", ")),
            Shape::Span => ", as `30m` or `{samples: 60}`".to_owned(),
            Shape::Condition => ", as `{gpu_util: {max: 1%}, cpu_util: {max: 5%}}`".to_owned(),
            Shape::List(Shape::Step) => ", as `[{flag: warning}]`".to_owned(),
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
        key("version", Must, Shape::Version, "The version of this grammar."),
        key(
            "mode",
            May,
            Shape::Word(modes),
            "For rules without a mode of their own; dry-run does everything but the action. Default: dry-run.",
        ),
        key(
            "interval",
            May,
            Shape::Time,
            "The interval that this file was written for; with another interval destructive steps are held.",
        ),
        key("defaults", May, Shape::Map(&DEFAULTS), "For rules that do not say."),
        key("limits", May, Shape::Map(&LIMITS), "How many destructive actions within an hour."),
        key(
            "allow_root",
            May,
            Shape::Flag,
            "Root's processes outside containers are not protected. Default: false.",
        ),
        key(
            "protect",
            May,
            Shape::Selectors,
            "Targets that match one of these selectors are protected from every rule, besides the built-in list; or a list of entries as in `except`, each with a reason and perhaps an end.",
        ),
        key("conditions", May, Shape::Named(&Shape::Condition), "Named asks, for `use`."),
        key("notify", May, Shape::Named(&Shape::OneOf(&CHANNEL)), "Named channels, for `notify` steps."),
        key("leases", May, Shape::Map(&LEASES), "The lease pool that this node's agent maintains."),
        key("rules", Must, Shape::List(&Shape::Map(&RULE)), "The rules, at least one of them."),
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
            "Samples in a row that may be unknown before a streak restarts. Default: 2.",
        ),
        key(
            "startup_grace",
            May,
            Shape::Time,
            "Targets younger than this are left alone, leases too. Default: 10m.",
        ),
        key("clear_after", May, Shape::Samples, "Samples in a row, not true, that clear a flag. Default: 3."),
        key("grace", May, Shape::Time, "Between TERM and KILL. Default: 60s."),
        key(
            "cooldown",
            May,
            Shape::Time,
            "After a match with a destructive step, the same target's next one waits this long. Default: 30m.",
        ),
    ],
};

/// `leases`.
pub(super) static LEASES: KeyTable = KeyTable {
    what: "`leases`",
    keys: &[
        key("redis", May, Shape::Text, "Redis, as `redis://HOST:PORT/DB` or `redis+unix:///PATH`."),
        key(
            "redis_file",
            May,
            Shape::Text,
            "Full path of a file whose first line is the address; for an address with a password.",
        ),
        key(
            "prefix",
            May,
            Shape::Text,
            "What all keys begin with, as GPU.py's --redis-prefix. Default: GPU.",
        ),
        key(
            "reap",
            May,
            Shape::Flag,
            "Leases of ended processes of this host are freed at once, or quarantined while the GPU is in use. Default: true.",
        ),
        key(
            "legacy_idle_grace",
            May,
            Shape::Time,
            "A GPU that was taken with GPU.py is freed when the process that took it has ended and no process was on the GPU for so long. Without it such a GPU is kept.",
        ),
        key(
            "lost_after",
            May,
            Shape::Time,
            "A GPU that was in no list, without a record and unused for this long is returned to the pool. Default: 30s.",
        ),
    ],
};

/// `limits`.
pub(super) static LIMITS: KeyTable = KeyTable {
    what: "`limits`",
    keys: &[
        key("per_gpu_hour", May, Shape::Count, "Actions that free one GPU. Default: 2."),
        key("per_user_hour", May, Shape::Count, "Actions against one user. Default: 3."),
        key("per_node_hour", May, Shape::Count, "Actions on this node. Default: 6."),
        key(
            "max_processes",
            May,
            Shape::Count,
            "A workload of more processes is never ended as a group. Default: 512.",
        ),
        key(
            "mass_share",
            May,
            Shape::Share,
            "The mass breaker opens where this share of all workloads matches at once and no other was observed busy within `for`. Default: 90%.",
        ),
        key(
            "mass_min",
            May,
            Shape::Count,
            "With fewer workloads on the node the mass breaker does not open. Default: 4.",
        ),
        key(
            "breaker_reset",
            May,
            Shape::Time,
            "A breaker that failures or unknown opened closes after this long without its cause. Default: 1h.",
        ),
    ],
};

/// Keys of a channel.
pub(super) static CHANNEL: KeyTable = KeyTable {
    what: "a channel",
    keys: &[
        key("tty", May, Shape::True, "The owner's terminals."),
        key("webhook", May, Shape::OneOf(&WEBHOOK), "An HTTP POST of JSON."),
        key(
            "exec",
            May,
            Shape::Program,
            "A program by its full path, without a shell; the notice is JSON on its standard input.",
        ),
    ],
};

/// Keys of a webhook.
pub(super) static WEBHOOK: KeyTable = KeyTable {
    what: "a webhook",
    keys: &[
        key("url", May, Shape::Text, "The address; in a file of its own where it is a secret."),
        key(
            "url_file",
            May,
            Shape::Text,
            "Full path of a file whose first line is the address; read again for each notification.",
        ),
    ],
};

/// Keys of a rule.
pub(super) static RULE: KeyTable = KeyTable {
    what: "a rule",
    keys: &[
        key("name", Must, Shape::Name, "Unique; it goes into metrics and the audit log."),
        key("mode", May, Shape::Word(modes), "Whether it acts. Default: the file's `mode`."),
        key("target", Must, Shape::Word(kinds), "What the rule matches."),
        key("select", May, Shape::Condition, "Only these."),
        key("except", May, Shape::List(&Shape::Exception), "Not these."),
        key("when", Must, Shape::Condition, "What must be true."),
        key("for", Must, Shape::Span, "For how long."),
        key("max_gap", May, Shape::Count, "Samples in a row that may be unknown before a streak restarts."),
        key("startup_grace", May, Shape::Time, "Targets younger than this are left alone, leases too."),
        key("clear_after", May, Shape::Samples, "Samples in a row, not true, that clear a flag."),
        key(
            "cooldown",
            May,
            Shape::Time,
            "After a match with a destructive step, the same target's next one waits this long.",
        ),
        key("pick", May, Shape::Map(&PICK), "For `target: gpu`: which of its holders the steps are about."),
        key("then", Must, Shape::List(&Shape::Step), "The steps in order, at least one."),
    ],
};

/// `pick`.
pub(super) static PICK: KeyTable = KeyTable {
    what: "`pick`",
    keys: &[
        key("from", Must, Shape::Condition, "Only workloads of which this is true are candidates."),
        key("idle_for", Must, Shape::Span, "How long a candidate must have been so."),
        key(
            "order",
            May,
            Shape::List(&Shape::Word(orders)),
            "The first that differs decides; a priority is that of a lease. Default: lowest_priority, smallest_sufficient, longest_idle.",
        ),
    ],
};

/// Keys of an exception besides its condition.
pub(super) static EXCEPTION: KeyTable = KeyTable {
    what: "an exception",
    keys: &[
        key("until", May, Shape::Date, "The last day of it, in UTC."),
        key("reason", Must, Shape::Text, "Why; for the audit log and `explain`."),
    ],
};

/// `terminate`.
pub(super) static TERMINATE: KeyTable = KeyTable {
    what: "`terminate`",
    keys: &[
        key("grace", May, Shape::Time, "Between TERM and KILL."),
        key(
            "requires_notice",
            May,
            Shape::Flag,
            "Held until at least one channel has delivered a notice of this match, with each `signal` before it. Default: false.",
        ),
    ],
};

/// `release_lease` and `shutdown_mps`.
pub(super) static NOTHING: KeyTable = KeyTable { what: "this action", keys: &[] };

/// `{samples: 60}`.
pub(super) static SAMPLES: KeyTable =
    KeyTable { what: "a span", keys: &[key("samples", Must, Shape::Count, "How many samples.")] };

/// Keys of a step: `after`, and one action.
pub(super) static STEP: KeyTable = KeyTable {
    what: "a step",
    keys: &[
        key("after", May, Shape::Span, "So long after the match, counted in true samples. Default: at once."),
        key(
            "flag",
            May,
            Shape::Word(severities),
            "A metric and an entry in the audit log, until it is no longer true.",
        ),
        key("notify", May, Shape::Many(&Shape::Name), "A notice on these channels."),
        key("signal", May, Shape::Word(signals), "A signal to every process of the target."),
        key(
            "terminate",
            May,
            Shape::Map(&TERMINATE),
            "SIGTERM, grace, SIGKILL, then verification that process and memory are gone.",
        ),
        key("release_lease", May, Shape::Map(&NOTHING), "Compare-and-delete of a lease."),
        key(
            "shutdown_mps",
            May,
            Shape::Map(&NOTHING),
            "Through the MPS control daemon, and only without clients.",
        ),
        key(
            "exec",
            May,
            Shape::Program,
            "A program by its full path, without a shell; what was found is JSON on its standard input.",
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
