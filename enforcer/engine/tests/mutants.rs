//! Mutation test for the oracle: deliberate faults are put into a copy of the engine, one at a time, and the
//! oracle's test must fail for each fault. Run it with `cargo test --package bailiff-engine --test mutants --
//! --ignored --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "copies the workspace and runs cargo in the copy")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A mutation: `find`, which must occur once in the file, is replaced.
struct Mutant {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
}

const fn mutant(
    name: &'static str,
    file: &'static str,
    (find, replace): (&'static str, &'static str),
) -> Mutant {
    Mutant { name, file, find, replace }
}

const MUTANTS: [Mutant; 37] = [
    mutant(
        "unknown counts as true",
        "crates/snapshot/src/streak.rs",
        (
            "Truth::Unknown => self.miss(1, max_gap),",
            "Truth::Unknown => { self.count = self.count.saturating_add(1); self.miss(1, max_gap) }",
        ),
    ),
    mutant(
        "false does not reset",
        "crates/snapshot/src/streak.rs",
        ("        *self = Self::default();\n        false", "        false"),
    ),
    mutant(
        "the gap's limit is off by one",
        "crates/snapshot/src/streak.rs",
        ("if self.unknown > max_gap {", "if self.unknown > max_gap + 1 {"),
    ),
    mutant(
        "missed ticks are ignored",
        "enforcer/engine/src/engine/evaluator.rs",
        (
            "let held = missed == 0 || self.streak.miss(missed, max_gap);",
            "let held = missed == 0 || max_gap <= u32::MAX;",
        ),
    ),
    mutant(
        "an action is taken on unknown",
        "enforcer/engine/src/engine/evaluator.rs",
        (
            "if outcome == Truth::True && track.streak.count >= needed && self.picking.is_none() {",
            "if outcome != Truth::False && track.streak.count >= needed && self.picking.is_none() {",
        ),
    ),
    mutant(
        "one sample too few",
        "enforcer/engine/src/engine/evaluator.rs",
        ("let since = track.streak.count - needed;", "let since = track.streak.count - needed + 1;"),
    ),
    mutant(
        "protection is ignored",
        "enforcer/engine/src/engine/evaluator.rs",
        ("let mut gates = vec![(Gate::Protection, table.unprotected())];", "let mut gates = Vec::new();"),
    ),
    mutant(
        "an unknown protection does not protect",
        "enforcer/engine/src/engine/program.rs",
        (
            "|target| !protection::of(policy, target, seen)",
            "|target| Truth::from(protection::of(policy, target, seen) != Truth::True)",
        ),
    ),
    mutant(
        "members without memory are not checked for exemptions",
        "enforcer/engine/src/engine/protection.rs",
        ("holders.chain(relatives).chain(unseen)", "holders.chain(relatives.take(0)).chain(unseen)"),
    ),
    mutant(
        "members that were not searched for do not exempt the target",
        "enforcer/engine/src/engine/protection.rs",
        (
            "holders.chain(relatives).chain(unseen)",
            "holders.chain(relatives).chain(unseen.filter(|_| false))",
        ),
    ),
    mutant(
        "exceptions end early",
        "enforcer/engine/src/engine/evaluator.rs",
        ("exception.in_force(tick.now.wall));", "exception.until.is_none());"),
    ),
    mutant(
        "a match outlives its streak",
        "enforcer/engine/src/engine/evaluator.rs",
        (
            "        let warned = self.progress.warned;\n        self.progress.end();",
            "        let warned = self.progress.warned;",
        ),
    ),
    mutant(
        "unknown does not clear a flag",
        "enforcer/engine/src/engine/evaluator.rs",
        (
            "Truth::False | Truth::Unknown => self.progress.off.saturating_add(1),",
            "Truth::False => self.progress.off.saturating_add(1),\n            Truth::Unknown => self.progress.off,",
        ),
    ),
    mutant(
        "a lost GPU is assumed to have no holders",
        "enforcer/engine/src/view/between.rs",
        ("target.on_lost = on_lost(target, &snapshot);", "let _ = on_lost(target, &snapshot);"),
    ),
    mutant(
        "failures against a user do not hold actions",
        "enforcer/engine/src/engine/holds.rs",
        (
            "failing().any(|failing| failing == author)",
            "failing().any(|failing| failing == author && user.is_none())",
        ),
    ),
    mutant(
        "targets that are gone keep their state",
        "enforcer/engine/src/engine/evaluator.rs",
        ("Absent::Gone => after = Track::default(),", "Absent::Gone => {}"),
    ),
    mutant(
        "the confirming sample is left out",
        "enforcer/engine/src/engine/in_flight.rs",
        (
            "            self.choose(&candidate, &candidates, tick);\n",
            "            self.choose(&candidate, &candidates, tick);\n            verdicts.extend(self.act(&candidate, &[], tick));\n",
        ),
    ),
    mutant(
        "a sample from before a decision confirms it",
        "enforcer/engine/src/engine/in_flight.rs",
        ("if tick.view.boot() <= chosen.at {", "if tick.view.boot().is_zero() {"),
    ),
    mutant(
        "an action begins before its budget is on the disk",
        "enforcer/engine/src/engine/in_flight.rs",
        ("if counted && young && self", "if !counted && young && self"),
    ),
    mutant(
        "a decision outlives its match",
        "enforcer/engine/src/engine/in_flight.rs",
        ("            && candidate.progress.decided\n", ""),
    ),
    mutant(
        "two actions at once",
        "enforcer/engine/src/engine/in_flight.rs",
        (
            "let mut chosen = self.actions.chosen.take().filter(|_| tick.missed == 0);\n",
            "let mut chosen = self.actions.chosen.take().filter(|_| tick.missed == 0);\n        self.actions.in_flight = None;\n",
        ),
    ),
    mutant(
        "an action is confirmed despite a missed snapshot",
        "enforcer/engine/src/engine/in_flight.rs",
        ("self.actions.chosen.take().filter(|_| tick.missed == 0);", "self.actions.chosen.take();"),
    ),
    mutant(
        "targets on hold are not exempt",
        "enforcer/engine/src/engine/evaluator.rs",
        ("self.exempts_on_hold.then(|| table.running())", "(!self.exempts_on_hold).then(|| table.running())"),
    ),
    mutant(
        "cooldowns are ignored",
        "enforcer/engine/src/engine/holds.rs",
        (
            "again.is_some_and(|ago| ago < evaluator.rule.cooldown)",
            "again.is_some_and(|ago| ago > evaluator.rule.cooldown * 1000)",
        ),
    ),
    mutant(
        "budgets are not counted",
        "enforcer/engine/src/engine/in_flight.rs",
        (
            "        self.ledger.count((id, self.user(charge.subject.charged())), charge.at.clone(), &charge.subject);\n",
            "",
        ),
    ),
    mutant(
        "a failed action is retried",
        "enforcer/engine/src/engine/holds.rs",
        (
            "if self.actions.failed.contains(&target.id) {",
            "if self.actions.failed.contains(&target.id) && candidate.progress.failed {",
        ),
    ),
    mutant(
        "a refusal exempts the target for good",
        "enforcer/engine/src/engine/evaluator.rs",
        ("outcome if outcome.may_pass() && is_real => progress.refused = true,", ""),
    ),
    mutant(
        "a refused action is tried again at once",
        "enforcer/engine/src/engine/holds.rs",
        (
            "let waits = !candidate.progress.acted || candidate.progress.refused;",
            "let waits = !candidate.progress.acted && !candidate.progress.refused;",
        ),
    ),
    mutant(
        "each target is an exception of the node's budget",
        "enforcer/engine/src/engine/ledger.rs",
        ("used_up(limits.per_node_hour, &self.counted(limits))", "used_up(limits.per_node_hour, &[])"),
    ),
    mutant(
        "the mass breaker never opens",
        "enforcer/engine/src/engine/breakers.rs",
        (
            "self.mass.see(too_many && !truthful);",
            "self.mass.see(too_many && !truthful && matches.of_kinds[0].targets.some > 4);",
        ),
    ),
    mutant(
        "the failure breaker needs four failures",
        "enforcer/engine/src/engine/breakers.rs",
        ("const FAILURES: u32 = 3;", "const FAILURES: u32 = 4;"),
    ),
    mutant(
        "samples of a dry run count after the rule is enforced",
        "enforcer/engine/src/engine/saved.rs",
        (
            "if self.evaluators[place].mode > old.mode {",
            "if self.evaluators[place].mode > old.mode && old.tracks.is_empty() {",
        ),
    ),
    mutant(
        "a restart does not count as a gap",
        "enforcer/engine/src/engine/saved.rs",
        (
            "self.before = Some((boot_id, Duration::from_millis(streaks.boot_ms)));",
            "self.before = Some((boot_id, now.boot.saturating_sub(Duration::from_secs(5))));",
        ),
    ),
    mutant(
        "a reload does not hold actions",
        "enforcer/engine/src/engine/saved.rs",
        ("next.settling = SETTLING;", "next.settling = 0;"),
    ),
    mutant(
        "a busy holder is picked",
        "enforcer/engine/src/engine/picking.rs",
        ("                && seen.streak.count >= needed\n", ""),
    ),
    mutant(
        "samples of another interval still count",
        "enforcer/engine/src/engine/mod.rs",
        (
            "if self.interval.replace(interval).is_some_and(|before| before != interval) {",
            "if self.interval.replace(interval).is_none() {",
        ),
    ),
    mutant(
        "a holder that left the GPU stays picked",
        "enforcer/engine/src/engine/picking.rs",
        (
            "if view.targets[target].gpus.iter().any(|held| gpu.gpus.contains(held)) {",
            "if target < view.targets.len() {",
        ),
    ),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

impl Mutant {
    /// Returns the content of the file with the mutation.
    fn text(&self, root: &Path) -> String {
        let text = fs::read_to_string(root.join(self.file)).unwrap();
        assert_eq!(
            self.places(root),
            1,
            "{}: {} must contain {:?} exactly once",
            self.name,
            self.file,
            self.find
        );
        text.replace(self.find, self.replace)
    }

    fn places(&self, root: &Path) -> usize {
        fs::read_to_string(root.join(self.file)).unwrap().matches(self.find).count()
    }
}

#[test]
fn every_mutation_applies() {
    let lost = MUTANTS.iter().filter(|mutant| mutant.places(&workspace()) != 1);
    let lost: Vec<&str> = lost.map(|mutant| mutant.name).collect();
    assert!(lost.is_empty(), "the text does not occur exactly once in its file: {lost:?}");
}

#[test]
#[ignore = "builds the engine once for each fault: half an hour"]
fn oracle_detects_every_mutation() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("workspace");
    copy(&workspace(), &root);
    let sound = run(&root);
    assert!(sound.status.success(), "the test fails without a mutation: {}", tail(&sound));
    let mut unseen = Vec::new();
    for mutant in &MUTANTS {
        let path = root.join(mutant.file);
        let original = fs::read_to_string(&path).unwrap();
        fs::write(&path, mutant.text(&root)).unwrap();
        let built = cargo(&root, &["--no-run"]);
        assert!(built.status.success(), "{} does not build: {}", mutant.name, tail(&built));
        let output = run(&root);
        let why =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        let why = why.lines().find(|line| line.starts_with("event ")).unwrap_or_default();
        let why: String = why.split_once("}: ").map_or(why, |(_, why)| why).chars().take(90).collect();
        println!("{:>6}  {:<45} {why}", if output.status.success() { "UNSEEN" } else { "seen" }, mutant.name);
        if output.status.success() {
            unseen.push(mutant.name);
        }
        fs::write(&path, original).unwrap();
    }
    assert!(unseen.is_empty(), "the oracle does not detect: {unseen:?}");
}

fn run(root: &Path) -> Output {
    cargo(root, &["--", "--nocapture"])
}

/// Runs the oracle's test in the copy, with its own target directory.
fn cargo(root: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--offline", "--package", "bailiff-engine", "--test", "oracle"])
        .args(more)
        .current_dir(root)
        .env("CARGO_TARGET_DIR", root.with_file_name("target"))
        .env_remove("BAILIFF_TRACES")
        .output()
        .unwrap()
}

fn tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    text.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Copies everything except build output and .git.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if name == "target" || name.to_string_lossy().starts_with(".git") {
            continue;
        }
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to.join(&name));
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(&name)).unwrap();
        }
    }
}
