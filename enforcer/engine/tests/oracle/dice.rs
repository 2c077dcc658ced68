//! A random generator. The same seed produces the same trace.

/// `SplitMix64`.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number in an inclusive range.
    pub(crate) fn of(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start + 1)
    }

    /// Returns true with this probability in percent.
    pub(crate) fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// Returns one of these values.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let place = usize::try_from(self.below(from.len() as u64)).unwrap();
        from[place].clone()
    }
}
