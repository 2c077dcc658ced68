//! A quota for each process: every allocator by every door, exactly up to the limit; what is freed, shown and forgotten.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use std::fs;

use end_to_end::cuda::{Machine, answers, codes, output};

const DOORS: [&str; 5] = ["linked", "dl", "dl-ptsz", "proc", "proc-ptsz"];
const OUT_OF_MEMORY: i64 = 2;

/// Runs calls under this limit, and gives what each answered.
fn run(machine: &Machine, door: &str, limit: u64, calls: &[&str]) -> Vec<Vec<i64>> {
    answers(machine.client(door, calls).env("WRAPPER_MAX_MEMORY", limit.to_string()))
}

/// What a way to allocate needs before it, how it is called for so much, and how its first is freed.
struct Way {
    name: &'static str,
    before: &'static [&'static str],
    allocate: fn(u64) -> String,
    /// `{0}` is the first that was allocated.
    free: &'static str,
    /// What it takes for a request is a multiple of this.
    step: u64,
}

const WAYS: &[Way] = &[
    Way { name: "plain", before: &[], allocate: |n| format!("alloc {n}"), free: "free 0", step: 1 },
    Way { name: "managed", before: &[], allocate: |n| format!("managed {n}"), free: "free 0", step: 1 },
    Way {
        name: "pitch",
        before: &[],
        allocate: |n| format!("pitch 512 {}", n / 512),
        free: "free 0",
        step: 512,
    },
    Way { name: "async", before: &[], allocate: |n| format!("async {n}"), free: "free-async 0", step: 1 },
    Way {
        name: "async, freed plainly",
        before: &[],
        allocate: |n| format!("async {n}"),
        free: "free 0",
        step: 1,
    },
    Way {
        name: "plain, freed async",
        before: &[],
        allocate: |n| format!("alloc {n}"),
        free: "free-async 0",
        step: 1,
    },
    Way {
        name: "async in a stream",
        before: &["stream"],
        allocate: |n| format!("async {n}"),
        free: "free-async 0",
        step: 1,
    },
    Way {
        name: "pool",
        before: &["pool 1 0 1"],
        allocate: |n| format!("pooled {n} 0"),
        free: "free-async 0",
        step: 1,
    },
    Way {
        name: "a part of a GPU",
        before: &["pool 6 256 1"],
        allocate: |n| format!("pooled {n} 0"),
        free: "free 0",
        step: 1,
    },
    Way {
        name: "managed pool",
        before: &["pool 0 0 2"],
        allocate: |n| format!("pooled {n} 0"),
        free: "free-async 0",
        step: 1,
    },
    Way {
        name: "default pool",
        before: &["default-pool 0"],
        allocate: |n| format!("pooled {n} 0"),
        free: "free 0",
        step: 1,
    },
    Way {
        name: "located pool",
        before: &["default-located-pool 1 0"],
        allocate: |n| format!("pooled {n} 0"),
        free: "free 0",
        step: 1,
    },
    Way { name: "created", before: &[], allocate: |n| format!("create {n} 1 0"), free: "release 0", step: 1 },
    Way {
        name: "created in a part",
        before: &[],
        allocate: |n| format!("create {n} 6 0"),
        free: "release 0",
        step: 1,
    },
    Way {
        name: "array",
        before: &[],
        allocate: |n| format!("array {} 1 32 1", n / 4),
        free: "destroy-array 0",
        step: 4,
    },
    Way {
        name: "array3",
        before: &[],
        allocate: |n| format!("array3 {} 2 2 16 4 0", n / 32),
        free: "destroy-array 0",
        step: 32,
    },
    Way {
        name: "mipmapped",
        before: &[],
        allocate: |n| format!("mipmapped {} 0 0 8 1 0 1", n),
        free: "destroy-mipmapped 0",
        step: 1,
    },
    Way {
        name: "old",
        before: &["old-context 0"],
        allocate: |n| format!("old-alloc {n}"),
        free: "old-free 0",
        step: 1,
    },
    Way {
        name: "old pitch",
        before: &["old-context 0"],
        allocate: |n| format!("old-pitch 512 {}", n / 512),
        free: "old-free 0",
        step: 512,
    },
    Way {
        name: "old array",
        before: &["old-context 0"],
        allocate: |n| format!("old-array {} 1 32 1", n / 4),
        free: "destroy-array 0",
        step: 4,
    },
    Way {
        name: "old array3",
        before: &["old-context 0"],
        allocate: |n| format!("old-array3 {} 2 2 16 4 0", n / 32),
        free: "destroy-array 0",
        step: 32,
    },
];

