//! `make bench`: measures the speed and size of the exporter and compares them with `nvitop-exporter` and
//! `all-smi`, in one run with the same fake driver and the same real processes. Absolute values depend on this
//! machine, ratios less so.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use end_to_end::bench::crowd::crowd;
use end_to_end::bench::enforcer::EvalContext;
use end_to_end::bench::leases::Counter;
use end_to_end::bench::load::Load;
use end_to_end::bench::local::{self, Locks};
use end_to_end::bench::peers::{self, Program};
use end_to_end::bench::quota;
use end_to_end::bench::screen::{self, Watch};
use end_to_end::bench::usage::mib;
use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::leases::pool;
use end_to_end::slurm::hook;

/// Number of measured scrapes, after a warm-up.
const SCRAPES: usize = 300;

fn main() {
    // `bench enforcer` runs only that part.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if local::waiter(&args) {
        return;
    }
    let part = args.first().cloned();
    let parts = [
        ("exporter", exporter as fn()),
        ("enforcer", enforcer),
        ("leases", leases),
        ("locks", locks),
        ("quota", quota),
        ("slurm", slurm),
        ("screen", screen),
    ];
    for (_, run) in parts.into_iter().filter(|(name, _)| part.as_deref().is_none_or(|part| part == *name)) {
        run();
    }
}

/// Measures leases with Redis: the cost of commands, and the handover time compared with a plain blocking pop.
fn leases() {
    const TIMES: usize = 100;
    let counter = Counter::new();
    let median = |mut took: Vec<Duration>| {
        took.sort_unstable();
        millis(took[took.len() / 2])
    };
    let (acquired, released): (Vec<Duration>, Vec<Duration>) = (0..TIMES).map(|_| counter.one_shot()).unzip();
    println!(
        "lease acquire {:>6.2} ms, release {:.2} ms, with process start",
        median(acquired),
        median(released)
    );
    let (run, bare): (Vec<Duration>, Vec<Duration>) = (0..TIMES).map(|_| counter.run()).unzip();
    println!("lease run true {:>5.2} ms, true alone {:.2} ms", median(run), median(bare));
    for waiters in [1, 50] {
        let rounds = if waiters == 1 { TIMES } else { 4 };
        // The measurements alternate, so that both see the same machine state.
        let (bare, ours): (Vec<_>, Vec<_>) =
            (0..rounds).map(|_| (counter.bare(waiters), counter.ours(waiters))).unzip();
        let (bare, ours) = (median(bare.concat()), median(ours.concat()));
        println!(
            "wake of {waiters:>2} waiters: {:>5.0} us, LPUSH to BRPOP alone {:.0} us: {:.1}x",
            ours * 1e3,
            bare * 1e3,
            ours / bare
        );
    }
    many();
}

fn many() {
    const MANY: usize = 1000;
    let seen = crowd(MANY);
    println!(
        "{MANY} waiters: {:.1} KiB of Redis each, {:.2} % of its core while they wait; from hand to hand {:.2} ms, \
         {:.0} us of its CPU, {} out of order",
        f64::from(seen.bytes_each) / 1024.0,
        seen.idle * 100.0,
        millis(seen.handover),
        millis(seen.cpu_each) * 1e3,
        seen.out_of_order
    );
}

/// Measures leases in a pool on this machine: the handover time compared with plain inotify and flock.
fn locks() {
    const TIMES: usize = 200;
    let locks = Locks::new();
    let median = |mut took: Vec<Duration>| {
        took.sort_unstable();
        millis(took[took.len() / 2]) * 1e3
    };
    for waiters in [1, 50] {
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        while ours.len() < TIMES {
            // The measurements alternate in equal numbers, since the machine's speed varies.
            let seen = locks.ours(waiters);
            bare.extend((0..seen.len()).map(|_| locks.bare()));
            ours.extend(seen);
        }
        let [locked, written] = [0, 1].map(|which| median(ours.iter().map(|took| took[which]).collect()));
        let bare = median(bare);
        println!(
            "local wake of {waiters:>2} waiters: {locked:>5.0} us, inotify and flock alone {bare:.0} us: {:.1}x; recorded at {written:.0} us",
            locked / bare
        );
    }
}

