//! Tests bad input: hostile names, truncated files, impossible values and invalid flags. The expected result is a
//! clear error or a counted gap, never a panic or a wrong number.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use end_to_end::exporter::{Exporter, run};
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};

fn gaps(page: &Page, gap: &str) -> f64 {
    page.value("bailiff_gaps_total", &[("gap", gap)]).unwrap_or_default()
}

fn one_gpu(processes: &str) -> Scenario {
    Scenario::new(&format!("sampling_period: 20ms\ngpus:\n  - processes: [{processes}]\n"))
}

#[test]
fn hostile_process_name_stays_a_label() {
    let name = "a\\\"}\\n) 1\\xff\\\\";
    let holder = Holder::python(&format!(
        "open('/proc/self/comm', 'wb').write(b'{name}')\nprint('ready')\nimport signal\nsignal.pause()"
    ));
    let scenario = one_gpu(&format!("{{pid: {}, used: 1GiB}}", holder.pid()));
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    let pid = holder.pid().to_string();
    let comm =
        page.label("bailiff_process_info", &[("pid", &pid)], "comm").expect("the process is described");
    assert!(comm.starts_with("a\"}"), "{comm:?}");
    assert_eq!(page.value("bailiff_process_gpu_memory_bytes", &[("pid", &pid)]), Some(f64::from(1 << 30)));
}

#[test]
fn hostile_proc_files_are_bounded() {
    let procfs = Procfs::new();
    for pid in 4100..4110 {
        procfs.add(&Process::new(pid));
    }
    procfs.write("4100/stat", "4100 (cut");
    procfs.write("4101/stat", "");
    procfs.write("4102/stat", "9999 (another pid) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 7 0 0\n");
    procfs.write("4103/cgroup", &format!("0::/{}\n", "x".repeat(10 << 20)));
    procfs.write("4104/cmdline", &"y\0".repeat(5 << 20));
    procfs.write("4105/cgroup", "0::/\"}\n{\\\n0::/kubepods/pod../..\n:::\n\u{0}");
    procfs.write("4106/io", "read_bytes: many\n");
    procfs.remove(4107);
    let path = procfs.path().to_str().unwrap().to_owned();
    let scenario = one_gpu("{pid: 4100, count: 10, used: 1GiB}");
    let exporter = Exporter::start(&scenario, &["--procfs", &path, "--process.command"]);
    let page = exporter.next();
    let state = |pid: &str| page.label("bailiff_process_state", &[("pid", pid)], "state");
    for pid in ["4100", "4101", "4102"] {
        assert_eq!(state(pid).as_deref(), Some("unknown"), "{pid}");
        assert_eq!(page.all("bailiff_process_cpu_seconds_total", &[("pid", pid)]).count(), 0);
    }
    assert_eq!(state("4107").as_deref(), Some("gone"));
    for pid in ["4103", "4104", "4105", "4106", "4108"] {
        assert_eq!(state(pid).as_deref(), Some("sleeping"), "{pid}");
    }
    assert_eq!(page.all("bailiff_process_io_bytes_total", &[("pid", "4106")]).count(), 0);
    assert!(gaps(&page, "malformed") >= 3.0);
    assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 10);
}

#[test]
fn impossible_values_are_dropped_and_counted() {
    let scenario = Scenario::new(
        "sampling_period: 20ms\n\
         gpus:\n  - processes: [{pid: 4100, used: 1GiB, sm: 40}]\n    \
         faults: {garbage: {utilization_above_100: true, pid_zero: true}}\n",
    );
    let exporter = Exporter::start(&scenario, &[]);
    let reason = |page: &Page| {
        page.label("bailiff_process_gpu_utilization_unknown_info", &[("pid", "4100")], "reason")
    };
    exporter.until("the samples are rejected", |page| (reason(page)? == "garbage").then_some(()));
    let page = exporter.page();
    assert!(gaps(&page, "utilization_above_100") > 0.0);
    assert_eq!(
        page.all("bailiff_process_gpu_utilization_ratio", &[]).count(),
        0,
        "and no process is reported as idle"
    );
    assert_eq!(page.all("bailiff_process_state", &[("pid", "0")]).count(), 0);
}

#[test]
fn utilization_above_100_percent_is_dropped() {
    let scenario = Scenario::new("gpus:\n  - utilization: {gpu: 255, memory: 200}\n");
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    for family in ["bailiff_gpu_utilization_ratio", "bailiff_gpu_memory_bandwidth_utilization_ratio"] {
        assert_eq!(page.all(family, &[]).count(), 0, "{family}");
    }
    assert!(gaps(&page, "utilization_above_100") > 0.0);
}

/// With `hidepid=2`, a running process looks as if it had exited, and so does pid 1.
#[test]
fn process_hidden_by_hidepid_is_not_gone() {
    let procfs = Procfs::new();
    procfs.remove(1);
    let path = procfs.path().to_str().unwrap().to_owned();
    let scenario = one_gpu("{pid: 4100, used: 1GiB}");
    let exporter = Exporter::start(&scenario, &["--procfs", &path]);
    let page = exporter.next();
    assert_eq!(page.label("bailiff_process_state", &[("pid", "4100")], "state").as_deref(), Some("hidden"));
    assert_eq!(page.value("bailiff_gpu_memory_parts_bytes", &[("part", "dead_pids")]), Some(0.0));
}

