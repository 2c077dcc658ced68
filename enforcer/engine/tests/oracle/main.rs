//! Tests the engine on random histories against an oracle that was written from the specification
//! alone.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod dice;
mod hostile;
mod observed;
mod oracle;
mod plan;
mod trace;
mod track;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use plan::Weather;
use trace::Traces;

/// 20,000 traces in total. `BAILIFF_TRACES=200000` runs more of each kind, with new seeds each
/// time.
#[expect(clippy::disallowed_methods, reason = "how many traces is the caller's choice")]
fn runner(usual: u32, salt: u8) -> TestRunner {
    let requested: Option<u32> = std::env::var("BAILIFF_TRACES").ok().map(|text| text.parse().unwrap());
    let config = Config {
        cases: requested.unwrap_or(usual),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    match requested {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[salt; 32])),
    }
}

/// Walks the traces, and checks that some of them contain matches and actions.
fn walk(weather: Weather, usual: u32, salt: u8) {
    let totals = [const { AtomicU64::new(0) }; 4];
    let result = runner(usual, salt).run(&Traces(weather), |trace| {
        let observed = trace.walk().map_err(TestCaseError::fail)?;
        for (total, more) in
            totals.iter().zip([observed.intervals, observed.flags, observed.acts, observed.enforced])
        {
            total.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, trace)) => panic!("{why}\n{}", trace.render()),
        Err(error) => panic!("{error}"),
    }
    let [intervals, flags, acts, enforced] = totals.map(AtomicU64::into_inner);
    println!("{intervals} intervals, {flags} flags, {acts} actions, {enforced} of them enforced");
    assert!(flags > 0 && acts > enforced && enforced > 0);
}

#[test]
fn rough_histories_match_the_oracle() {
    walk(Weather::Rough, 8_000, 1);
}

#[test]
fn other_rough_histories_match_the_oracle() {
    walk(Weather::Rough, 8_000, 2);
}

#[test]
fn calm_histories_match_the_oracle_exactly() {
    walk(Weather::Calm, 4_000, 3);
}

#[test]
fn engine_survives_hostile_snapshots() {
    let acts: u64 = (0..800).map(hostile::walk).sum();
    assert!(acts > 0, "some targets must be known even in hostile snapshots");
}
