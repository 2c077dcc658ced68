//! Random histories, judged by the engine and by an oracle written from the specification alone.

mod dice;
mod oracle;
mod plan;
mod seen;
mod trace;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use plan::Weather;
use trace::Traces;

/// More than the usual number of traces: `BAILIFF_TRACES=200000`.
#[expect(clippy::disallowed_methods, reason = "how many traces is the caller's choice")]
fn traces(usual: u32) -> u32 {
    std::env::var("BAILIFF_TRACES").map_or(usual, |text| text.parse().unwrap())
}

/// Gives the number of deeds that were seen, by which a test knows that it tested anything.
fn walk(weather: Weather, usual: u32) -> [u64; 4] {
    let config = Config {
        cases: traces(usual),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let totals = [const { AtomicU64::new(0) }; 4];
    let result = TestRunner::new(config).run(&Traces(weather), |trace| {
        let seen = trace.walk().map_err(TestCaseError::fail)?;
        for (total, more) in totals.iter().zip([seen.beats, seen.flags, seen.acts, seen.enforced]) {
            total.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, trace)) => panic!("{why}\n{}", trace.told()),
        Err(error) => panic!("{error}"),
    }
    totals.map(AtomicU64::into_inner)
}

#[test]
fn rough_histories_are_judged_as_specified() {
    let [beats, flags, acts, enforced] = walk(Weather::Rough, 20_000);
    println!("{beats} beats, {flags} flags, {acts} deeds, {enforced} of them enforced");
    assert!(flags > 0 && acts > enforced && enforced > 0);
}

#[test]
fn calm_histories_are_judged_to_the_tick() {
    let [beats, flags, acts, enforced] = walk(Weather::Calm, 5_000);
    println!("{beats} beats, {flags} flags, {acts} deeds, {enforced} of them enforced");
    assert!(flags > 0 && acts > enforced && enforced > 0);
}
