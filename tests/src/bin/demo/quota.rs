//! A program under a memory limit: what it can see and allocate, and what the exporter reports.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use end_to_end::cuda::{Machine, client, library};
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::{leases, programs};

use crate::show::{gib, print_numbers};

const GIB: u64 = 1 << 30;
/// The size of each request.
const SIZE: u64 = 3 * GIB;
/// Driver memory for the program's context.
const CONTEXT: u64 = GIB / 2;

const QUERY: &str = "it sees";
const ALLOCATE: &str = "asks for 3 GiB";
const FREE: &str = "frees 3 GiB";

const METRICS: [&str; 4] = [
    "bailiff_quota_limit_bytes{",
    "bailiff_quota_used_bytes{",
    "bailiff_quota_denied_total{",
    "bailiff_quota_unaccounted_bytes{",
];

/// Runs the program on a fake CUDA driver, with the quota library in front of it, as with the real
/// driver.
pub(crate) fn limit(directory: &Path, (exporter, scenario): (&Exporter, &Scenario)) {
    println!("\nA program and its children may allocate 8 GiB. It allocates 3 GiB several times:\n");
    println!("$ bailiff run --vram 8GiB -- ./allocate");
    let machine = Machine::new();
    let query = format!("alloc {SIZE}");
    let mut command = machine.bare(programs::bailiff());
    command.args(["run", "--quiet", "--vram", "8GiB", "--quota-library"]).arg(library());
    command.arg("--quota-dir").arg(directory.join("quota/demo")).arg("--").arg(client("dl")).arg("dl");
    command.args(["init 0", "info", &query, &query, &query, "info", "wait", "free 0", &query]);
    let mut program = Client::start(&mut command);
    program.print_answers(&["", QUERY, ALLOCATE, ALLOCATE, ALLOCATE, QUERY, ""]);
    let pid = leases::command_of(&program.child).as_raw_nonzero();
    let used = (2 * SIZE + CONTEXT) / (1 << 20);
    scenario.set(&format!(
        "sampling_period: 100ms\ngpus:\n  - processes: [{{pid: {pid}, used: {used}MiB, sm: 50}}]\n"
    ));
    exporter.until("its use is exported", |page| {
        page.value("bailiff_quota_unaccounted_bytes", &[]).filter(|more| *more > 0.0)
    });
    println!();
    print_numbers(exporter, &METRICS);
    println!("\nThe unaccounted memory is that of its context. It frees 3 GiB, and allocates them again:\n");
    program.go_on();
    program.print_answers(&[FREE, ALLOCATE]);
    let ended = program.child.wait().expect("our own child can be waited for");
    let left = std::fs::read_dir(directory.join("quota/demo")).map_or(0, Iterator::count);
    println!("\nIt exited ({ended}), and {left} quota files remain.");
}

/// The program and its output.
struct Client {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bailiff starts");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, lines }
    }

    /// Prints the program's results for these calls. Calls without a name are skipped.
    fn print_answers(&mut self, done: &[&str]) {
        for name in done {
            let answer = self.line();
            let answer: Vec<u64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match answer[..] {
                _ if name.is_empty() => {}
                [free, total, 0] => println!("  {name:<16} {} of {} free", gib(free), gib(total)),
                [0] if *name == FREE => println!("  {name}"),
                [0] => println!("  {name:<16} granted"),
                [2] => println!("  {name:<16} refused: CUDA_ERROR_OUT_OF_MEMORY; the program continues"),
                _ => println!("  {name:<16} failed: {answer:?}"),
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the client prints a line");
        line
    }

    fn go_on(&mut self) {
        self.child
            .stdin
            .as_mut()
            .expect("stdin is piped")
            .write_all(b"\n")
            .expect("the client reads its input");
        // The line that `wait` prints.
        let _ = self.line();
    }
}
