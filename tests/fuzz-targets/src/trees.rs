//! Structured input: quota files, snapshots, rules files, and the state of a lease pool.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::engine::{Engine, Now};
use bailiff_engine::policy::{self, FaultStyle, LoadContext, Mode, Policy};
use bailiff_engine::verdict::{Verdict, What};
use bailiff_engine::view::View;
use bailiff_lease::audit::Audit;
use bailiff_lease::holder::{Life, LocalHost};
use bailiff_lease::legacy::{Found, WriterEvidence};
use bailiff_lease::report::Node;
use bailiff_ledger::{GPUS, SIZE, SLOTS};
use bailiff_snapshot::{Leases, PidNamespace, Truth, wire};
use tempfile::TempDir;

use crate::texts::has_number;

/// Most lines of one input, because an engine keeps the state of all of them.
const MOST_LINES: usize = 16;

pub(crate) static HOME: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a temporary directory"));

/// The first two bytes are the place of the rest in an empty quota file.
pub(crate) fn ledger(data: &[u8]) {
    let Some((place, bytes)) = data.split_first_chunk() else { return };
    let path = HOME.path().join("quota");
    let _ = std::fs::remove_file(&path);
    bailiff_ledger::create(&path, &[([7; 16], 4096)]).expect("a quota file");
    let file = File::options().write(true).open(&path).expect("the file exists");
    let at = usize::from(u16::from_le_bytes(*place)) % SIZE;
    file.write_all_at(&bytes[..bytes.len().min(SIZE - at)], at as u64).expect("the file is writable");
    let Ok(before) = bailiff_ledger::read(&path) else { return };
    assert!(before.gpus.len() <= GPUS && before.processes.len() <= SLOTS);
    for gpu in &before.gpus {
        assert_eq!(gpu.by_process.len(), before.processes.len());
        assert_eq!(gpu.used, gpu.by_process.iter().fold(0, |sum, used| used.saturating_add(sum)));
    }
    if bailiff_ledger::set_limit(&path, [9; 16], 1234).is_ok() {
        let mut after = bailiff_ledger::read(&path).expect("it is still a quota file");
        assert!(after.gpus.iter().any(|gpu| gpu.uuid == [9; 16] && gpu.limit == 1234));
        after.gpus.retain(|gpu| gpu.uuid != [9; 16]);
        assert!(after.gpus.iter().all(|gpu| before.gpus.contains(gpu)), "another GPU has changed");
    }
    file.set_len(at as u64).expect("the file is writable");
    assert!(bailiff_ledger::read(&path).is_err(), "a cut file is not a quota file");
}

/// Ends idle processes and workloads at once, so that few snapshots lead to an action.
const IDLE: &[u8] = b"version: 1
mode: enforce
allow_root: true
defaults: {startup_grace: 0s, cooldown: 0s}
limits: {per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100, mass_share: 100%, mass_min: 100}
rules:
  - {name: p, target: process, when: {gpu_util: {max: 50%}}, for: {samples: 3}, then: [{terminate: {grace: 1s}}]}
  - {name: w, target: workload, when: {gpu_util: {max: 50%}}, for: {samples: 3}, then: [{terminate: {grace: 1s}}]}
";

const CONTEXT: LoadContext =
    LoadContext { is_redis_address, ..LoadContext::accepting(Duration::from_secs(1_767_225_600)) };

fn is_redis_address(address: &str) -> bool {
    bailiff_lease::check(address).is_ok()
}

/// Reads lines, passes their snapshots to an engine, and returns the verdicts with the view of each.
fn verdicts(policy: &Arc<Policy>, lines: &[u8]) -> Vec<(Arc<View>, Vec<Verdict>)> {
    let mut engine = Engine::new(Arc::clone(policy), Mode::Enforce);
    let mut before: Option<Arc<View>> = None;
    let snapshots =
        lines.split(|byte| *byte == b'\n').take(MOST_LINES).filter_map(|line| wire::parse(line).ok());
    let mut all = Vec::new();
    for snapshot in snapshots {
        let view = Arc::new(View::between(before.as_deref(), snapshot));
        let now = Now { boot: view.boot(), wall: Duration::from_millis(view.snapshot.wall_ms) };
        if let Ok(verdicts) = engine.tick(now, Arc::clone(&view)) {
            all.push((Arc::clone(&view), verdicts));
        }
        before = Some(view);
    }
    let saved = serde_json::to_vec(&engine.saved()).expect("the state has a JSON form");
    let saved = serde_json::from_slice(&saved).expect("the saved state can be read back");
    Engine::new(Arc::clone(policy), Mode::Enforce).restore(saved, Now::default());
    all
}

/// Snapshots in which two processes are idle.
const LINES: &[u8] = include_bytes!("../../../fuzz/corpus/stream/idle.jsonl");

fn idle_policy() -> Arc<Policy> {
    let policy = Arc::new(policy::load(IDLE, "idle.yaml", CONTEXT).expect("the rules are valid").policy);
    let mut verdicts = verdicts(&policy, LINES).into_iter().flat_map(|(_, verdicts)| verdicts);
    assert!(
        verdicts.any(|verdict| matches!(verdict.what, What::Act(..))),
        "the properties of actions are not tested"
    );
    policy
}

