//! The random trial: a real exporter and enforcer with the fake driver, real processes, random disturbances, and a
//! witness that knows the truth. Usage, as root: `trial [SECONDS] [SEED]`. Without a seed, one is chosen and
//! printed.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a test program starts programs, reads files and clocks, and fails loudly"
)]

mod daemons;
mod dice;
mod disturb;
mod inputs;
mod policy;
mod relay;
mod trace;
mod witness;
mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use end_to_end::home::Home;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions, getpid, set_child_subreaper, wait};
use rustix::time::{ClockId, clock_gettime};

use crate::daemons::{Daemon, Daemons};
use crate::dice::Dice;
use crate::disturb::Later;
use crate::policy::Policy;
use crate::relay::Sent;
use crate::trace::Trace;
use crate::witness::{Violation, Witness};
use crate::world::{Spec, World};

/// Duration of the timeline that is printed with a violation.
const BEFORE: Duration = Duration::from_secs(8);
/// Pause between two steps.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of violations of each kind that are printed completely.
const SHOWN: u64 = 2;

/// The trial.
struct Trial {
    // The trace's mount is below the home directory, which can be removed only after the trace is dropped.
    trace: Trace,
    dice: Dice,
    world: World,
    daemons: Daemons,
    witness: Witness,
    stream: Receiver<Sent>,
    audit: Tail,
    signals: Tail,
    later: BTreeMap<(Duration, u64), Later>,
    number: u64,
    events: VecDeque<(Duration, Option<usize>, String)>,
    /// Pids to be reused as soon as they are free.
    reuse: BTreeMap<u32, Spec>,
    /// Daemons that are expected to exit.
    expected: BTreeSet<Daemon>,
    /// Whether the state file is removed before the enforcer is restarted.
    forget: bool,
    rules_busy: bool,
    fifo: Option<File>,
    paused: bool,
    /// Time since which the rules file has been valid again.
    rules_good: Duration,
    resumed: Duration,
    shown: usize,
}

/// A file that is read line by line as it grows.
#[derive(Default)]
struct Tail(u64);

impl Tail {
    fn lines(&mut self, path: &Path) -> Vec<String> {
        let Ok(mut file) = File::open(path) else { return Vec::new() };
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(self.0)).and_then(|_| file.read_to_end(&mut bytes));
        let whole =
            read.ok().and_then(|_| bytes.iter().rposition(|byte| *byte == b'\n')).map_or(0, |end| end + 1);
        self.0 += whole as u64;
        String::from_utf8_lossy(&bytes[..whole]).lines().map(str::to_owned).collect()
    }
}

/// Returns the time on `CLOCK_BOOTTIME`.
fn boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Runs a program, which must succeed.
fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect(program);
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["listen"] {
        relay::listen();
        return ExitCode::SUCCESS;
    }
    let numbers: Option<Vec<u64>> =
        arguments.iter().filter(|word| *word != "inside").map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some(numbers) if numbers.len() < 3 && arguments.first().is_some_and(|word| word == "inside") => {
            inside(numbers)
        }
        Some(numbers) if numbers.len() < 3 => outside(&arguments),
        _ => {
            eprintln!("usage: trial [SECONDS] [SEED]");
            ExitCode::from(64)
        }
    }
}

