//! The lease data of a report: the lease state of a GPU, and whether a holder has a lease.

use std::time::Duration;

use bailiff_exposition::human::UNKNOWN;
use bailiff_snapshot::lease::Ticket;
use bailiff_snapshot::lease::attribution::Members;
use bailiff_snapshot::{GpuState, Held, Leases, PoolGpu, Truth, wire};
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::figures::span;

/// The lease of a GPU.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseInfo {
    #[serde(rename = "state")]
    pub(crate) gpu_state: GpuState,
    /// The lease id.
    pub(crate) lease: Option<String>,
    /// The user recorded in the lease.
    pub(crate) user: Option<String>,
    /// How the lease was taken: `run`, `acquire`, `compat` and so on.
    pub(crate) mode: Option<String>,
    /// The time since the grant, in milliseconds.
    pub(crate) age_ms: Option<u64>,
    /// Process that holds the lease, or that GPU.py has recorded.
    pub(crate) pid: Option<u32>,
    /// Whether the process in `pid` is running.
    #[serde(default)]
    pub(crate) alive: Truth,
}

impl LeaseInfo {
    fn of(gpu: &PoolGpu, held: Option<&Held>) -> Self {
        let record = gpu.record.as_ref();
        let pid = held.and_then(|held| held.holder).map(|key| key.pid);
        Self {
            gpu_state: gpu.gpu_state,
            lease: gpu.lease.clone(),
            user: held.and_then(|held| held.user.clone()),
            mode: held.and_then(|held| held.mode.clone()),
            age_ms: held.and_then(|held| held.age_ms),
            pid: pid.or_else(|| record.and_then(|record| record.pid)),
            alive: held
                .map_or_else(|| record.map(|record| record.alive).unwrap_or_default(), |held| held.alive),
        }
    }

    /// Returns the user and age of a lease, or the state.
    pub(crate) fn short(&self) -> String {
        let gone = if self.alive == Truth::False { " (process gone)" } else { "" };
        match self.gpu_state {
            GpuState::Leased => {
                let age = self.age_ms.map(|ms| format!(" {}", span(Duration::from_millis(ms))));
                format!("{}{}{gone}", self.user.as_deref().unwrap_or(UNKNOWN), age.unwrap_or_default())
            }
            GpuState::Legacy => {
                let pid = self.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
                format!("{}{pid}{gone}", self.gpu_state.name())
            }
            other => other.name().to_owned(),
        }
    }

    /// Returns the state with the lease's details.
    pub(crate) fn text(&self) -> String {
        let pid = self.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        let gone = if self.alive == Truth::False { " (process gone)" } else { "" };
        match self.gpu_state {
            GpuState::Idle => "none".to_owned(),
            GpuState::Leased => {
                let user = self.user.as_deref().unwrap_or("unknown user");
                let mode = self.mode.as_ref().map(|mode| format!(" ({mode})")).unwrap_or_default();
                let age = self
                    .age_ms
                    .map(|ms| format!(" for {}", span(Duration::from_millis(ms))))
                    .unwrap_or_default();
                format!("{user}{age}{mode}{pid}{gone}")
            }
            GpuState::Legacy => format!("legacy (GPU.py){pid}{gone}"),
            GpuState::Gathering => "gathering: reserved for a waiting request".to_owned(),
            GpuState::Quarantined => "quarantined: not leased because of a problem".to_owned(),
            GpuState::Barrier => "barrier: not leased yet, because Redis was restarted".to_owned(),
            GpuState::Unknown => "unknown".to_owned(),
        }
    }
}

/// The pool's part of a snapshot.
pub(super) struct PoolView<'a>(Option<&'a Leases>);

impl<'a> PoolView<'a> {
    pub(super) fn of(snapshot: &'a wire::Snapshot) -> Self {
        Self(snapshot.leases.as_ref())
    }

    /// Returns the lease state of a GPU; `None` if it is not in a pool.
    pub(super) fn gpu(&self, gpu: &wire::Gpu) -> Option<LeaseInfo> {
        let leases = self.0?;
        let gpu = leases.gpu(gpu)?;
        Some(LeaseInfo::of(gpu, gpu.lease.as_deref().and_then(|lease| leases.held(lease))))
    }

    /// Returns whether a process that uses a GPU has a lease on it; `None` if unknown.
    pub(super) fn has_lease(&self, process: Option<&wire::Process>, gpu: &wire::Gpu) -> Option<bool> {
        let leases = self.0?;
        let members = Members::of_wire(process?)?;
        match leases.lease_of(&members, leases.gpu(gpu)).truth() {
            Truth::True => Some(true),
            Truth::False => Some(false),
            Truth::Unknown => None,
        }
    }

    /// Returns the waiting requests; `None` without a pool.
    pub(super) fn queue(&self) -> Option<Vec<Ticket>> {
        self.0.map(|leases| leases.queue.clone())
    }
}

/// Describes the waiting requests; `None` if there are none.
pub(super) fn queue_text(queue: &[Ticket]) -> Option<String> {
    let first = queue.first()?;
    let user = first.user.as_deref().unwrap_or("unknown user");
    let since =
        first.age_ms.map(|ms| format!(" for {}", span(Duration::from_millis(ms)))).unwrap_or_default();
    let request = if first.want == 1 { "a GPU".to_owned() } else { format!("{} GPUs", first.want) };
    let behind = match queue.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    Some(format!("{user}{since}, for {request}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_state_is_described() {
        let held = LeaseInfo {
            gpu_state: GpuState::Leased,
            user: Some("alice".into()),
            mode: Some("run".into()),
            age_ms: Some(65_000),
            pid: Some(41),
            alive: Truth::True,
            ..LeaseInfo::default()
        };
        assert_eq!(held.text(), "alice for 1m5s (run), pid 41");
        assert_eq!(held.short(), "alice 1m5s");
        assert_eq!(LeaseInfo { alive: Truth::False, ..held.clone() }.short(), "alice 1m5s (process gone)");
        assert_eq!(LeaseInfo { gpu_state: GpuState::Leased, ..LeaseInfo::default() }.short(), "?");
        assert_eq!(
            LeaseInfo { gpu_state: GpuState::Legacy, pid: Some(7), ..LeaseInfo::default() }.short(),
            "legacy pid 7"
        );
        assert_eq!(
            LeaseInfo { alive: Truth::False, ..held.clone() }.text(),
            "alice for 1m5s (run), pid 41 (process gone)"
        );
        assert_eq!(
            LeaseInfo { gpu_state: GpuState::Legacy, pid: Some(7), ..LeaseInfo::default() }.text(),
            "legacy (GPU.py), pid 7"
        );
        assert_eq!(LeaseInfo { gpu_state: GpuState::Leased, ..LeaseInfo::default() }.text(), "unknown user");
        for gpu_state in GpuState::ALL {
            assert!(!LeaseInfo { gpu_state, ..LeaseInfo::default() }.text().is_empty());
        }
    }

    #[test]
    fn queue_is_described() {
        let ticket = |user: &str, want| Ticket {
            user: Some(user.into()),
            want,
            age_ms: Some(5_000),
            ..Ticket::default()
        };
        assert_eq!(queue_text(&[]), None);
        assert_eq!(queue_text(&[ticket("bob", 1)]).as_deref(), Some("bob for 5s, for a GPU"));
        assert_eq!(
            queue_text(&[ticket("bob", 2), ticket("eve", 1)]).as_deref(),
            Some("bob for 5s, for 2 GPUs, and 1 more")
        );
    }
}
