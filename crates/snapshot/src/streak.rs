//! Number of samples for which a condition is true. Unknown samples are not counted, but too many of them in a row
//! end the streak.

use serde::{Deserialize, Serialize};

use crate::Truth;

/// Number of true samples since the last false one, and of consecutive unknown samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// Number of true samples.
    pub count: u32,
    /// Number of unknown samples since the last known one.
    pub unknown: u32,
}

impl Streak {
    /// Adds a sample; returns false if it ended the streak.
    pub fn feed(&mut self, sample: Truth, max_gap: u32) -> bool {
        match sample {
            Truth::True => {
                self.count = self.count.saturating_add(1);
                self.unknown = 0;
                true
            }
            Truth::False => self.end(),
            Truth::Unknown => self.miss(1, max_gap),
        }
    }

    /// Adds unknown samples; returns false if they ended the streak.
    pub fn miss(&mut self, samples: u32, max_gap: u32) -> bool {
        self.unknown = self.unknown.saturating_add(samples);
        if self.unknown > max_gap {
            self.count = 0;
        }
        self.unknown <= max_gap
    }

    fn end(&mut self) -> bool {
        *self = Self::default();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first sample, counted from 1, at which the streak has the needed length.
    fn first(samples: &str, needed: u32, max_gap: u32) -> Option<usize> {
        let mut streak = Streak::default();
        samples
            .bytes()
            .position(|sample| {
                let sample = match sample {
                    b'T' => Truth::True,
                    b'F' => Truth::False,
                    _ => Truth::Unknown,
                };
                streak.feed(sample, max_gap);
                sample == Truth::True && streak.count >= needed
            })
            .map(|place| place + 1)
    }

    #[test]
    fn matches() {
        let cases = [
            ("TTUT", 3, 1, Some(4)),
            ("TTUUTTT", 3, 1, Some(7)),
            ("TTFTTT", 3, 1, Some(6)),
            ("TTUUT", 3, 2, Some(5)),
            ("TUTUT", 3, 0, None),
            ("UUUUUUUU", 1, 9, None),
            ("FTFTF", 2, 9, None),
        ];
        for (samples, needed, max_gap, expected) in cases {
            assert_eq!(first(samples, needed, max_gap), expected, "{samples}");
        }
    }

    #[test]
    fn missed_samples_are_unknown_ones() {
        let mut streak = Streak { count: 5, unknown: 0 };
        assert!(streak.miss(2, 2));
        assert_eq!(streak, Streak { count: 5, unknown: 2 });
        assert!(!streak.miss(1, 2));
        assert_eq!(streak.count, 0);
        assert!(!streak.miss(u32::MAX, 2), "and it does not overflow");
    }
}