#[test]
fn every_allocator_by_every_door_is_held_to_the_byte() {
    const LIMIT: u64 = 1 << 20;
    let machine = Machine::new();
    for door in DOORS {
        for way in WAYS {
            let (all, over) = ((way.allocate)(LIMIT), (way.allocate)(LIMIT + way.step));
            let least = (way.allocate)(way.step);
            let mut calls = vec!["init 0"];
            calls.extend(way.before);
            let first = calls.len();
            calls.extend([over.as_str(), &all, "used 0", &least, way.free, "used 0", &least, &all, "used 0"]);
            let answers = run(&machine, door, LIMIT, &calls);
            let limit = i64::try_from(LIMIT).unwrap();
            let step = i64::try_from(way.step).unwrap();
            let expected: [&[i64]; 9] =
                [&[2], &[0], &[limit, 0], &[2], &[0], &[0, 0], &[0], &[2], &[step, 0]];
            assert!(
                answers[..first].iter().all(|answer| answer.last() == Some(&0)),
                "{door}, {}: {answers:?}",
                way.name
            );
            assert_eq!(answers[first..], expected, "{door}, {}", way.name);
        }
    }
    assert_eq!(machine.peak(0), LIMIT);
}

#[test]
fn without_the_library_the_driver_gives_more() {
    let machine = Machine::new();
    for door in DOORS {
        let mut client = machine.client(door, &["init 0", "alloc 1048577"]);
        client.env("WRAPPER_MAX_MEMORY", "1048576");
        assert_eq!(codes(&mut client), [0, OUT_OF_MEMORY], "{door}");
        assert_eq!(codes(client.env_remove("LD_PRELOAD")), [0, 0], "{door}");
        assert_eq!(
            codes(client.env("LD_PRELOAD", end_to_end::cuda::library()).env("WRAPPER_DISABLE", "1")),
            [0, 0],
            "{door}"
        );
    }
}

#[test]
fn what_the_driver_refuses_is_given_back() {
    let machine = Machine::new();
    let calls = [
        "init 0",
        "alloc 600",
        "alloc 600",
        "alloc 0",
        "alloc-nowhere 100",
        "free-unknown 64",
        "free-null",
        "alloc 400",
        "free 0",
        "free 0",
        "alloc 600",
        "alloc 1",
    ];
    let mut client = machine.client("dl", &calls);
    client.env("WRAPPER_MAX_MEMORY", "1000").env("FAKE_CUDA_MEMORY", "1000000");
    let given_back = [0, 0, 2, 1, 1, 1, 0, 0, 0, 1, 0, 2];
    assert_eq!(codes(&mut client), given_back);
    // The GPU is full before the quota is: the driver's own refusal leaves no trace.
    let calls = [
        "init 0",
        "alloc 800",
        "alloc 300",
        "create 300 1 0",
        "pitch 100 3",
        "array 300 1 1 1",
        "async 300",
        "free 0",
        "alloc 1000",
    ];
    let mut client = machine.client("dl", &calls);
    client.env("WRAPPER_MAX_MEMORY", "1100").env("FAKE_CUDA_MEMORY", "1000");
    assert_eq!(codes(&mut client), [0, 0, 2, 2, 2, 2, 2, 0, 0]);
}

