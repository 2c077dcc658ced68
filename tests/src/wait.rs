//! Waiting for a condition. The time limit only keeps a broken test from hanging.

use std::time::{Duration, Instant};

/// How long a condition may take on a busy machine.
pub const LONG: Duration = Duration::from_mins(1);

/// Polls until the closure returns a value.
///
/// # Panics
/// If the closure does not return a value within [`LONG`].
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} for: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