pub(crate) fn stream(data: &[u8]) {
    static POLICY: LazyLock<Arc<Policy>> = LazyLock::new(idle_policy);
    for line in data.split(|byte| *byte == b'\n').take(MOST_LINES) {
        let Ok(snapshot) = wire::parse(line) else { continue };
        // The decimal form of a number is not exact, so the second reading is compared with the third.
        let again = |snapshot: &wire::Snapshot| {
            wire::parse(&serde_json::to_vec(snapshot).expect("a snapshot has a JSON form"))
        };
        let once = again(&snapshot).expect("a snapshot that was written is read");
        assert_eq!(again(&once).ok(), Some(once));
    }
    for (view, verdicts) in verdicts(&POLICY, data) {
        verdicts
            .iter()
            .filter(|verdict| matches!(verdict.what, What::Act(..)))
            .for_each(|verdict| act(&view, verdict));
    }
}

/// Every process that an action ends is in the snapshot, and was observed to be idle on every GPU.
fn act(view: &View, verdict: &Verdict) {
    assert!(view.trusted() && !view.blind(), "an action without knowledge of the node: {verdict:?}");
    let snapshot = &view.snapshot;
    for member in &verdict.subject.members {
        let key = member.key.expect("a process without identity is not ended");
        let listed = snapshot.processes.iter().any(|process| process.key() == Some(key));
        let related = snapshot.relatives.iter().flatten().any(|process| process.key() == key);
        assert!(listed || related, "{key:?} is not in the snapshot");
        let mut holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
        let idle =
            holders.all(|holder| holder.pid != key.pid || holder.utilization.is_some_and(|used| used <= 50));
        assert!(idle || !member.holds, "{key:?} was not observed to be idle");
        assert!(verdict.subject.kind != Kind::Process || verdict.subject.members.len() == 1);
    }
}

pub(crate) fn rules(data: &[u8]) {
    let loaded = match policy::load(data, "rules.yaml", CONTEXT) {
        Ok(loaded) => loaded,
        Err(faults) => {
            assert!(faults.errors() > 0 && !faults.render(FaultStyle::Plain).is_empty());
            return assert_eq!(faults.iter().count(), faults.lines().count());
        }
    };
    let policy = Arc::new(loaded.policy);
    for (view, verdicts) in verdicts(&policy, LINES) {
        for verdict in verdicts {
            let rule =
                policy.rules.iter().find(|rule| rule.name == verdict.rule).expect("it is a rule of the file");
            assert!(verdict.mode <= rule.mode, "a rule in dry-run mode acts");
            assert!(!matches!(verdict.what, What::Act(..)) || view.trusted());
        }
    }
}

const BOOT: &str = "8e0b5f6c-0000-4000-8000-000000000001";
const NAMESPACE: &str = "4026531836";

/// Makes a `/proc` with pid 1 and pid 42, which started at ticks 5 and 4242.
fn procfs() -> PathBuf {
    let proc = HOME.path().join("proc");
    let tail = "S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0";
    let stats = [("1", "1 (init)", 5), ("42", "42 (python3)", 4242)];
    let files = stats.map(|(pid, head, start)| (format!("{pid}/stat"), format!("{head} {tail} {start}\n")));
    for (path, text) in files.into_iter().chain([("sys/kernel/random/boot_id".to_owned(), BOOT.to_owned())]) {
        let path = proc.join(path);
        std::fs::create_dir_all(path.parent().expect("it is in the directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    std::fs::create_dir_all(proc.join("self/ns")).expect("a directory");
    std::os::unix::fs::symlink(format!("pid:[{NAMESPACE}]"), proc.join("self/ns/pid")).expect("a link");
    proc
}

pub(crate) fn lease(data: &[u8]) {
    static NODE: LazyLock<Node> = LazyLock::new(|| Node::read(&procfs(), PidNamespace::Host));
    let text = String::from_utf8_lossy(data);
    let Ok(audit) = serde_json::from_str::<Audit>(&text) else { return };
    let host = LocalHost {
        host: "0123456789abcdef0123456789abcdef".to_owned(),
        boot: BOOT.to_owned(),
        pidns: NAMESPACE.to_owned(),
        all_users: true,
    };
    let leases = audit.leases(&NODE, Duration::from_secs(1000));
    assert_eq!(leases.gpus.len(), audit.gpus.len());
    for held in &leases.held {
        assert!(
            held.holder
                .iter()
                .chain(&held.chain)
                .all(|key| has_number(&text, key.pid) && has_number(&text, key.start_ticks))
        );
        let here = audit.leases.iter().any(|lease| lease.lease == held.lease && lease.get("boot").is_some());
        assert!(held.alive == Truth::Unknown || here, "the holder may be on another machine: {held:?}");
    }
    let written = serde_json::to_string(&leases).expect("leases have a JSON form");
    let read: Leases = serde_json::from_str(&written).expect("leases that were written are read");
    assert_eq!((read.gpus, read.held, read.queue), (leases.gpus, leases.held, leases.queue));
    for lease in audit.leases.iter().take(2) {
        let of_boot = lease.get("boot") == Some(BOOT);
        assert!(host.life(lease) != Life::Dead || of_boot || lease.get("known").is_some(), "{lease:?}");
        assert!(host.chain_life(lease) != Life::Alive || of_boot, "{lease:?}");
    }
    for record in audit.gpus.iter().filter_map(|gpu| gpu.record.as_ref()).take(1) {
        let evidence = WriterEvidence::of(record);
        assert!(evidence.is_none_or(|evidence| evidence.pid == record.pid && evidence.time == record.time));
        assert_eq!(WriterEvidence::collect(&host, record, Found::Later).pid, record.pid);
    }
}