#[test]
fn a_program_that_allocates_and_frees_goes_on_for_ever() {
    let machine = Machine::new();
    let mut calls = vec!["init 0".to_owned()];
    for at in 0..200 {
        calls.extend(["alloc 268435456".to_owned(), format!("free {at}")]);
    }
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let answers = run(&machine, "linked", 1 << 30, &calls);
    assert!(answers.iter().all(|answer| answer == &[0]), "{answers:?}");
}

#[test]
fn rows_that_the_driver_makes_longer_are_charged_as_they_are() {
    let machine = Machine::new();
    for (calls, expected) in [
        // Four rows of 4,096 bytes where 512 were likely.
        (&["init 0", "pitch 100 4", "used 0", "alloc 1"][..], &[&[0][..], &[0], &[16384, 0], &[2]][..]),
        // A fifth does not fit: the driver has it back.
        (&["init 0", "pitch 100 5", "used 0", "alloc 16384"], &[&[0], &[2], &[0, 0], &[0]]),
    ] {
        let mut client = machine.client("dl", calls);
        let answers = answers(client.env("WRAPPER_MAX_MEMORY", "16384").env("FAKE_CUDA_PITCH", "4096"));
        assert_eq!(answers, expected, "{calls:?}");
    }
    // And shorter ones.
    let mut client = machine.client("dl", &["init 0", "pitch 100 4", "alloc 1648", "alloc 1"]);
    assert_eq!(
        codes(client.env("WRAPPER_MAX_MEMORY", "2048").env("FAKE_CUDA_PITCH", "100")),
        [0, 0, 0, OUT_OF_MEMORY]
    );
}

#[test]
fn memory_with_handles_is_charged_until_the_last_of_them_and_of_its_mappings_ends() {
    let machine = Machine::new();
    let (full, free) = ("alloc 1", "alloc 1000");
    for (name, calls, expected) in [
        (
            "released, then unmapped",
            &["create 1000 1 0", "map 0 1000", "release 0", full, "unmap 1 1000", free][..],
            &[0, 0, 0, 2, 0, 0][..],
        ),
        (
            "unmapped, then released",
            &["create 1000 1 0", "map 0 1000", "unmap 1 1000", full, "release 0", free],
            &[0, 0, 0, 2, 0, 0],
        ),
        (
            "mapped twice",
            &[
                "create 1000 1 0",
                "map 0 1000",
                "map 0 1000",
                "release 0",
                "unmap 1 1000",
                full,
                "unmap 2 1000",
                free,
            ],
            &[0, 0, 0, 0, 0, 2, 0, 0],
        ),
        (
            "retained",
            &[
                "create 1000 1 0",
                "map 0 1000",
                "retain 1",
                "release 0",
                "unmap 1 1000",
                full,
                "release 2",
                free,
            ],
            &[0, 0, 0, 0, 0, 2, 0, 0],
        ),
        (
            "its own, imported",
            &["create 1000 1 0", "import 0", "release 0", full, "release 1", free],
            &[0, 0, 0, 2, 0, 0],
        ),
        ("another process's", &["import-foreign", "release 0", free], &[0, 0, 0]),
        ("of the host", &["create 5000 2 0", "create 5000 3 0", free], &[0, 0, 0]),
        ("released twice", &["create 1000 1 0", "release 0", "release 0", free, full], &[0, 0, 1, 0, 2]),
        (
            "unmapped twice",
            &["create 1000 1 0", "map 0 1000", "unmap 1 1000", "unmap 1 1000", "release 0", free],
            &[0, 0, 0, 1, 0, 0],
        ),
        (
            "mapped over another",
            &[
                "create 500 1 0",
                "map 0 500",
                "create 500 1 0",
                "map-at 1 500 2",
                "release 2",
                "release 0",
                full,
                "unmap 1 500",
                free,
            ],
            &[0, 0, 0, 1, 0, 0, 0, 0, 2],
        ),
    ] {
        let calls = [&["init 0"][..], calls].concat();
        let answers = run(&machine, "proc", 1000, &calls);
        let codes: Vec<i64> = answers[1..].iter().map(|answer| *answer.last().unwrap()).collect();
        assert_eq!(codes, expected, "{name}");
    }
}

