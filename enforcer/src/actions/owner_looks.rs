//! Comparison of an owner of pods with what was read of it before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_snapshot::pod_api::{Owner, Scale};

use crate::clock;

/// For how long an owner and its pods must not change before it is stopped.
const UNCHANGED: Duration = Duration::from_secs(10);
/// What was read longer ago is not compared.
const OLDEST_LOOK: Duration = Duration::from_hours(1);
/// Maximum number of owners that are compared.
const MOST_LOOKS: usize = 1024;

/// Owners that were read, by UID. Someone may have named the owner in a pod just now, and the owner's controller writes the number of
/// its pods a moment later. So what was read must not change for some time.
#[derive(Debug, Default)]
pub(super) struct OwnerLooks(BTreeMap<String, Look>);

/// What was read of an owner at first.
#[derive(Debug, Default)]
struct Look {
    at: Duration,
    /// Number of its pods, and their UIDs. Any annotation changes its version, which is not compared.
    pods: (u64, BTreeSet<String>),
}

impl OwnerLooks {
    /// Compares an owner with what was read of it before. Returns how long it must still not change.
    pub(super) fn compare(&mut self, owner: &Owner, scale: &Scale) -> Option<Duration> {
        let now = clock::since_boot();
        self.0.retain(|_, look| now.saturating_sub(look.at) < OLDEST_LOOK);
        if self.0.len() >= MOST_LOOKS {
            self.0.clear();
        }
        let read = Look { at: now, pods: (scale.pods, scale.own.clone()) };
        let look = self.0.entry(owner.object.uid().to_owned()).or_insert(Look { at: now, ..Look::default() });
        if look.pods != read.pods {
            *look = read;
        }
        Some(UNCHANGED.saturating_sub(now.saturating_sub(look.at))).filter(|left| !left.is_zero())
    }
}
