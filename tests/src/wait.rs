//! Waiting for a condition. The time limit only keeps a broken test from hanging.

use std::time::{Duration, Instant};

/// How long a condition may take on a busy machine.
pub const LONG: Duration = Duration::from_mins(1);

/// Asks until there is an answer, and gives it.
///
/// # Panics
/// When there is none within [`LONG`].
pub fn until<T>(what: &str, mut query: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = query() {
            return answer;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} for: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