/// Measures the overhead of the quota library per driver call: at most 45 ns for one process and 70 ns for a
/// shared quota.
fn quota() {
    let scale = quota::Scale::new();
    println!(
        "{:<28} {:>8} {:>10} {:>8} {:>12}",
        "ns a call", "driver", "own quota", "shared", "by 8 at once"
    );
    for (name, kind, live, which) in [
        ("allocate, free", "plain", 0, "last"),
        ("in a stream", "async", 0, "last"),
        ("beside 20,000 others", "plain", 20_000, "last"),
        ("any of 20,000", "plain", 20_000, "any"),
    ] {
        let weigh = |front| scale.weigh(front, quota::Load { kind, live, which });
        let bare = weigh(quota::Front::Bare);
        let [own, shared, by_8] = [quota::Front::Own, quota::Front::Shared(0), quota::Front::Shared(7)]
            .map(|front| weigh(front) - bare);
        println!("{name:<28} {bare:>8.1} {own:>+10.1} {shared:>+8.1} {by_8:>+12.1}");
    }
}

fn exporter() {
    println!(
        "{:<28} {:>10} {:>10} {:>9} {:>9} {:>9} {:>6} {:>10}",
        "", "CPU/scrape", "p99", "RSS", "PSS", "bytes", "fds", "idle CPU"
    );
    for (gpus, each) in [(8, 4), (8, 100)] {
        let load = Load::new(gpus, each);
        let name = load.name();
        let bailiff = measure(&format!("bailiff {name}"), &peers::bailiff(&load, &["--interval", "5s"]));
        let redis = pool("0-7");
        let with_leases = peers::bailiff(&load, &["--interval", "5s", "--lease.redis", &redis.address()]);
        measure(&format!("  with leases {name}"), &with_leases);
        for peer in peers::others(&load) {
            let title = format!("{} {name}", peer.name());
            let other = measure(&title, &peer);
            println!(
                "{:<28} {:>9.1}x {:>9.1}x {:>8.1}x {:>8.1}x",
                "  of bailiff's",
                other.cpu.as_secs_f64() / bailiff.cpu.as_secs_f64(),
                other.p99.as_secs_f64() / bailiff.p99.as_secs_f64(),
                other.rss / bailiff.rss,
                other.pss / bailiff.pss,
            );
        }
        tick(&load, "tick", &[]);
        tick(&load, "tick, all sources", ALL_SOURCES);
        first_page(&load);
    }
    hung();
    descriptors();
}

struct Figures {
    cpu: Duration,
    p99: Duration,
    rss: f64,
    pss: f64,
}

/// Scrapes a program as Prometheus would, and measures the cost for the program.
fn measure(title: &str, program: &Program) -> Figures {
    let bytes = program.warm_up();
    let before = program.usage();
    let mut took: Vec<Duration> = (0..SCRAPES).map(|_| program.scrape()).collect();
    let after = program.usage();
    took.sort_unstable();
    let p99 = took[SCRAPES * 99 / 100];
    let idle = program.idle_cpu(Duration::from_secs(20));
    let cpu = after.cpu.saturating_sub(before.cpu) / u32::try_from(SCRAPES).unwrap_or(1);
    let [rss, pss] = [after.memory.rss, after.memory.pss].map(mib);
    println!(
        "{title:<28} {:>7.2} ms {:>7.2} ms {rss:>5.1} MiB {pss:>5.1} MiB {bytes:>9} {:>6} {:>8.2} %",
        millis(cpu),
        millis(p99),
        after.descriptors,
        idle.as_secs_f64() * 5.0,
    );
    Figures { cpu, p99, rss, pss }
}

/// The flags of the sources that are read only on request.
const ALL_SOURCES: &[&str] =
    &["--gpm", "--mig-idle", "--kernel-log", "--process.command", "--process.notebook"];

/// Measures the cost of a tick without scrapes: the CPU time of the exporter and its children for reading,
/// joining and rendering.
fn tick(load: &Load, title: &str, flags: &[&str]) {
    let program = peers::bailiff(load, &[&["--interval", "500ms"], flags].concat());
    program.warm_up();
    let began = program.tick();
    let cpu = program.idle_cpu(Duration::from_secs(15));
    let each = cpu.as_secs_f64() / (program.tick() - began);
    println!(
        "{:<28} {:>7.2} ms CPU a tick, {:.2} % of a core at 5 s",
        format!("bailiff {} {title}", load.name()),
        each * 1e3,
        each / 5.0 * 100.0
    );
}

/// Measures the time from the start of a program to its first page with processes. Our exporter and its peers
/// take turns.
fn first_page(load: &Load) {
    const STARTS: usize = 10;
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let ours = peers::bailiff(load, &[]);
        ours.until_processes();
        took.entry(ours.name()).or_default().push(began.elapsed());
        drop(ours);
        for start in peers::starters(load) {
            let began = Instant::now();
            let peer = start();
            peer.until_processes();
            took.entry(peer.name()).or_default().push(began.elapsed());
        }
    }
    for (name, mut took) in took {
        took.sort_unstable();
        let title = format!("{name} {} first page", load.name());
        let (median, worst) = (millis(took[STARTS / 2]), millis(took[STARTS - 1]));
        println!("{title:<40} {median:>7.2} ms median, {worst:.2} ms worst of {STARTS}");
    }
}

