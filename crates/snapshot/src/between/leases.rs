//! Carries the durations of the lease pool from sample to sample.

use std::time::Duration;

use crate::identity::millis;
use crate::lease::Names;
use crate::{Gpu, GpuState, Leases, Truth};

impl Leases {
    /// Updates the durations of each GPU from the previous sample's pool, if there is one.
    pub(super) fn carry_on(&mut self, before: Option<&Self>, window: Duration, gpus: &[Gpu]) {
        let window = millis(window);
        self.before_ms = before.map(|before| before.boot_ms);
        for gpu in &mut self.gpus {
            let before = before.and_then(|before| before.gpus.iter().find(|before| gpu.as_before(before)));
            let seen = gpus.iter().find(|seen| gpu.is(Names::from(*seen)));
            if let Some(before) = before {
                gpu.since_ms = before.since_ms.saturating_add(window);
            }
            if gpu.gpu_state == GpuState::Leased {
                gpu.idle = before.and(seen).map_or(Truth::Unknown, |seen| seen.idle);
                gpu.idle_ms = match (before, gpu.idle) {
                    (Some(before), Truth::True) => before.idle_ms.saturating_add(window),
                    (Some(before), Truth::Unknown) => before.idle_ms,
                    (Some(_), Truth::False) | (None, _) => 0,
                };
            }
        }
    }
}