/// The pid was reused after the driver listed it and before the exporter read `/proc`.
#[test]
fn process_younger_than_the_list_is_not_listed() {
    let procfs = Procfs::new().with(&Process::new(4100));
    procfs.write("4100/stat", "4100 (young) S 1 4100 4100 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 99999999999 0 0\n");
    let path = procfs.path().to_str().unwrap().to_owned();
    let scenario = one_gpu("{pid: 4100, used: 1GiB}");
    let exporter = Exporter::start(&scenario, &["--procfs", &path]);
    let page = exporter.next();
    assert_eq!(page.label("bailiff_process_state", &[("pid", "4100")], "state").as_deref(), Some("gone"));
    assert_eq!(page.all("bailiff_process_info", &[("comm", "young")]).count(), 0);
}

#[test]
fn process_lists_of_every_entry_size_are_read() {
    for (entry_bytes, faults) in [(16, ""), (24, ""), (32, ""), (40, ""), (24, "    faults: {grow: 7}\n")] {
        let scenario = Scenario::new(&format!(
            "entry_bytes: {entry_bytes}\ngpus:\n  - processes: [{{pid: 4100, count: 100, used: 1GiB}}]\n{faults}"
        ));
        let exporter = Exporter::start(&scenario, &[]);
        let page = exporter.next();
        let bytes: f64 =
            page.all("bailiff_process_gpu_memory_bytes", &[("pid", "4100")]).map(|(_, b)| b).sum();
        assert_eq!(bytes, f64::from(1 << 30), "entries of {entry_bytes} bytes {faults}");
        assert!(
            page.value("bailiff_gpu_processes", &[]) >= Some(100.0),
            "entries of {entry_bytes} bytes {faults}"
        );
    }
}

#[test]
fn old_driver_leaves_missing_values_absent() {
    let scenario = Scenario::new(
        "missing: [nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetProcessesUtilizationInfo, nvmlDeviceGetSamples, \
         nvmlDeviceGetMPSComputeRunningProcesses_v3]\n\
         sampling_period: 20ms\ngpus:\n  - processes: [{pid: 4100, used: 1GiB, sm: 40}, {pid: 4101, used: 2GiB}]\n",
    );
    let exporter = Exporter::start(&scenario, &[]);
    let labels = [("pid", "4100"), ("engine", "sm")];
    exporter.until("utilization by the older call", |page| {
        (page.value("bailiff_process_gpu_utilization_ratio", &labels)? > 0.3).then_some(())
    });
    let page = exporter.page();
    assert_eq!(
        page.all("bailiff_gpu_memory_reserved_bytes", &[]).count(),
        0,
        "version 1 does not report reserved memory"
    );
    assert_eq!(
        page.all("bailiff_gpu_memory_parts_bytes", &[]).count(),
        0,
        "without reserved memory, the parts cannot add up"
    );
    assert!(page.value("bailiff_gpu_memory_used_bytes", &[]) > Some(3.0 * f64::from(1 << 30)));
}

#[test]
fn driver_clock_stepping_back_makes_no_process_idle() {
    let text = |clock: &str| {
        format!(
            "clock: {clock}\nsampling_period: 20ms\ngpus:\n  - processes: [{{pid: 4100, used: 1GiB}}, {{pid: 4101, used: 1GiB, sm: 9}}]\n"
        )
    };
    let scenario = Scenario::new(&text("wall"));
    let exporter = Exporter::start(&scenario, &[]);
    let reason = |page: &Page| {
        page.label("bailiff_process_gpu_utilization_unknown_info", &[("pid", "4100")], "reason")
    };
    exporter.until("the process is idle", |page| {
        page.value("bailiff_process_gpu_idle_seconds", &[("pid", "4100")])
    });
    scenario.set(&text("boot"));
    exporter.until("utilization is unknown", |page| (reason(page)? == "clock_stepped").then_some(()));
    exporter.until("a new window", |page| page.value("bailiff_process_gpu_idle_seconds", &[("pid", "4100")]));
}

#[test]
fn invalid_flags_and_paths_are_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let closed = tempfile::tempdir().unwrap();
    let nowhere = closed.path().join("no/such/directory/stream.sock");
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let nowhere = nowhere.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--no-such-flag"], 64, "--no-such-flag"),
        (&["--interval", "soon"], 64, "soon"),
        (&["--interval", "0s"], 64, "interval"),
        (&["--web.listen-address", "nowhere"], 64, "nowhere"),
        (&["--web.listen-address", &address], 1, "in use"),
        (&["--web.listen-address", "127.0.0.1:0", "--stream", nowhere], 1, "stream.sock"),
    ];
    for (arguments, code, text) in cases {
        let output = run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(text) && !errors.contains("panicked"), "{arguments:?}: {errors}");
    }
}