#[test]
fn memory_that_arrays_are_mapped_to_is_charged_as_long_as_they_have_it() {
    let machine = Machine::new();
    let sparse = "array3 64 64 0 32 1 64";
    for (name, calls, expected) in [
        ("an array without memory", &[sparse, "alloc 1000"][..], &[0, 0][..]),
        (
            "undone",
            &["create 1000 1 0", sparse, "tile 1 0 0", "release 0", "alloc 1", "untile 1 0", "alloc 1000"],
            &[0, 0, 0, 0, 2, 0, 0],
        ),
        (
            "replaced",
            &[
                "create 500 1 0",
                "create 500 1 0",
                sparse,
                "tile 2 0 0",
                "release 0",
                "tile 2 0 1",
                "alloc 500",
                "alloc 1",
            ],
            &[0, 0, 0, 0, 0, 0, 0, 2],
        ),
        (
            "at two places",
            &[
                "create 1000 1 0",
                sparse,
                "tile 1 0 0",
                "tile 1 1 0",
                "release 0",
                "untile 1 0",
                "alloc 1",
                "untile 1 1",
                "alloc 1000",
            ],
            &[0, 0, 0, 0, 0, 0, 2, 0, 0],
        ),
    ] {
        for door in ["dl", "proc-ptsz"] {
            let calls = [&["init 0"][..], calls].concat();
            let answers = run(&machine, door, 1000, &calls);
            let codes: Vec<i64> = answers[1..].iter().map(|answer| *answer.last().unwrap()).collect();
            assert_eq!(codes, expected, "{name} by {door}");
        }
    }
}

#[test]
fn what_ends_with_a_context_is_given_back() {
    let machine = Machine::new();
    let all = ["alloc 100", "managed 100", "array 25 1 32 1"];
    for (name, before, end, expected_used, then) in [
        ("context", "context 0", "destroy 0", 0, 300),
        ("old destroy", "context 0", "old-destroy 0", 0, 300),
        ("reset", "init 0", "reset 0", 0, 300),
        ("old reset", "init 0", "old-reset 0", 0, 300),
        ("released", "info", "release-primary 0", 0, 300),
        ("old release", "info", "old-release-primary 0", 0, 300),
        ("green", "green 0", "destroy-green 0", 0, 300),
        ("detached", "context 0", "detach 0", 0, 300),
        ("another context", "context 0", "destroy 1", 300, 0),
    ] {
        let again = format!("alloc {then}");
        let calls = [&["init 0", before][..], &all, &["alloc 1", end, "used 0", "init 0", &again, "alloc 1"]]
            .concat();
        let answers = run(&machine, "dl", 300, &calls);
        assert_eq!(answers[5], [OUT_OF_MEMORY], "{name}: {answers:?}");
        assert_eq!(answers[7][0], expected_used, "{name}: {answers:?}");
        assert_eq!(answers[9], [if then == 0 { 1 } else { 0 }], "{name}: {answers:?}");
        assert_eq!(answers[10], [OUT_OF_MEMORY], "{name}: {answers:?}");
    }
}

#[test]
fn a_context_that_is_used_still_keeps_its_memory_charged() {
    let machine = Machine::new();
    for (name, calls) in [
        ("retained twice", &["init 0", "init 0", "alloc 300", "release-primary 0"][..]),
        ("attached", &["init 0", "context 0", "alloc 300", "attach", "detach 0"]),
        ("of another GPU", &["init 1", "init 0", "alloc 300", "reset 1"]),
    ] {
        let calls = [calls, &["used 0", "alloc 1"]].concat();
        let answers = run(&machine, "dl", 300, &calls);
        let [.., used, over] = &answers[..] else { unreachable!() };
        assert_eq!((used[0], over[0]), (300, OUT_OF_MEMORY), "{name}: {answers:?}");
    }
}

