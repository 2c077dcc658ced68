//! Tests `--kernel-log`: Xid errors that the kernel log attributes to a process are counted there, and no others.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, writes files and compares whole numbers"
)]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::page::Page;
use end_to_end::programs;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const METRIC: &str = "bailiff_process_gpu_xid_errors_total";

/// Two GPUs, of which a process holds the first one, and a log.
struct Node {
    scenario: Scenario,
    holder: Holder,
    log: PathBuf,
}

impl Node {
    fn new() -> Self {
        let holder = Holder::sleeping();
        let scenario = Scenario::new(&format!(
            "gpus: [{{processes: [{{pid: {}, used: 1GiB}}], xid: [8, 13, 31, 31, 31, 79]}}, {{}}]",
            holder.pid()
        ));
        let log = scenario.directory().join("kmsg");
        Self { scenario, holder, log }
    }

    fn start(&self) -> Exporter {
        let flag = format!("--kernel-log={}", self.log.display());
        let stream = self.stream();
        Exporter::start(&self.scenario, &[&flag, "--stream", &stream])
    }

    fn stream(&self) -> String {
        self.scenario.directory().join("stream.sock").display().to_string()
    }

    /// Returns a line of the driver about an error of the holder on its GPU.
    fn line(&self, xid: u32) -> String {
        format!("NVRM: Xid (PCI:0000:17:00): {xid}, pid={}, name=sleep, Ch 00000008", self.holder.pid())
    }

    /// Adds records of the kernel, with these sequence numbers.
    fn append(&self, records: &[(u64, String)]) {
        let record = |(sequence, line): &(u64, String)| format!("4,{sequence},1,-;{line}\n SUBSYSTEM=pci\n");
        self.write(&records.iter().map(record).collect::<Vec<_>>().concat());
    }

    fn write(&self, text: &str) {
        File::options().append(true).open(&self.log).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the log has been read in a sample that began after the holder was listed.
    fn until_read(&self, exporter: &Exporter) {
        let pid = self.holder.pid().to_string();
        exporter.until("the holder", |page| page.value("bailiff_process_gpu_memory_bytes", &[("pid", &pid)]));
        exporter.next();
    }
}

/// Returns the number of lines by GPU, pid and Xid.
fn counted(page: &Page) -> Vec<(String, String, String, f64)> {
    let rows = page.all(METRIC, &[]);
    rows.map(|(labels, count)| {
        let [gpu, pid, xid] = ["gpu", "pid", "xid"].map(|name| labels[name].clone());
        (gpu, pid, xid, count)
    })
    .collect()
}

fn gaps(page: &Page) -> f64 {
    page.value("bailiff_gaps_total", &[("gap", "kernel_log")]).unwrap_or_default()
}

#[test]
fn errors_of_the_process_are_counted_and_no_others() {
    let node = Node::new();
    fs::write(&node.log, "").unwrap();
    node.append(&[(1, node.line(8))]);
    let exporter = node.start();
    node.until_read(&exporter);
    assert_eq!(counted(&exporter.page()), []);
    let pid = node.holder.pid().to_string();
    let good = node.line(8);
    let others = [
        good.replace(&pid, &std::process::id().to_string()),
        good.replace(":17:", ":18:"),
        good.replace("17:00", "17:00 GPU-I:01"),
        good.replace("sleep", "slee"),
        good.replace("sleep", "python3"),
        good.replace("Ch 00000008", "Contained: SM (0x1)"),
        good.replace(": 8,", ": 79,"),
        good.replace(&format!("pid={pid}, name=sleep, "), ""),
        good.replace(&pid, "'<unknown>'"),
        format!("{good} caused by previous Xid 149"),
        format!("x {good}"),
        format!("NVRM: Xid (PCI:0000:17:00): 8, pid=1, name=x, pid={pid}, name=sleep, Ch 00000008"),
    ];
    node.write(&format!("12,2,1,-;{good}\n4,2,1,+;{good}\n4,2,1;{good}\n {good}\n{good}\n"));
    node.append(&(3..).zip(others).collect::<Vec<_>>());
    // Records that were read before are not counted again.
    let own = [
        (20, node.line(31)),
        (20, node.line(31)),
        (7, node.line(8)),
        (21, node.line(31)),
        (22, node.line(13)),
    ];
    node.append(&own);
    let row = |xid: &str, count| ("0".to_owned(), pid.clone(), xid.to_owned(), count);
    let expected = [row("13", 1.0), row("31", 2.0)];
    exporter.until("the last record", |page| page.value(METRIC, &[("xid", "13")]));
    assert_eq!(counted(&exporter.next()), expected);
    assert_eq!(gaps(&exporter.page()), 0.0);
    check_info(&node, &exporter);
}

/// `bailiff info` shows the errors of the process.
fn check_info(node: &Node, exporter: &Exporter) {
    let info = |flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.args(["info", "--deadline", "10s", "--stream", &node.stream()]).args(flags);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}: {}", String::from_utf8_lossy(&output.stderr), exporter.log());
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!(report["gpus"][0]["holders"][0]["xids"], serde_json::json!({"13": 1, "31": 2}));
    let pid = node.holder.pid();
    let text = info(&["--full"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = format!("{pid}: 1 x Xid 13 (an application's error), 2 x Xid 31 (an application's error)");
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn counts_go_on_after_the_worker_was_replaced() {
    let node = Node::new();
    fs::write(&node.log, "").unwrap();
    let exporter = node.start();
    node.until_read(&exporter);
    node.append(&[(1, node.line(31))]);
    let count = |page: &Page| page.value(METRIC, &[("xid", "31")]);
    exporter.until("the first error", |page| (count(page)? == 1.0).then_some(()));
    let worker = exporter.children("sampling-worker")[0];
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
    exporter.until("a gap", |page| (gaps(page) == 1.0 && count(page).is_some()).then_some(()));
    // The new worker starts at the end, and what it reads again is not counted.
    node.append(&[(1, node.line(31)), (2, node.line(31))]);
    exporter.until("the second error", |page| (count(page)? == 2.0).then_some(()));
    assert_eq!(gaps(&exporter.page()), 1.0);
}

#[test]
fn log_that_cannot_be_read_is_reported_once_and_tried_again() {
    let node = Node::new();
    let exporter = node.start();
    exporter.until("several gaps", |page| (gaps(page) >= 3.0).then_some(()));
    let warnings = || exporter.log().matches("cannot read the kernel log").count();
    assert_eq!(warnings(), 1, "{}", exporter.log());
    assert_eq!(counted(&exporter.page()), []);
    // A FIFO has no end, and no writer at first.
    mknodat(CWD, &node.log, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    exporter.until("no more gaps", |page| {
        let before = gaps(page);
        (gaps(&exporter.next()) == before).then_some(())
    });
    node.append(&[(1, node.line(31))]);
    exporter.until("the error", |page| page.value(METRIC, &[("xid", "31")]));
    assert_eq!(warnings(), 1, "{}", exporter.log());
}

#[test]
fn kernel_log_is_read_only_with_the_flag() {
    let node = Node::new();
    fs::write(&node.log, "").unwrap();
    let times_open = |exporter: &Exporter| {
        node.until_read(exporter);
        let worker = exporter.children("sampling-worker")[0];
        let files = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        files
            .filter(|file| fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|path| path == node.log))
            .count()
    };
    assert_eq!(times_open(&node.start()), 1);
    let without = Exporter::start(&node.scenario, &[]);
    assert_eq!((times_open(&without), gaps(&without.page())), (0, 0.0));
}