/// Runs the trial in its own mount namespace and session. The trial shuts down once this process has exited, for
/// example by Ctrl-C, because its standard input is closed then.
fn outside(arguments: &[String]) -> ExitCode {
    let program = std::env::current_exe().expect("a running program has a file");
    let mut command = Command::new("setsid");
    command
        .args(["unshare", "--mount", "--propagation", "private"])
        .arg(program)
        .arg("inside")
        .args(arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("setsid");
    let input = child.stdin.take();
    let status = child.wait().expect("our own child can be waited for");
    drop(input);
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn inside(numbers: &[u64]) -> ExitCode {
    let seconds = numbers.first().copied().unwrap_or(20);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = numbers.get(1).copied().unwrap_or(now.as_secs() % 1_000_000);
    println!("trial: {seconds} s, seed {seed}");
    let mut trial = Trial::new(Dice(seed));
    let begun = boot();
    let mut minute = begun + Duration::from_mins(1);
    let mut next = begun;
    while boot() < begun + Duration::from_secs(seconds) && !input_closed() {
        trial.step();
        if boot() > next {
            trial.disturb();
            next = boot() + Duration::from_millis(trial.dice.within(20, 300));
        }
        if boot() > minute {
            minute += Duration::from_mins(1);
            trial.print_line(begun);
        }
        let before = boot();
        std::thread::park_timeout(PAUSE);
        trial.witness.slept(before, boot().saturating_sub(before).saturating_sub(PAUSE));
    }
    trial.finish();
    trial.print_table();
    if trial.witness.violations.is_empty() {
        println!("trial: no violation, seed {seed}");
        return ExitCode::SUCCESS;
    }
    println!("trial: {} violations, seed {seed}", trial.witness.violations.len());
    ExitCode::FAILURE
}

fn input_closed() -> bool {
    let input = std::io::stdin();
    let mut files = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Trial {
    fn new(dice: Dice) -> Self {
        set_child_subreaper(Some(getpid())).expect("a subreaper");
        let home = Home::new();
        let trace = Trace::open(&home.path().join("tracing"));
        let world = World::new(&home);
        home.write(&Policy::open().text(world.protected_program()));
        let mut witness = Witness::default();
        witness.policies.insert(daemons::sha256(&home.rules()), Policy::open());
        let daemons = Daemons::new(home, world.scenario.path());
        let stream = relay::start(&daemons.home.stream(), daemons.source());
        let mut trial = Self {
            dice,
            world,
            daemons,
            witness,
            trace,
            stream,
            audit: Tail::default(),
            signals: Tail::default(),
            later: BTreeMap::new(),
            number: 0,
            events: VecDeque::new(),
            reuse: BTreeMap::new(),
            expected: BTreeSet::new(),
            forget: false,
            rules_busy: false,
            fifo: None,
            paused: false,
            rules_good: boot(),
            resumed: boot(),
            shown: 0,
        };
        trial.start(Daemon::Exporter);
        trial.start(Daemon::Enforcer);
        trial
    }

    /// Adds an event to the timeline of a target or of the node.
    fn note(&mut self, index: Option<usize>, text: String) {
        self.note_at(boot(), index, text);
    }

    fn note_at(&mut self, at: Duration, index: Option<usize>, text: String) {
        let root = index.map(|index| self.world.processes[index].root);
        self.events.push_back((at, root, text));
        if self.events.len() > 4_000 {
            self.events.pop_front();
        }
    }

    fn start(&mut self, which: Daemon) {
        if self.daemons.pid(which).is_some() {
            return;
        }
        if which == Daemon::Enforcer && std::mem::take(&mut self.forget) {
            let state = self.daemons.home.state();
            let _ = std::fs::remove_dir_all(&state).and_then(|()| std::fs::create_dir(&state));
            self.witness.forgotten = boot();
            // The pause is stored in the state, so it ends when the state is removed.
            self.end_pause();
            self.note(None, "the enforcer's state was removed".to_owned());
        }
        self.daemons.start(which);
        self.note(None, format!("{which:?} was started"));
    }

    /// Reads all inputs, and runs the events that are due.
    fn step(&mut self) {
        self.witness.run(self.daemons.threads(), boot());
        self.reap();
        while let Ok(sent) = self.stream.try_recv() {
            self.witness.snapshot(&sent);
        }
        self.read_signals();
        self.read_audit();
        for signal in self.trace.read() {
            self.witness.signal(signal);
            let index = self.world.at(signal.pid, signal.at);
            if index.is_some() && signal.code <= 0 {
                let sender = if signal.sender == std::process::id() { "the trial" } else { "the enforcer" };
                self.note_at(
                    signal.at,
                    index,
                    format!("signal {} to {} from {sender}", signal.number, signal.pid),
                );
            }
        }
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 < boot()) {
            entry.remove()(self);
        }
        self.upkeep();
        self.witness.check_due(boot(), &self.world);
        self.print_violations();
    }

    fn print_violations(&mut self) {
        while let Some(violation) = self.witness.violations.get(self.shown) {
            self.shown += 1;
            let kind = format!("violation {}", violation.kind);
            if self.witness.counts.get(&kind).copied().unwrap_or_default() <= SHOWN {
                self.print_timeline(violation);
            }
        }
    }

    fn print_timeline(&self, violation: &Violation) {
        println!("\nVIOLATION at {:.3}: {}: {}", violation.at.as_secs_f64(), violation.kind, violation.text);
        let mut events: Vec<_> = self
            .events
            .iter()
            .filter(|(at, root, text)| {
                let about = root.is_none() || *root == violation.root || violation.is_about(text);
                about && *at + BEFORE > violation.at && *at < violation.at + Duration::from_millis(500)
            })
            .collect();
        events.sort_by_key(|(at, ..)| *at);
        for (at, _, text) in events {
            println!("  {:>10.3} s  {text}", at.as_secs_f64() - violation.at.as_secs_f64());
        }
    }

    /// Waits until all pending checks are done.
    fn finish(&mut self) {
        self.expected.insert(Daemon::Enforcer);
        self.daemons.signal(Daemon::Enforcer, Signal::CONT);
        self.daemons.signal(Daemon::Enforcer, Signal::KILL);
        let until = boot() + Duration::from_secs(3);
        while boot() < until {
            self.later.clear();
            self.step();
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.witness.compare(boot(), &self.world);
        self.print_violations();
    }

    fn print_line(&self, begun: Duration) {
        let sum = |prefix: &str| -> u64 {
            self.witness
                .counts
                .iter()
                .filter(|(name, _)| name.starts_with(prefix))
                .map(|(_, count)| count)
                .sum()
        };
        println!(
            "{:>5} s: {} snapshots, {} disturbances, {} actions, {} TERM, {} KILL, {} violations",
            boot().saturating_sub(begun).as_secs(),
            sum("snapshots"),
            sum("disturbance "),
            sum("action "),
            sum("signal 15"),
            sum("signal 9"),
            self.witness.violations.len()
        );
    }

    fn print_table(&self) {
        println!();
        for (name, count) in &self.witness.counts {
            println!("{count:>8}  {name}");
        }
    }
}

/// Ends everything that the trial has started, also after a panic.
impl Drop for Trial {
    fn drop(&mut self) {
        for which in [Daemon::Exporter, Daemon::Enforcer] {
            self.daemons.signal(which, Signal::KILL);
        }
        self.world.end();
        let until = boot() + Duration::from_secs(5);
        while boot() < until && !matches!(wait(WaitOptions::NOHANG), Err(rustix::io::Errno::CHILD)) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
