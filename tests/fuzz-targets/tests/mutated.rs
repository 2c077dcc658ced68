//! Runs each target on its corpus, and on random mutations of it for `FUZZ_SECONDS` (default: 2). libFuzzer finds more,
//! because it sees which code an input reaches, but its build takes minutes.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fuzz_targets::{TARGETS, Target};

/// Maximum size of an input.
const LONGEST: usize = 4096;
/// Bytes with a meaning in many formats, and the extreme values.
const SPECIAL: &[u8] = b"\0\n\r \"'(){}[]<>:,./-+=#@~0919\x7f\x80\xff";

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|(name, _)| name), tested);
        }
    };
}

targets!(
    cgroup,
    stat,
    status,
    command,
    locks,
    kernel_log,
    mps,
    pod_resources,
    sizes,
    labels,
    ledger,
    stream,
    rules,
    lease,
    web,
    redis,
    prometheus
);

fn fuzz(name: &str) {
    /// Targets share files and sockets, and nextest is not the only way to run tests.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, target) = TARGETS.into_iter().find(|(known, _)| *known == name).unwrap();
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for input in &corpus {
        run(target, input);
    }
    let seconds = std::env::var("FUZZ_SECONDS").map_or(2, |seconds| seconds.parse().unwrap());
    let (mut rng, began) = (Rng::new(), Instant::now());
    let mut executions = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        run(target, &mutated(&corpus, &mut rng));
        executions += 1;
    }
    println!("{executions} executions");
}

/// Runs a target; if it fails, writes the input to a file of the corpus' format.
fn run(target: Target, input: &[u8]) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) else { return };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{}", std::process::id()));
    fs::write(&path, input).unwrap();
    println!("the input is {}: {:?}", path.display(), String::from_utf8_lossy(input));
    std::panic::resume_unwind(panic);
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directories = match name {
        "rules" => vec!["config/rules", "enforcer/engine/tests/good", "enforcer/engine/tests/bad"],
        _ => vec!["fuzz/corpus"],
    };
    let sub = if name == "rules" { "" } else { name };
    let entries =
        directories.iter().flat_map(|directory| fs::read_dir(root.join(directory).join(sub)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path: &PathBuf| path.is_file());
    paths.map(|path| fs::read(path).unwrap()).collect()
}

/// Returns an input of the corpus with a few random changes.
fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.usize(1..=8) {
        let at = rng.usize(0..=input.len());
        let end = rng.usize(at..=input.len()).min(at + 64);
        match rng.u8(0..6) {
            0 => input.insert(at, *rng.choice(SPECIAL).unwrap()),
            1 => drop(input.drain(at..end)),
            2 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
            3 if at < input.len() => input[at] = *rng.choice(SPECIAL).unwrap(),
            4 => input.splice(at..at, input[at..end].to_vec()).for_each(drop),
            _ => {
                let other = rng.choice(corpus).unwrap();
                let from = rng.usize(0..=other.len());
                let part = &other[from..other.len().min(from + 64)];
                drop(input.splice(at..end, part.iter().copied()));
            }
        }
    }
    input.truncate(LONGEST);
    input
}