#[test]
fn what_outlives_contexts_stays_charged() {
    let machine = Machine::new();
    let calls = [
        "init 0",
        "context 0",
        "async 100",
        "create 100 1 0",
        "alloc 100",
        "destroy 0",
        "used 0",
        "init 0",
        "alloc 100",
        "alloc 1",
    ];
    let answers = run(&machine, "dl", 300, &calls);
    assert_eq!(
        (&answers[6][..], &answers[8][..], &answers[9][..]),
        (&[200, 0][..], &[0][..], &[2][..]),
        "{answers:?}"
    );
    // Of a reset nobody knows, so the driver is asked.
    let calls = ["init 0", "async 200", "alloc 100", "reset 0", "used 0", "alloc 300", "alloc 100"];
    let mut client = machine.client("dl", &calls);
    client.env("WRAPPER_MAX_MEMORY", "300");
    assert_eq!(codes(&mut client), [0, 0, 0, 0, 0, 0, 2], "the driver has freed its pools");
    assert_eq!(codes(client.env("FAKE_CUDA_RESET_KEEPS_POOLS", "1")), [0, 0, 0, 0, 0, 2, 0], "it has not");
}

#[test]
fn each_gpu_has_its_own_account() {
    let machine = Machine::new();
    let calls = [
        "init 0",
        "alloc 100",
        "alloc 1",
        "init 1",
        "alloc 201",
        "alloc 200",
        "alloc 1",
        // A pool and physical memory are where they are, whatever context is current.
        "free 1",
        "pool 1 0 1",
        "pooled 1 0",
        "create 1 1 0",
        "create 200 1 1",
    ];
    let mut client = machine.client("dl", &calls);
    client.env("WRAPPER_MAX_MEMORY", "100");
    for variable in ["WRAPPER_MAX_MEMORY_1", "WRAPPER_MAX_MEMORY_GPU_00000000_0000_4000_8000_000000000002"] {
        client.env(variable, "200");
        assert_eq!(codes(&mut client), [0, 0, 2, 0, 2, 0, 2, 0, 0, 2, 2, 0], "{variable}");
        client.env_remove(variable);
    }
}

#[test]
fn a_stream_of_another_gpu_is_charged_there() {
    let machine = Machine::new();
    let calls = ["init 1", "stream", "init 0", "async 200", "async 1", "alloc 100", "used 0", "used 1"];
    for missing in ["", "cuStreamGetDevice", "cuStreamGetDevice,cuStreamGetDevice_ptsz"] {
        for door in ["proc", "proc-ptsz"] {
            let mut client = machine.client(door, &calls);
            client
                .env("WRAPPER_MAX_MEMORY", "100")
                .env("WRAPPER_MAX_MEMORY_1", "200")
                .env("FAKE_CUDA_MISSING", missing);
            let expected: [&[i64]; 8] = [&[0], &[0], &[0], &[0], &[2], &[0], &[100, 0], &[200, 0]];
            assert_eq!(answers(&mut client), expected, "{door} without {missing}");
        }
    }
}

#[test]
fn what_is_not_this_process_s_memory_is_let_through() {
    let machine = Machine::new();
    let calls = [
        "init 0",
        "alloc 100",
        "ipc 0",
        "old-ipc 0",
        "external",
        "import-foreign",
        "pool 2 0 1",
        "pooled 5000 0",
        "import-pointer 0",
        "alloc-node",
        "node 10",
        "node2 10",
        "node3 10",
        "node3 0",
        "alloc 1",
    ];
    let answers = run(&machine, "proc", 100, &calls);
    let expected: [&[i64]; 15] =
        [&[0], &[0], &[1, 0], &[1, 0], &[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0], &[2]];
    assert_eq!(answers, expected);
}

