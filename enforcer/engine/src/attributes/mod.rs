//! What a rule may compare: one attribute a file, one line each in [`ALL`]. An attribute reads one value of
//! one target, and knows neither time, names, limits nor actions.

use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

mod age;
mod attached_processes;
mod context;
mod cpu_util;
mod gpu_count;
mod gpu_util;
mod has_lease;
mod heartbeat_age;
mod holder_alive;
mod io_rate;
mod listed_but_gone;
mod mig;
mod mps_clients;
mod mps_status;
mod orphaned;
mod process_count;
mod quota_denied;
pub(crate) mod state;
mod unlisted_processes;
mod vram;
mod vram_free;
mod vram_quota_ratio;
mod vram_share;
mod vram_unaccounted;
mod vram_unreleased;
mod vram_used;

/// Something that can be observed of a target.
#[derive(Debug)]
pub struct Attribute {
    /// Its key in a file.
    pub name: &'static str,
    /// The kinds of target that have it.
    pub of: &'static [Kind],
    /// What it is counted in.
    pub unit: Unit,
    /// What it means, for the schema and the docs.
    pub help: &'static str,
    /// Where it comes from, for `explain`.
    pub source: &'static str,
    /// Reads it; unknown whenever what it rests on was not observed.
    pub read: fn(&Target, &View) -> Value,
}

impl Attribute {
    /// Reads the value of one target; unknown for a kind of target that does not have it.
    pub(crate) fn of_target(&self, target: &Target, view: &View) -> Value {
        if self.of.contains(&target.kind) {
            (self.read)(target, view)
        } else {
            Value::Unknown("this kind of target does not have it")
        }
    }
}

impl PartialEq for Attribute {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every attribute, in the order of the docs.
pub static ALL: &[&Attribute] = &[
    &gpu_util::GPU_UTIL,
    &vram::VRAM,
    &vram_share::VRAM_SHARE,
    &cpu_util::CPU_UTIL,
    &io_rate::IO_RATE,
    &age::AGE,
    &state::STATE,
    &orphaned::ORPHANED,
    &listed_but_gone::LISTED_BUT_GONE,
    &gpu_count::GPU_COUNT,
    &context::CONTEXT,
    &has_lease::HAS_LEASE,
    &vram_quota_ratio::VRAM_QUOTA_RATIO,
    &quota_denied::QUOTA_DENIED,
    &vram_free::VRAM_FREE,
    &vram_used::VRAM_USED,
    &vram_unaccounted::VRAM_UNACCOUNTED,
    &vram_unreleased::VRAM_UNRELEASED,
    &unlisted_processes::UNLISTED_DEVICE_PROCESSES,
    &process_count::PROCESS_COUNT,
    &mig::MIG,
    &holder_alive::HOLDER_ALIVE,
    &heartbeat_age::HEARTBEAT_AGE,
    &attached_processes::ATTACHED_PROCESSES,
    &mps_clients::MPS_CLIENTS,
    &mps_status::MPS_STATUS,
];

pub(crate) use state::runs;

#[expect(clippy::cast_precision_loss, reason = "milliseconds are far below 2^53")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Field;

    #[test]
    fn names_are_unique_and_every_attribute_says_what_it_is() {
        let mut names: Vec<&str> = ALL.iter().map(|attribute| attribute.name).collect();
        names.extend(Field::ALL.map(Field::name));
        names.extend(["use", "all", "any", "not", "until", "reason"]);
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for attribute in ALL {
            assert!(!attribute.of.is_empty(), "{}", attribute.name);
            assert!(attribute.help.ends_with('.') && !attribute.source.is_empty(), "{}", attribute.name);
            if let Unit::Words(words) = attribute.unit {
                assert!((1..=32).contains(&words.len()), "{}: words are bits of a u32", attribute.name);
            }
        }
    }

    #[test]
    fn words_of_state_are_those_of_the_snapshot() {
        use bailiff_snapshot::State;
        for letter in ["R", "S", "D", "T", "t", "I", "Z", "X", "?"] {
            assert!(state::WORDS.contains(&State::of_letter(letter).name()), "{letter}");
        }
        for state in State::ALL {
            assert!(state::WORDS.contains(&state.name()), "{state:?}");
        }
    }
}
