//! What is fuzzed: parsers of everything that other programs and users write. `fuzz/` runs the targets with libFuzzer, and
//! the tests of this crate run them for a moment each.

#![expect(
    clippy::disallowed_methods,
    clippy::duration_suboptimal_units,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    reason = "tests"
)]

mod peers;
mod texts;
mod trees;

/// Parses an input, and panics if a property does not hold.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 17] = [
    ("cgroup", texts::cgroup),
    ("stat", texts::stat),
    ("status", texts::status),
    ("command", texts::command),
    ("locks", texts::locks),
    ("kernel_log", texts::kernel_log),
    ("mps", texts::mps),
    ("pod_resources", texts::pod_resources),
    ("sizes", texts::sizes),
    ("labels", texts::labels),
    ("ledger", trees::ledger),
    ("stream", trees::stream),
    ("rules", trees::rules),
    ("lease", trees::lease),
    ("web", peers::web),
    ("redis", peers::redis),
    ("prometheus", peers::prometheus),
];