fn hung() {
    let load = Load::new(8, 4);
    let program = peers::bailiff(&load, &["--interval", "500ms"]);
    program.warm_up();
    load.hang();
    program.wait_for_tick(program.tick() + 2.0);
    let worst = (0..SCRAPES).map(|_| program.scrape()).max().unwrap_or_default();
    println!("{:<28} {:>7.2} ms worst of {SCRAPES}", "bailiff, driver hung", millis(worst));
}

fn descriptors() {
    let load = Load::new(8, 100);
    let program = peers::bailiff(&load, &["--interval", "100ms"]);
    program.warm_up();
    let before = program.usage().descriptors;
    program.wait_for_tick(program.tick() + 100.0);
    println!(
        "{:<28} {before} at first, {} after 100 ticks",
        "bailiff descriptors",
        program.usage().descriptors
    );
}

/// Measures the time from the confirming snapshot to the exit of the process, and the time to evaluate 1,000
/// holders.
fn enforcer() {
    const ENDED: usize = 20;
    let print = |what: &str, mut took: Vec<Duration>| {
        took.sort_unstable();
        let (median, worst) = (millis(took[ENDED / 2]), millis(took[ENDED - 1]));
        println!(
            "enforcer, 1,000: {what:<22} {median:>7.2} ms median, {worst:.2} ms worst of {ENDED}, by 20 rules"
        );
    };
    let mut context = EvalContext::new(1000 + ENDED, 19);
    print("to its end", (0..ENDED).map(|_| context.end_one()).collect());
    for _ in 0..100 {
        context.send(100);
        context.until_evaluated();
    }
    let before = context.rss_mib();
    for _ in 0..300 {
        context.send(100);
        context.until_evaluated();
    }
    let after = context.rss_mib();
    println!("enforcer, 1,000: {:<22} {before:>7.1} MiB after 100 ticks, {after:.1} after 400", "RSS");
    print("the kernel's own end", (0..ENDED).map(|_| context.end_without()).collect());
}

/// Measures the prolog of a job with eight clean GPUs, while 800 other processes run.
fn slurm() {
    const RUNS: usize = 20;
    let load = Load::new(8, 100);
    let scenario = Scenario::new("gpus: [{count: 8}]");
    let state = scenario.directory().join("state");
    let variables = [
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_UID", "65534"),
        ("SLURM_JOB_GPUS", "0,1,2,3,4,5,6,7"),
        ("SLURMD_NODENAME", "n0"),
    ];
    let prolog = || {
        let began = Instant::now();
        let arguments = ["prolog", "--config", "/nonexistent", "--gpus", "/dev/nvidia[0-7]"];
        let (code, report) = hook(&state, &scenario, &arguments, &variables);
        assert_eq!((code, report["verdict"].as_str()), (0, Some("clean")), "{report}");
        began.elapsed()
    };
    let mut took: Vec<Duration> = (0..RUNS).map(|_| prolog()).collect();
    took.sort_unstable();
    let (median, worst) = (millis(took[RUNS / 2]), millis(took[RUNS - 1]));
    println!("prolog, {} processes {median:>7.0} ms median, {worst:.0} ms worst of {RUNS}", load.name());
}

/// Measures the line that is printed at login, and the CPU time of `bailiff info --watch` in tmux.
fn screen() {
    const LOGINS: usize = 100;
    let load = Load::new(8, 100);
    let directory = Home::new();
    let stream = directory.stream();
    let program = peers::bailiff(&load, &["--interval", "1s", "--stream", &stream.to_string_lossy()]);
    program.warm_up();
    let mut took: Vec<Duration> = (0..LOGINS).map(|_| screen::login(&stream)).collect();
    took.sort_unstable();
    let (median, worst) = (millis(took[LOGINS / 2]), millis(took[LOGINS - 1]));
    println!("login line, {} {median:>7.2} ms median, {worst:.2} ms worst of {LOGINS}", load.name());
    for size in [(80, 24), (200, 50)] {
        let watch = Watch::start(&stream, size);
        let began = program.tick();
        let cpu = watch.cpu(Duration::from_secs(30));
        let each = cpu.as_secs_f64() / (program.tick() - began);
        println!(
            "info --watch, {} {:>7.2} % of a core at 1 s on {}x{}, {} lines scrolled",
            load.name(),
            each * 100.0,
            size.0,
            size.1,
            watch.scrolled()
        );
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
