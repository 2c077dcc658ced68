//! Rejects driver values that cannot be true, and counts them as gaps. NVML's "not available", all bits set,
//! is treated as absent.

use bailiff_snapshot::{Entry, Gap, Gaps, Memory};

/// Largest plausible value of each quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Most {
    Flag = 1,
    Percent = 100,
    /// Boards throttle at about 100 °C and turn off soon after.
    Celsius = 200,
    /// 100 GHz; the fastest memory clocks are about 14 GHz.
    Megahertz = 100_000,
    /// Errors, numbers of states and masks. The next value is NVML's 32-bit "not available".
    Count = u32::MAX as u64 - 1,
    /// 10 kW; the largest modules draw about 1.5 kW.
    Milliwatts = 10_000_000,
    /// 10 kW for about thirty years.
    Millijoules = 10_000_000_000_000_000,
    /// 1 PiB.
    Bytes = 1 << 50,
}

/// An integer type of driver values.
pub(super) trait Figure: Copy {
    /// Returns the value as `u64`; `None` for NVML's "not available".
    fn wide(self) -> Option<u64>;
}

impl Figure for u32 {
    fn wide(self) -> Option<u64> {
        (self != Self::MAX).then_some(self.into())
    }
}

impl Figure for u64 {
    fn wide(self) -> Option<u64> {
        (self != Self::MAX).then_some(self)
    }
}

/// Returns the value if it is plausible; otherwise counts a gap.
pub(super) fn figure<T: Figure>(value: Option<T>, most: Most, gaps: &mut Gaps) -> Option<T> {
    let wide = value?.wide()?;
    if wide > most as u64 {
        gaps.count(if most == Most::Percent { Gap::UtilizationAbove100 } else { Gap::Implausible });
        return None;
    }
    value
}

/// Returns the memory if no part is larger than the total; otherwise counts a gap.
pub(super) fn memory(memory: Option<Memory>, gaps: &mut Gaps) -> Option<Memory> {
    let mut memory = memory?;
    memory.reserved = memory.reserved.filter(|reserved| *reserved != u64::MAX);
    memory.total.wide().and(memory.free.wide()).and(memory.used.wide())?;
    let parts = [memory.free, memory.used, memory.reserved.unwrap_or_default()];
    let possible = memory.total <= Most::Bytes as u64 && parts.iter().all(|part| *part <= memory.total);
    if !possible {
        gaps.count(Gap::Implausible);
    }
    possible.then_some(memory)
}

/// Removes process memory larger than the GPU's total, and counts it as a gap.
pub(super) fn entries(entries: &mut [Entry], memory: Option<Memory>, gaps: &mut Gaps) {
    let most = memory.map_or(u64::MAX, |memory| memory.total).min(Most::Bytes as u64);
    for figure in entries.iter_mut().flat_map(|entry| [&mut entry.memory, &mut entry.peak]) {
        *figure = figure.filter(|bytes| *bytes != u64::MAX);
        if figure.is_some_and(|bytes| bytes > most) {
            gaps.count(Gap::Implausible);
            *figure = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_beyond_their_range_are_gaps_and_not_available_is_absent() {
        for (value, most, expected, gap) in [
            (150, Most::Celsius, Some(150), None),
            (4_294_967_040, Most::Celsius, None, Some(Gap::Implausible)),
            (u32::MAX, Most::Celsius, None, None),
            (1_400_000, Most::Milliwatts, Some(1_400_000), None),
            (10_000_001, Most::Milliwatts, None, Some(Gap::Implausible)),
            (14_001, Most::Megahertz, Some(14_001), None),
            (2_000_000_000, Most::Megahertz, None, Some(Gap::Implausible)),
            (100, Most::Percent, Some(100), None),
            (101, Most::Percent, None, Some(Gap::UtilizationAbove100)),
        ] {
            let mut gaps = Gaps::default();
            assert_eq!(figure(Some(value), most, &mut gaps), expected, "{value} {most:?}");
            let mut counted = Gaps::default();
            if let Some(gap) = gap {
                counted.count(gap);
            }
            assert_eq!(gaps, counted, "{value} {most:?}");
        }
        let mut gaps = Gaps::default();
        assert_eq!(figure(Some(u64::MAX), Most::Millijoules, &mut gaps), None);
        assert_eq!(figure(Some(u64::from(u32::MAX)), Most::Millijoules, &mut gaps), Some(4_294_967_295));
        assert_eq!(gaps, Gaps::default());
    }

    #[test]
    fn memory_larger_than_its_whole_is_a_gap() {
        let good = Memory { total: 100, free: 60, used: 39, reserved: Some(1) };
        for (read, expected, gaps) in [
            (good, Some(good), 0),
            (Memory { used: 101, ..good }, None, 1),
            (Memory { free: 101, ..good }, None, 1),
            (Memory { reserved: Some(101), ..good }, None, 1),
            (Memory { total: 1 << 60, ..good }, None, 1),
            (Memory { used: u64::MAX, ..good }, None, 0),
            (Memory { reserved: Some(u64::MAX), ..good }, Some(Memory { reserved: None, ..good }), 0),
        ] {
            let mut counted = Gaps::default();
            assert_eq!(memory(Some(read), &mut counted), expected, "{read:?}");
            assert_eq!(counted.of(Gap::Implausible), gaps, "{read:?}");
        }
    }

    #[test]
    fn memory_of_a_process_larger_than_its_gpu_is_a_gap() {
        let whole = Memory { total: 100, free: 60, used: 39, reserved: Some(1) };
        let held = |memory| Entry { pid: 1, memory, kinds: bailiff_snapshot::Kinds::default(), peak: memory };
        for (read, expected, gaps) in
            [(Some(100), Some(100), 0), (Some(101), None, 2), (Some(u64::MAX), None, 0), (None, None, 0)]
        {
            let (mut list, mut counted) = ([held(read)], Gaps::default());
            entries(&mut list, Some(whole), &mut counted);
            assert_eq!(list, [held(expected)]);
            assert_eq!(counted.of(Gap::Implausible), gaps);
        }
    }
}
