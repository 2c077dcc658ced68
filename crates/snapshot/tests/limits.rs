//! Property test: limits of cgroups never change the parts of a GPU's memory, which add up to its total.

use std::time::Duration;

use bailiff_snapshot::{CgroupMemory, GpuSample, LimitBackend, Memory, ProcessKey, Snapshot};
use proptest::prelude::*;
use snapshot_fixtures::sample::{self as fixtures, entry, facts};

const MIB: u64 = 1 << 20;

/// Memory in MiB: free, reserved, that of two processes, and the rest.
type Amounts = (u64, u64, [u64; 2], u64);

fn cgroups() -> impl Strategy<Value = Vec<CgroupMemory>> {
    let figure = || prop_oneof![Just(None), any::<u64>().prop_map(Some)];
    let backend = prop::sample::select(vec![LimitBackend::Dmem, LimitBackend::Misc]);
    let one = (backend, [figure(), figure(), figure(), figure(), figure(), figure()]);
    let one =
        one.prop_map(|(backend, [hard, soft, effective, used, peak, stale_reservation])| CgroupMemory {
            hard,
            soft,
            effective,
            used,
            peak,
            stale_reservation,
            ..CgroupMemory::unknown("/a".to_owned(), backend)
        });
    prop::collection::vec(one, 0..4)
}

fn snapshot((free, reserved, held, rest): Amounts, cgroups: Vec<CgroupMemory>) -> Snapshot {
    let used = (held.iter().sum::<u64>() + rest) * MIB;
    let (free, reserved) = (free * MIB, reserved * MIB);
    let memory = Memory { total: free + reserved + used, free, used, reserved: Some(reserved) };
    let entries = held.iter().zip(41..).map(|(held, pid)| entry(pid, Some(held * MIB))).collect();
    let gpu = GpuSample { memory: Some(memory), cgroups, ..fixtures::gpu((0, "GPU-1"), entries) };
    let processes = (41..43).map(|pid| fixtures::found(facts(ProcessKey { pid, start_ticks: 7 })));
    Snapshot::between(None, fixtures::sample((1, Duration::from_secs(10)), vec![gpu], processes))
}

proptest! {
    #[test]
    fn limits_do_not_change_the_parts_of_memory(
        amounts in (0_u64..80_000, 0_u64..1000, [0_u64..40_000, 0..40_000], 0_u64..1000),
        cgroups in cgroups(),
    ) {
        let (without, with) = (snapshot(amounts, Vec::new()), snapshot(amounts, cgroups));
        let (gpu, parts) = (&with.gpus[0], with.gpus[0].parts.expect("all is known"));
        prop_assert_eq!(without.gpus[0].parts, Some(parts));
        let positive = parts.free + parts.reserved + parts.holders + parts.dead_pids + parts.other_namespaces;
        let total = i128::from(positive) + i128::from(parts.unaccounted);
        prop_assert_eq!(Some(total), gpu.memory.map(|memory| i128::from(memory.total)));
    }
}