#[test]
fn what_is_captured_is_the_graph_s() {
    let machine = Machine::new();
    for (door, stream) in [
        ("proc", "stream"),
        ("proc", "use-stream 2"),
        ("proc-ptsz", "use-stream 0"),
        ("dl-ptsz", "use-stream 0"),
    ] {
        let calls = [
            "init 0",
            stream,
            "capture",
            "async 5000",
            "free-async 0",
            "end-capture",
            "async 100",
            "async 1",
        ];
        let codes: Vec<i64> =
            run(&machine, door, 100, &calls).iter().map(|answer| *answer.last().unwrap()).collect();
        assert_eq!(codes, [0, 0, 0, 0, 0, 0, 0, OUT_OF_MEMORY], "{door}, {stream}");
    }
}

#[test]
fn programs_are_shown_no_more_than_the_quota() {
    let machine = Machine::new();
    for door in DOORS {
        let answers = run(
            &machine,
            door,
            1 << 20,
            &["init 0", "info", "total 0", "alloc 1000", "info", "info-of-nothing", "total 1"],
        );
        let expected: [&[i64]; 7] = [
            &[0],
            &[1 << 20, 1 << 20, 0],
            &[1 << 20, 0],
            &[0],
            &[(1 << 20) - 1000, 1 << 20, 0],
            &[0],
            &[1 << 20, 0],
        ];
        assert_eq!(answers, expected, "{door}");
        let old = run(&machine, door, 1 << 20, &["init 0", "old-info", "old-total 0"]);
        let expected: [&[i64]; 3] = [&[0], &[1 << 20, 1 << 20, 0], &[1 << 20, 0]];
        assert_eq!(old, expected, "{door}");
    }
    // And no more than there is: others use the GPU too, and a quota may be larger than it.
    let mut client = machine.client("dl", &["init 0", "alloc 600", "info", "total 0"]);
    let answers = answers(client.env("WRAPPER_MAX_MEMORY", "1GiB").env("FAKE_CUDA_MEMORY", "1000"));
    assert_eq!(answers, [&[0][..], &[0], &[400, 1000, 0], &[1000, 0]]);
}

#[test]
fn a_program_that_takes_nine_tenths_of_what_it_is_shown_stays_inside() {
    let machine = Machine::new();
    let info = run(&machine, "proc", 4_217_928_960, &["init 0", "info"]);
    let take = format!("alloc {}", info[1][0] / 10 * 9);
    let taken = run(&machine, "proc", 4_217_928_960, &["init 0", &take, "fill 1048576", "used 0"]);
    assert_eq!(taken[1], [0]);
    assert_eq!(taken[2].last(), Some(&OUT_OF_MEMORY));
    assert!(machine.peak(0) <= 4_217_928_960, "{}", machine.peak(0));
}

#[test]
fn the_seed_s_own_lines_work() {
    let machine = Machine::new();
    let mut client = machine.client("linked", &["init 0", "alloc 4217928960", "alloc 1"]);
    // WRAPPER_MAX_MEMORY=4217928960 program
    let told = output(client.env("WRAPPER_MAX_MEMORY", "4217928960"));
    assert_eq!(String::from_utf8_lossy(&told.stdout), "0\n0\n2\n");
    assert_eq!(String::from_utf8_lossy(&told.stderr), "");
    // program, and nothing said: the same limit, and one line that says so.
    let told = output(client.env_remove("WRAPPER_MAX_MEMORY"));
    assert_eq!(String::from_utf8_lossy(&told.stdout), "0\n0\n2\n");
    let line = "bailiff-quota: WRAPPER_MAX_MEMORY is not set: this process may allocate 4217928960 bytes of each GPU (WRAPPER_DEFAULT=off lifts that)\n";
    assert_eq!(String::from_utf8_lossy(&told.stderr), line);
    let told = output(client.env("WRAPPER_DEFAULT", "off"));
    assert_eq!((&told.stdout[..], &told.stderr[..]), (&b"0\n0\n0\n"[..], &b""[..]));
}

