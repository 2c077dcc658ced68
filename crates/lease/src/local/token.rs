//! Fencing tokens. No token depends on a file that other users can write.

use std::time::Duration;

use bailiff_proc::clock::{now, since_boot};
use serde::{Deserialize, Serialize};

/// The clock of a pool's tokens: the time since boot, which no user can set, plus an offset in the list of GPUs, which
/// only the pool's owner can write. A change of the wall clock does not affect it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct TokenClock {
    /// Microseconds since the epoch at boot, when the pool was created. Absent in pools of older versions.
    token_offset: Option<u64>,
}

impl TokenClock {
    /// The clock of a pool that is created now. It is not behind the clock of the pool that it replaces.
    pub(super) fn replacing(old: Self) -> Self {
        Self { token_offset: Some(wall_offset().max(old.token_offset.unwrap_or_default())) }
    }

    /// Returns a token that is lower than every token that is returned after this call. Must be called while
    /// holding the locks.
    pub(super) fn next(self) -> u64 {
        let offset = self.token_offset.unwrap_or_else(wall_offset);
        let microsecond = microseconds(since_boot());
        while microseconds(since_boot()) == microsecond {
            std::hint::spin_loop();
        }
        offset.saturating_add(microsecond)
    }
}

fn wall_offset() -> u64 {
    let now = now();
    microseconds(now.wall.saturating_sub(now.boot))
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_in_a_pool_and_after_it_is_recreated() {
        let future = TokenClock { token_offset: Some(1 << 52) };
        let mut last = 0;
        for clock in [TokenClock::replacing(TokenClock::default()), future] {
            for clock in [clock, clock, TokenClock::replacing(clock)] {
                let token = clock.next();
                assert!(token > last && token < 1 << 53, "{token} after {last}");
                last = token;
            }
        }
    }
}
