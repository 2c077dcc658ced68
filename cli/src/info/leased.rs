//! What a report says of leases: where a GPU is in the pool, and whether a holder has it by a lease.

use std::time::Duration;

use bailiff_exposition::human::UNKNOWN;
use bailiff_snapshot::lease::Ticket;
use bailiff_snapshot::lease::attribution::Members;
use bailiff_snapshot::{GpuState, Held, Leases, PoolGpu, Truth, wire};
use serde::{Deserialize, Serialize};

use super::figures::span;

/// Where a GPU is in the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leased {
    pub(crate) gpu_state: GpuState,
    /// The lease's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<String>,
    /// Whose it is, as he said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// `run`, `acquire`, `compat` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// Since it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) age_ms: Option<u64>,
    /// The process that holds it, or that GPU.py has noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    /// Whether that process lives.
    #[serde(default)]
    pub(crate) alive: Truth,
}

impl Leased {
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

    /// In a word or two: who has it since when, or the state.
    pub(crate) fn short(&self) -> String {
        let ended = if self.alive == Truth::False { " (process gone)" } else { "" };
        match self.gpu_state {
            GpuState::Leased => {
                let age = self.age_ms.map(|ms| format!(" {}", span(Duration::from_millis(ms))));
                format!("{}{}{ended}", self.user.as_deref().unwrap_or(UNKNOWN), age.unwrap_or_default())
            }
            GpuState::Legacy => {
                let pid = self.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
                format!("{}{pid}{ended}", self.gpu_state.name())
            }
            other => other.name().to_owned(),
        }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        let pid = self.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        let dead = if self.alive == Truth::False { ", who has ended" } else { "" };
        match self.gpu_state {
            GpuState::Idle => "nobody's: whoever asks next has it".to_owned(),
            GpuState::Leased => {
                let user = self.user.as_deref().unwrap_or("somebody");
                let mode = self.mode.as_ref().map(|mode| format!(" ({mode})")).unwrap_or_default();
                let age = self
                    .age_ms
                    .map(|ms| format!(" for {}", span(Duration::from_millis(ms))))
                    .unwrap_or_default();
                format!("{user}{age}{mode}{pid}{dead}")
            }
            GpuState::Legacy => format!("a client of GPU.py{pid}{dead}"),
            GpuState::Gathering => "gathered for somebody who waits".to_owned(),
            GpuState::Quarantined => "withheld: something is wrong with it".to_owned(),
            GpuState::Barrier => "withheld for a while: the pool was restarted".to_owned(),
            GpuState::Unknown => "nobody knows where".to_owned(),
        }
    }
}

/// A pool, as far as a report has use for it.
pub(super) struct Pool<'a>(Option<&'a Leases>);

impl<'a> Pool<'a> {
    pub(super) fn of(snapshot: &'a wire::Snapshot) -> Self {
        Self(snapshot.leases.as_ref())
    }

    /// Where a GPU is; none where it is of no pool.
    pub(super) fn gpu(&self, gpu: &wire::Gpu) -> Option<Leased> {
        let leases = self.0?;
        let gpu = leases.gpu(gpu)?;
        Some(Leased::of(gpu, gpu.lease.as_deref().and_then(|lease| leases.held(lease))))
    }

    /// Whether a process that uses a GPU has it by a lease; none where that cannot be told.
    pub(super) fn has(&self, process: Option<&wire::Process>, gpu: &wire::Gpu) -> Option<bool> {
        let leases = self.0?;
        let kin = Members::of_wire(process?)?;
        match leases.lease_of(&kin, leases.gpu(gpu)).truth() {
            Truth::True => Some(true),
            Truth::False => Some(false),
            Truth::Unknown => None,
        }
    }

    /// Who waits; none where there is no pool.
    pub(super) fn queue(&self) -> Option<Vec<Ticket>> {
        self.0.map(|leases| leases.queue.clone())
    }
}

/// Who waits, in words.
pub(super) fn waiting(queue: &[Ticket]) -> Option<String> {
    let first = queue.first()?;
    let user = first.user.as_deref().unwrap_or("somebody");
    let since =
        first.age_ms.map(|ms| format!(" for {}", span(Duration::from_millis(ms)))).unwrap_or_default();
    let wants = if first.want == 1 { "a GPU".to_owned() } else { format!("{} GPUs", first.want) };
    let behind = match queue.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} behind"),
    };
    Some(format!("{user}{since}, for {wants}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_gpu_is_in_words() {
        let held = Leased {
            gpu_state: GpuState::Leased,
            user: Some("alice".into()),
            mode: Some("run".into()),
            age_ms: Some(65_000),
            pid: Some(41),
            alive: Truth::True,
            ..Leased::default()
        };
        assert_eq!(held.text(), "alice for 1m5s (run), pid 41");
        assert_eq!(held.short(), "alice 1m5s");
        assert_eq!(Leased { alive: Truth::False, ..held.clone() }.short(), "alice 1m5s (process gone)");
        assert_eq!(Leased { gpu_state: GpuState::Leased, ..Leased::default() }.short(), "?");
        assert_eq!(
            Leased { gpu_state: GpuState::Legacy, pid: Some(7), ..Leased::default() }.short(),
            "legacy pid 7"
        );
        assert_eq!(
            Leased { alive: Truth::False, ..held.clone() }.text(),
            "alice for 1m5s (run), pid 41, who has ended"
        );
        assert_eq!(
            Leased { gpu_state: GpuState::Legacy, pid: Some(7), ..Leased::default() }.text(),
            "a client of GPU.py, pid 7"
        );
        assert_eq!(Leased { gpu_state: GpuState::Leased, ..Leased::default() }.text(), "somebody");
        for gpu_state in GpuState::ALL {
            assert!(!Leased { gpu_state, ..Leased::default() }.text().is_empty());
        }
    }

    #[test]
    fn who_waits_in_words() {
        let ticket = |user: &str, want| Ticket {
            user: Some(user.into()),
            want,
            age_ms: Some(5_000),
            ..Ticket::default()
        };
        assert_eq!(waiting(&[]), None);
        assert_eq!(waiting(&[ticket("bob", 1)]).as_deref(), Some("bob for 5s, for a GPU"));
        assert_eq!(
            waiting(&[ticket("bob", 2), ticket("eve", 1)]).as_deref(),
            Some("bob for 5s, for 2 GPUs, and 1 behind")
        );
    }
}
