//! Tests a quota for each process: every allocator, through every route to the driver, is granted memory exactly up to
//! the limit. Also tests frees, queries and logs. The calls in a test are those of `client.c`, separated by commas.
//! The expected results are its output: values first, the driver's code last.
#![expect(clippy::disallowed_methods, reason = "a test runs programs and reads their files")]

use std::fs;
use std::process::Command;

use end_to_end::cuda::{self, Machine, output};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The ways in which a program can obtain the driver's functions.
const ROUTES: [&str; 5] = ["linked", "dl", "dl-ptsz", "proc", "proc-ptsz"];

fn client(machine: &Machine, route: &str, limit: u64, calls: &str) -> Command {
    let calls: Vec<&str> = calls.split(", ").collect();
    let mut client = machine.client(route, &calls);
    client.env("WRAPPER_MAX_MEMORY", limit.to_string());
    client
}

/// Returns the whole output, separated by commas.
fn answers(client: &mut Command) -> String {
    String::from_utf8_lossy(&output(client).stdout).trim_end().replace('\n', ", ")
}

/// Returns the driver's codes, separated by spaces.
fn codes(client: &mut Command) -> String {
    cuda::codes(client).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn run(machine: &Machine, route: &str, limit: u64, calls: &str) -> String {
    answers(&mut client(machine, route, limit, calls))
}

/// An allocator: the calls that prepare it, its call for a size, and the call that frees its first memory.
struct Allocator {
    before: &'static str,
    allocate: fn(u64) -> String,
    free: &'static str,
    /// Sizes must be multiples of this.
    step: u64,
}

const fn allocator(
    before: &'static str,
    allocate: fn(u64) -> String,
    free: &'static str,
    step: u64,
) -> Allocator {
    Allocator { before, allocate, free, step }
}

const ALLOCATORS: &[Allocator] = &[
    allocator("", |n| format!("alloc {n}"), "free 0", 1),
    allocator("", |n| format!("alloc {n}"), "free-async 0", 1),
    allocator("", |n| format!("managed {n}"), "free 0", 1),
    allocator("", |n| format!("pitch 512 {}", n / 512), "free 0", 512),
    allocator("", |n| format!("async {n}"), "free-async 0", 1),
    allocator("", |n| format!("async {n}"), "free 0", 1),
    allocator("stream", |n| format!("async {n}"), "free-async 0", 1),
    allocator("pool 1 0 1", |n| format!("pooled {n} 0"), "free-async 0", 1),
    allocator("pool 6 256 1", |n| format!("pooled {n} 0"), "free 0", 1),
    allocator("pool 0 0 2", |n| format!("pooled {n} 0"), "free-async 0", 1),
    allocator("default-pool 0", |n| format!("pooled {n} 0"), "free 0", 1),
    allocator("current-pool 0", |n| format!("pooled {n} 0"), "free 0", 1),
    allocator("located-pool 1 0", |n| format!("pooled {n} 0"), "free 0", 1),
    allocator("default-located-pool 1 0", |n| format!("pooled {n} 0"), "free 0", 1),
    allocator("", |n| format!("create {n} 1 0"), "release 0", 1),
    allocator("", |n| format!("create {n} 6 0"), "release 0", 1),
    allocator("", |n| format!("array {} 1 32 1", n / 4), "destroy-array 0", 4),
    allocator("", |n| format!("array3 {} 2 2 16 4 0", n / 32), "destroy-array 0", 32),
    allocator("", |n| format!("mipmapped {n} 0 0 8 1 0 1"), "destroy-mipmapped 0", 1),
    allocator("old-context 0", |n| format!("old-alloc {n}"), "old-free 0", 1),
    allocator("old-context 0", |n| format!("old-pitch 512 {}", n / 512), "old-free 0", 512),
    allocator("old-context 0", |n| format!("old-array {} 1 32 1", n / 4), "destroy-array 0", 4),
    allocator("old-context 0", |n| format!("old-array3 {} 2 2 16 4 0", n / 32), "destroy-array 0", 32),
];

#[test]
fn every_allocator_and_route_is_limited_to_the_byte() {
    const LIMIT: u64 = 1 << 20;
    let machine = Machine::new();
    for route in ROUTES {
        for Allocator { before, allocate, free, step } in ALLOCATORS {
            let before = if before.is_empty() { "info-of-nothing" } else { before };
            let [least, all, over] = [*step, LIMIT, LIMIT + step].map(allocate);
            let calls = format!(
                "init 0, {before}, {over}, {all}, used 0, {least}, {free}, used 0, {least}, {all}, used 0"
            );
            let expected = format!("0, 0, 2, 0, {LIMIT} 0, 2, 0, 0 0, 0, 2, {step} 0");
            assert_eq!(run(&machine, route, LIMIT, &calls), expected, "{route}: {calls}");
        }
    }
    assert_eq!(machine.peak(0), LIMIT);
}

#[test]
fn driver_grants_more_without_the_library() {
    let machine = Machine::new();
    for route in ROUTES {
        let mut client = client(&machine, route, 1 << 20, "init 0, alloc 1048577");
        assert_eq!(codes(&mut client), "0 2", "{route}");
        assert_eq!(codes(client.env("WRAPPER_DISABLE", "1")), "0 0", "{route}");
        assert_eq!(codes(client.env_remove("LD_PRELOAD")), "0 0", "{route}");
    }
}

#[test]
fn reservation_is_released_if_the_driver_refuses() {
    let machine = Machine::new();
    let calls = "init 0, alloc 600, alloc 600, alloc 0, alloc-nowhere 100, free-unknown 64, free-null, alloc 400, \
                 free 0, free 0, alloc 600, alloc 1";
    assert_eq!(codes(&mut client(&machine, "dl", 1000, calls)), "0 0 2 1 1 1 0 0 0 1 0 2");
    // The driver refuses to free an array with the wrong function, so it stays charged.
    let calls =
        "init 0, array 1000 1 1 1, free 0, alloc 1, destroy-array 0, alloc 1000, destroy-array 1, alloc 1";
    assert_eq!(codes(&mut client(&machine, "dl", 1000, calls)), "0 0 1 2 0 0 400 2");
    // The GPU is full before the quota is, and a request that the driver refuses is not charged.
    let calls = "init 0, alloc 800, alloc 300, create 300 1 0, pitch 100 3, array 300 1 1 1, async 300, free 0, \
                 alloc 1000";
    let mut client = client(&machine, "dl", 1100, calls);
    assert_eq!(codes(client.env("FAKE_CUDA_MEMORY", "1000")), "0 0 2 2 2 2 2 0 0");
}

#[test]
fn allocating_and_freeing_never_uses_up_the_quota() {
    let machine = Machine::new();
    let rounds: Vec<String> = (0..200).map(|at| format!("alloc 268435456, free {at}")).collect();
    let calls = format!("init 0, {}", rounds.join(", "));
    assert_eq!(run(&machine, "linked", 1 << 30, &calls), vec!["0"; 401].join(", "));
}

#[test]
fn pitched_memory_is_charged_with_its_real_row_length() {
    let machine = Machine::new();
    for (row, limit, calls, expected) in [
        // The driver uses four rows of 4,096 bytes instead of the expected 512 bytes.
        ("4096", 16_384, "init 0, pitch 100 4, used 0, alloc 1", "0, 0, 16384 0, 2"),
        // A fifth row exceeds the limit, so the memory is freed again.
        ("4096", 16_384, "init 0, pitch 100 5, used 0, alloc 16384", "0, 2, 0 0, 0"),
        // The rows are shorter than expected.
        ("100", 2048, "init 0, pitch 100 4, alloc 1648, alloc 1", "0, 0, 0, 2"),
    ] {
        let mut client = client(&machine, "dl", limit, calls);
        assert_eq!(answers(client.env("FAKE_CUDA_PITCH", row)), expected, "{calls}");
    }
}

#[test]
fn handle_memory_is_charged_until_its_last_reference() {
    let machine = Machine::new();
    for (calls, expected) in [
        ("create 1000 1 0, map 0 1000, release 0, alloc 1, unmap 1 1000, alloc 1000", "0 0 0 2 0 0"),
        ("create 1000 1 0, map 0 1000, unmap 1 1000, alloc 1, release 0, alloc 1000", "0 0 0 2 0 0"),
        // Memory that is mapped twice, retained, exported and imported.
        (
            "create 1000 1 0, map 0 1000, map 0 1000, release 0, unmap 1 1000, alloc 1, unmap 2 1000, alloc 1000",
            "0 0 0 0 0 2 0 0",
        ),
        (
            "create 1000 1 0, map 0 1000, retain 1, release 0, unmap 1 1000, alloc 1, release 2, alloc 1000",
            "0 0 0 0 0 2 0 0",
        ),
        ("create 1000 1 0, import 0, release 0, alloc 1, release 1, alloc 1000", "0 0 0 2 0 0"),
        // Memory of another process, and memory on the host.
        ("import-foreign, release 0, alloc 1000, alloc 1", "0 0 0 2"),
        ("create 5000 2 0, create 5000 3 0, alloc 1000, alloc 1", "0 0 0 2"),
        // A call that the driver refuses changes nothing.
        ("create 1000 1 0, release 0, release 0, alloc 1000, alloc 1", "0 0 1 0 2"),
        (
            "create 1000 1 0, map 0 1000, unmap 1 1000, unmap 1 1000, alloc 1, release 0, alloc 1000",
            "0 0 0 1 2 0 0",
        ),
        (
            "create 500 1 0, map 0 500, create 500 1 0, map-at 1 500 2, release 2, release 0, alloc 501, unmap 1 500, \
             alloc 1000",
            "0 0 0 1 0 0 2 0 0",
        ),
    ] {
        let calls = format!("init 0, {calls}");
        assert_eq!(codes(&mut client(&machine, "proc", 1000, &calls)), format!("0 {expected}"), "{calls}");
    }
}

#[test]
fn memory_mapped_to_arrays_stays_charged() {
    let machine = Machine::new();
    let sparse = "array3 64 64 0 32 1 64";
    for (calls, expected) in [
        ("SPARSE, alloc 1000, alloc 1", "0 0 2"),
        ("create 1000 1 0, SPARSE, tile 1 0 0, release 0, alloc 1, untile 1 0, alloc 1000", "0 0 0 0 2 0 0"),
        (
            "create 1000 1 0, SPARSE, tile 1 0 0, release 0, destroy-array 1, alloc 1000, alloc 1",
            "0 0 0 0 0 0 2",
        ),
        // One mapping replaces another.
        (
            "create 500 1 0, create 500 1 0, SPARSE, tile 2 0 0, release 0, alloc 1, tile 2 0 1, alloc 500, alloc 1",
            "0 0 0 0 0 2 0 0 2",
        ),
        // The memory is mapped at two places.
        (
            "create 1000 1 0, SPARSE, tile 1 0 0, tile 1 1 0, release 0, untile 1 0, alloc 1, untile 1 1, alloc 1000",
            "0 0 0 0 0 0 2 0 0",
        ),
    ] {
        for route in ["dl", "proc-ptsz"] {
            let calls = format!("init 0, {}", calls.replace("SPARSE", sparse));
            assert_eq!(
                codes(&mut client(&machine, route, 1000, &calls)),
                format!("0 {expected}"),
                "{route}: {calls}"
            );
        }
    }
}

#[test]
fn memory_of_an_ended_context_is_released() {
    let machine = Machine::new();
    let all = "alloc 100, managed 100, array 25 1 32 1, alloc 1";
    for (before, end) in [
        ("context 0", "destroy 0"),
        ("context 0", "old-destroy 0"),
        ("context 0", "detach 0"),
        ("green 0", "destroy-green 0"),
        ("info", "reset 0"),
        ("info", "old-reset 0"),
        ("info", "release-primary 0"),
        ("info", "old-release-primary 0"),
    ] {
        let calls = format!("init 0, {before}, {all}, {end}, used 0, init 0, alloc 300, alloc 1");
        let expected = "0 0 0 2 0 0 0 0 2";
        assert_eq!(codes(&mut client(&machine, "dl", 300, &calls))[4..], *expected, "{calls}");
        assert!(run(&machine, "dl", 300, &calls).contains(", 0 0, 0, 0, 2"), "{calls}");
    }
}

#[test]
fn memory_of_a_context_in_use_stays_charged() {
    let machine = Machine::new();
    for calls in [
        "init 0, init 0, alloc 300, release-primary 0",
        "init 0, context 0, alloc 300, attach, detach 0",
        "init 1, init 0, alloc 300, reset 1",
        "init 0, alloc 300, context 0, destroy 0, info",
    ] {
        let answers = run(&machine, "dl", 300, &format!("{calls}, used 0, alloc 1"));
        assert!(answers.ends_with(", 300 0, 2"), "{calls}: {answers}");
    }
    // The driver refuses to end the context.
    let answers = run(&machine, "dl", 300, "init 0, context 0, alloc 300, destroy 1, used 0, alloc 1");
    assert_eq!(answers, "0, 0, 0, 201, 300 0, 2");
}

#[test]
fn memory_that_outlives_contexts_stays_charged() {
    let machine = Machine::new();
    let calls = "init 0, context 0, async 100, create 100 1 0, alloc 100, destroy 0, used 0, init 0, alloc 100, alloc 1";
    assert_eq!(run(&machine, "dl", 300, calls), "0, 0, 0, 0, 0, 0, 200 0, 0, 0, 2");
    // The effect of a reset on pools is not documented, so the driver is asked.
    let mut client =
        client(&machine, "dl", 300, "init 0, async 200, alloc 100, reset 0, alloc 300, alloc 100");
    assert_eq!(codes(&mut client), "0 0 0 0 0 2", "the driver has freed the pools");
    assert_eq!(
        codes(client.env("FAKE_CUDA_RESET_KEEPS_POOLS", "1")),
        "0 0 0 0 2 0",
        "the driver has kept the pools"
    );
}

#[test]
fn each_gpu_has_its_own_account() {
    let machine = Machine::new();
    // Pools and physical memory are charged to their own GPU, regardless of the current context.
    let calls = "init 0, alloc 100, alloc 1, init 1, alloc 201, alloc 200, alloc 1, free 1, pool 1 0 1, pooled 1 0, \
                 create 1 1 0, create 200 1 1, pool 1 1 1, pooled 1 1";
    for variable in ["WRAPPER_MAX_MEMORY_1", "WRAPPER_MAX_MEMORY_GPU_00000000_0000_4000_8000_000000000002"] {
        let mut client = client(&machine, "dl", 100, calls);
        assert_eq!(codes(client.env(variable, "200")), "0 0 2 0 2 0 2 0 0 2 2 0 0 2", "{variable}");
    }
}

#[test]
fn pool_is_charged_to_its_gpu() {
    let machine = Machine::new();
    // The current pool of GPU 1 is set while GPU 0 is current.
    for set in ["set-pool 1 0", "set-located-pool 1 1 0"] {
        let calls = format!(
            "init 0, pool 1 1 1, {set}, current-pool 1, pooled 201 1, pooled 200 1, alloc 100, alloc 1"
        );
        let mut client = client(&machine, "dl", 100, &calls);
        assert_eq!(codes(client.env("WRAPPER_MAX_MEMORY_1", "200")), "0 0 0 0 2 0 0 2", "{set}");
    }
    // A destroyed pool is not used, even if its handle is assigned again.
    let calls = "init 0, pool 1 1 1, destroy-pool 0, destroy-pool 0, pooled 5 0, alloc 100";
    assert_eq!(codes(&mut client(&machine, "dl", 100, calls)), "0 0 0 1 1 0");
}

#[test]
fn stream_memory_is_charged_to_its_gpu() {
    let machine = Machine::new();
    let calls = "init 1, stream, init 0, async 200, async 1, alloc 100, used 0, used 1";
    for missing in ["", "cuStreamGetDevice", "cuStreamGetDevice,cuStreamGetDevice_ptsz"] {
        for route in ["proc", "proc-ptsz"] {
            let mut client = client(&machine, route, 100, calls);
            client.env("WRAPPER_MAX_MEMORY_1", "200").env("FAKE_CUDA_MISSING", missing);
            assert_eq!(answers(&mut client), "0, 0, 0, 0, 2, 0, 100 0, 200 0", "{route} without {missing}");
        }
    }
}

#[test]
fn memory_of_others_is_not_charged() {
    let machine = Machine::new();
    let calls = "init 0, alloc 100, ipc 0, old-ipc 0, external, import-foreign, pool 2 0 1, pooled 5000 0, \
                 import-pointer 0, alloc-node, node 10, node2 10, node3 10, node3 0, alloc 1";
    let expected = "0, 0, 1 0, 1 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2";
    assert_eq!(run(&machine, "proc", 100, calls), expected);
}

#[test]
fn captured_allocations_are_not_charged() {
    let machine = Machine::new();
    for (route, stream) in [
        ("proc", "stream"),
        ("proc", "use-stream 2"),
        ("proc-ptsz", "use-stream 0"),
        ("dl-ptsz", "use-stream 0"),
    ] {
        let calls =
            format!("init 0, {stream}, capture, async 5000, free-async 0, end-capture, async 100, async 1");
        assert_eq!(codes(&mut client(&machine, route, 100, &calls)), "0 0 0 0 0 0 0 2", "{route}, {stream}");
    }
}

#[test]
fn memory_queries_return_at_most_the_quota() {
    let machine = Machine::new();
    for route in ROUTES {
        let calls =
            "init 0, info, total 0, alloc 1000, info, info-of-nothing, total 1, old-info, old-total 0";
        let expected = "0, 9000 9000 0, 9000 0, 0, 8000 9000 0, 0, 9000 0, 8000 9000 0, 9000 0";
        assert_eq!(run(&machine, route, 9000, calls), expected, "{route}");
    }
    // The reported memory is also at most that of the GPU, because other processes use the GPU too and a quota can be
    // larger than the GPU.
    let mut client = client(&machine, "dl", 1 << 30, "init 0, alloc 600, info, total 0");
    assert_eq!(answers(client.env("FAKE_CUDA_MEMORY", "1000")), "0, 0, 400 1000 0, 1000 0");
}

#[test]
fn program_that_takes_most_reported_memory_stays_within() {
    const LIMIT: u64 = 4_217_928_960;
    let machine = Machine::new();
    let reported = cuda::answers(&mut client(&machine, "proc", LIMIT, "init 0, info"));
    let calls = format!("init 0, alloc {}, fill 1048576", reported[1][0] / 10 * 9);
    assert_eq!(codes(&mut client(&machine, "proc", LIMIT, &calls)), "0 0 2");
    assert!((LIMIT - (1 << 20)..=LIMIT).contains(&machine.peak(0)), "{}", machine.peak(0));
}

#[test]
fn examples_of_the_original_wrapper_work() {
    let machine = Machine::new();
    let mut client = client(&machine, "linked", 4_217_928_960, "init 0, alloc 4217928960, alloc 1");
    let run = |client: &mut Command| {
        let output = output(client);
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(run(&mut client), ("0\n0\n2\n".to_owned(), String::new()));
    // Without the variable, the same limit applies and one warning is printed.
    let line = "bailiff-quota: WRAPPER_MAX_MEMORY is not set: this process can allocate 4217928960 bytes on each GPU \
                (WRAPPER_DEFAULT=off removes this limit)\n";
    assert_eq!(run(client.env_remove("WRAPPER_MAX_MEMORY")), ("0\n0\n2\n".to_owned(), line.to_owned()));
    assert_eq!(run(client.env("WRAPPER_DEFAULT", "off")), ("0\n0\n0\n".to_owned(), String::new()));
}

#[test]
fn limit_of_zero_refuses_every_allocation() {
    let machine = Machine::new();
    for route in ROUTES {
        let calls = "init 0, alloc 1, managed 1, async 1, create 1 1 0, pitch 1 1, free-null, info";
        assert_eq!(run(&machine, route, 0, calls), "0, 2, 2, 2, 2, 2, 0, 0 0 0", "{route}");
    }
    let mut client = client(&machine, "dl", 0, "init 0, alloc 17179869184, alloc 1");
    assert_eq!(codes(&mut client), "0 2 2");
    assert_eq!(
        codes(client.env("WRAPPER_MAX_MEMORY", "unlimited")),
        "0 0 2",
        "the driver has no more memory"
    );
    // In HAMi, 0 means no limit.
    let client = client.env_remove("WRAPPER_MAX_MEMORY").env("CUDA_DEVICE_MEMORY_LIMIT", "0");
    assert_eq!(codes(client), "0 0 2");
}

#[test]
fn limit_set_by_program_before_first_request_applies() {
    let machine = Machine::new();
    for route in ROUTES {
        let run = |calls| run(&machine, route, 5000, calls);
        assert_eq!(
            run("set-limit 1000, init 0, info, alloc 1000, alloc 1"),
            "0, 0, 1000 1000 0, 0, 2",
            "{route}"
        );
        // The variable is read once. The child of a fork reads it again.
        assert_eq!(
            run(
                "init 0, alloc 4000, set-limit 9000, alloc 1001, init 1, alloc 5001, fork, init 0, alloc 9000, alloc 1"
            ),
            "0, 0, 0, 2, 0, 2, 0, 0, 0, 2",
            "{route}"
        );
    }
    let mut client = client(&machine, "dl", 5000, "set-limit 1000, init 0, alloc 1000, alloc 1");
    assert_eq!(codes(client.env_remove("WRAPPER_MAX_MEMORY")), "0 0 0 2");
    // A program that clears its environment keeps the limit with which it was started.
    assert_eq!(run(&machine, "dl", 5000, "set-limit -1, init 0, alloc 5000, alloc 1"), "0, 0, 0, 2");
    // The limit on a GPU by number takes precedence, as if both had been set at the start.
    assert_eq!(codes(client.env("WRAPPER_MAX_MEMORY_0", "1001")), "0 0 0 0");
}

#[test]
fn invalid_limit_warns_once_and_keeps_the_default() {
    let machine = Machine::new();
    let mut client = client(&machine, "dl", 0, "init 0, info, init 1, info, alloc 4217928961");
    let result = output(client.env("WRAPPER_MAX_MEMORY", "plenty"));
    let line = "bailiff-quota: WRAPPER_MAX_MEMORY=\"plenty\": not a size; using 4217928960 bytes\n";
    assert_eq!(String::from_utf8_lossy(&result.stderr), line);
    assert!(String::from_utf8_lossy(&result.stdout).ends_with("\n2\n"), "{result:?}");
}

#[test]
fn program_without_gpu_use_gets_no_output_or_log() {
    let machine = Machine::new();
    let log = machine.path("log");
    let mut echo = machine.program("/bin/echo");
    let result = output(echo.arg("hello").env("WRAPPER_MAX_MEMORY", "plenty").env("WRAPPER_LOG", &log));
    assert_eq!((&result.stdout[..], &result.stderr[..]), (&b"hello\n"[..], &b""[..]));
    assert!(!log.exists());
}

#[test]
fn managed_memory_and_overhead_follow_the_settings() {
    let machine = Machine::new();
    let calls = "init 0, managed 1000, pool 0 0 2, pooled 1000 0, alloc 100, alloc 1, free 0, free 1";
    let mut free = client(&machine, "dl", 100, calls);
    assert_eq!(codes(free.env("WRAPPER_COUNT_MANAGED", "0")), "0 0 0 0 0 2 0 0");
    let mut charged =
        client(&machine, "dl", 100, "init 0, info, alloc 61, alloc 60, init 1, alloc 60, alloc 1");
    assert_eq!(answers(charged.env("WRAPPER_CONTEXT_OVERHEAD", "40")), "0, 60 100 0, 2, 0, 0, 0, 2");
}

#[test]
fn log_contains_every_event() {
    let machine = Machine::new();
    let log = machine.path("log");
    let mut client = client(&machine, "dl", 100, "init 0, alloc 60, create 50 1 0, pitch 1 1, free 0");
    let result = output(client.env("WRAPPER_LOG", &log));
    assert_eq!((&result.stdout[..], &result.stderr[..]), (&b"0\n0\n2\n2\n0\n"[..], &b""[..]));
    let read = || fs::read_to_string(&log).unwrap_or_default();
    let text = read();
    // Times and addresses differ between runs.
    let events: Vec<&str> =
        text.lines().filter_map(|line| line.split_once("event=")).map(|(_, event)| event).collect();
    assert!(events[0].starts_with("granted call=cuMemAlloc_v2 gpu=0 bytes=60 address=0x"), "{text}");
    assert!(events[0].ends_with(" used=60 limit=100"), "{text}");
    assert_eq!(events[1], "denied call=cuMemCreate gpu=0 bytes=50 address=0x0 used=60 limit=100");
    assert_eq!(events[2], "denied call=cuMemAllocPitch_v2 gpu=0 bytes=512 address=0x0 used=60 limit=100");
    assert!(events[3].starts_with("freed call=cuMemFree_v2 gpu=0 bytes=60"), "{text}");
    assert_eq!(events.len(), 4, "{text}");
    let _ = output(&mut client);
    assert_eq!(read().lines().count(), 8, "new events are appended to the log");
}

#[test]
fn unusable_log_file_is_ignored() {
    let machine = Machine::new();
    let victim = machine.path("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, machine.path("link")).unwrap();
    mknodat(CWD, machine.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for name in ["link", "fifo", "no/where", ""] {
        let mut client = client(&machine, "dl", 100, "init 0, alloc 60, alloc 60, free 0");
        assert_eq!(codes(client.env("WRAPPER_LOG", machine.path(name))), "0 0 2 0", "{name}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