#[test]
fn nonsense_is_told_once_and_is_no_licence() {
    let machine = Machine::new();
    let mut client = machine.client("dl", &["init 0", "info", "init 1", "info", "alloc 4217928961"]);
    let told = output(client.env("WRAPPER_MAX_MEMORY", "plenty"));
    let lines = String::from_utf8_lossy(&told.stderr);
    assert_eq!(
        lines,
        "bailiff-quota: WRAPPER_MAX_MEMORY=\"plenty\": no number of bytes; 4217928960 bytes are taken\n"
    );
    assert!(String::from_utf8_lossy(&told.stdout).ends_with("\n2\n"), "{told:?}");
}

#[test]
fn a_program_that_has_nothing_to_do_with_gpus_hears_and_pays_nothing() {
    let machine = Machine::new();
    let told = output(
        machine
            .program("/bin/echo")
            .arg("hello")
            .env("WRAPPER_MAX_MEMORY", "plenty")
            .env("WRAPPER_LOG", machine.path("log")),
    );
    assert_eq!((&told.stdout[..], &told.stderr[..]), (&b"hello\n"[..], &b""[..]));
    assert!(!machine.path("log").exists());
}

#[test]
fn managed_memory_and_contexts_count_as_is_wished() {
    let machine = Machine::new();
    let mut client = machine.client(
        "dl",
        &[
            "init 0",
            "managed 1000",
            "pool 0 0 2",
            "pooled 1000 0",
            "alloc 100",
            "alloc 1",
            "free 0",
            "free 1",
        ],
    );
    client.env("WRAPPER_MAX_MEMORY", "100").env("WRAPPER_COUNT_MANAGED", "0");
    assert_eq!(codes(&mut client), [0, 0, 0, 0, 0, OUT_OF_MEMORY, 0, 0]);
    let mut client = machine.client("dl", &["init 0", "info", "alloc 61", "alloc 60", "init 1", "alloc 60"]);
    client.env("WRAPPER_MAX_MEMORY", "100").env("WRAPPER_CONTEXT_OVERHEAD", "40");
    assert_eq!(answers(&mut client), [&[0][..], &[60, 100, 0], &[2], &[0], &[0], &[0]]);
}

#[test]
fn a_log_tells_every_event_in_a_file_that_is_a_file() {
    let machine = Machine::new();
    let (log, victim) = (machine.path("log"), machine.path("victim"));
    let calls = ["init 0", "alloc 60", "create 50 1 0", "pitch 1 1", "free 0"];
    let mut client = machine.client("dl", &calls);
    client.env("WRAPPER_MAX_MEMORY", "100").env("WRAPPER_LOG", &log);
    let told = output(&mut client);
    assert_eq!((&told.stdout[..], &told.stderr[..]), (&b"0\n0\n2\n2\n0\n"[..], &b""[..]));
    let text = fs::read_to_string(&log).unwrap();
    let events: Vec<&str> = text.lines().map(|line| line.split_once("event=").unwrap().1).collect();
    assert!(events[0].starts_with("granted call=cuMemAlloc_v2 gpu=0 bytes=60 address=0x"), "{text}");
    assert!(events[0].ends_with(" used=60 limit=100"), "{text}");
    assert_eq!(events[1], "denied call=cuMemCreate gpu=0 bytes=50 address=0x0 used=60 limit=100");
    assert_eq!(events[2], "denied call=cuMemAllocPitch_v2 gpu=0 bytes=512 address=0x0 used=60 limit=100");
    assert!(events[3].starts_with("freed call=cuMemFree_v2 gpu=0 bytes=60"), "{text}");
    assert_eq!(events.len(), 4, "{text}");
    let before = text.len();
    let _ = output(&mut client);
    assert!(fs::metadata(&log).unwrap().len() > before as u64, "it is added to");
    // A link, a FIFO and a place that is not there are no logs, and no reason to fail.
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, machine.path("link")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        machine.path("fifo"),
        fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for name in ["link", "fifo", "no/where", ""] {
        assert_eq!(codes(client.env("WRAPPER_LOG", machine.path(name))), [0, 0, 2, 2, 0], "{name}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
