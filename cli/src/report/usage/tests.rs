#![expect(clippy::cast_precision_loss, clippy::float_cmp, reason = "small whole numbers")]

use super::super::query::Table;
use super::*;

/// One exporter with one GPU and one user, scraped at these steps: each with its snapshots, and the counters of held, idle
/// and unknown seconds.
type Scrapes = [Option<Scrape>];
type Scrape = (f64, [f64; 3]);
/// Used, idle and unknown seconds of the user, and GPU-seconds without data.
type Expected = ([u64; 3], f64);

fn target() -> Labels {
    Labels::from([("instance".to_owned(), "n1".to_owned())])
}

fn window(steps: usize) -> Window {
    Window { from: 1_767_225_600, step: SLICE, steps }
}

/// Returns parts of this many steps.
fn parts(scrapes: &Scrapes, len: usize) -> Vec<Part> {
    let part = |(index, scrapes): (usize, &Scrapes)| {
        let mut part = Part { first: index * len, len: scrapes.len(), results: BTreeMap::new() };
        let mut put = |metric: Metric, key: &[&str], values: Vec<Option<f64>>| {
            if values.iter().any(Option::is_some) {
                let key = key.iter().map(|label| (*label).to_owned()).collect();
                part.results.entry(metric).or_default().entry(target()).or_default().insert(key, values);
            }
        };
        let column = |value: &dyn Fn(&Scrape) -> f64| -> Vec<Option<f64>> {
            scrapes.iter().map(|scrape| scrape.as_ref().map(value)).collect()
        };
        put(Metric::Snapshots, &[], column(&|scrape| scrape.0));
        put(Metric::Slices, &[], column(&|_| 1.0));
        put(Metric::Scrapes, &[], column(&|_| 20.0));
        put(Metric::Gpus, &[], column(&|_| 1.0));
        put(Metric::Up, &[], column(&|_| 20.0));
        for (place, metric) in [Metric::Held, Metric::Idle, Metric::Unknown].into_iter().enumerate() {
            put(metric, &["ada"], column(&|scrape| scrape.1[place]));
        }
        part
    };
    scrapes.chunks(len).enumerate().map(part).collect()
}

fn usage(scrapes: &Scrapes, len: usize) -> Usage {
    let mut usage = Usage::new(window(scrapes.len() - 1));
    for part in parts(scrapes, len) {
        usage.add(&part);
    }
    usage
}

fn seconds_of(scrapes: &Scrapes) -> Expected {
    let mut results = [1, 2, 3, scrapes.len()].map(|len| {
        let usage = usage(scrapes, len);
        let time = usage.users.get("ada").and_then(|user| user.time).unwrap_or_default();
        let columns = usage.columns.iter().fold(GpuTime::default(), |mut sum, column| {
            sum.add(*column);
            sum
        });
        assert_eq!(columns, time, "the columns add up");
        let node = &usage.nodes[&target()];
        assert!((node.total - 300.0 * (scrapes.len() - 1) as f64).abs() < 1e-6, "{node:?}");
        ([time.used / 1000, time.idle / 1000, time.unknown / 1000], node.unknown.values().sum())
    });
    results.sort_by_key(|result| result.0);
    assert_eq!(results[0], results[3], "the result does not depend on the size of parts");
    results[0]
}

#[test]
fn only_time_without_gaps_is_used_or_idle() {
    let at = |snapshots: f64, held: f64, idle: f64, unknown: f64| Some((snapshots, [held, idle, unknown]));
    let cases: [(&str, &Scrapes, Expected); 9] = [
        (
            "half idle, a tenth unknown",
            &[at(1.0, 5000.0, 10.0, 0.0), at(2.0, 5300.0, 160.0, 30.0), at(3.0, 5600.0, 310.0, 60.0)],
            ([240, 300, 60], 0.0),
        ),
        (
            "Prometheus was down, and the exporter counted on",
            &[at(1.0, 0.0, 0.0, 0.0), None, None, at(4.0, 900.0, 900.0, 0.0), at(5.0, 1200.0, 1200.0, 0.0)],
            ([0, 300, 900], 600.0),
        ),
        (
            "the node was down, and the exporter started again",
            &[at(90.0, 700.0, 700.0, 0.0), None, at(2.0, 200.0, 200.0, 0.0), at(3.0, 500.0, 500.0, 0.0)],
            ([0, 300, 200], 300.0),
        ),
        (
            "a restart without a gap",
            &[at(90.0, 700.0, 0.0, 0.0), at(2.0, 200.0, 100.0, 0.0), at(3.0, 500.0, 100.0, 0.0)],
            ([400, 100, 0], 0.0),
        ),
        (
            "the first scrape is in the period, and the counters may be older",
            &[None, at(90.0, 7000.0, 7000.0, 0.0), at(91.0, 7300.0, 7300.0, 0.0)],
            ([0, 300, 0], 0.0),
        ),
        (
            "the node is new",
            &[None, None, at(90.0, 7000.0, 7000.0, 0.0), at(91.0, 7300.0, 7300.0, 0.0)],
            ([0, 300, 0], 300.0),
        ),
        (
            "the data ends",
            &[at(1.0, 0.0, 0.0, 0.0), at(2.0, 300.0, 300.0, 0.0), None, None],
            ([0, 300, 0], 600.0),
        ),
        (
            "impossible: more idle than held",
            &[at(1.0, 0.0, 0.0, 0.0), at(2.0, 100.0, 300.0, 300.0)],
            ([0, 100, 0], 0.0),
        ),
        ("one scrape", &[at(1.0, 300.0, 300.0, 0.0), None], ([0, 0, 0], 300.0)),
    ];
    for (name, scrapes, expected) in cases {
        assert_eq!(seconds_of(scrapes), expected, "{name}");
    }
}

#[test]
fn missing_counters_are_unknown() {
    let scrapes = [Some((1.0, [0.0; 3])), Some((2.0, [300.0, 300.0, 0.0]))];
    for missing in [Metric::Held, Metric::Idle, Metric::Unknown] {
        let mut part = parts(&scrapes, 2).remove(0);
        part.results.remove(&missing);
        let key = vec!["ada".to_owned()];
        for metric in [Metric::ProcessScrapes, Metric::MemoryScrapes] {
            let table = Table::from([(key.clone(), vec![Some(20.0), Some(20.0)])]);
            part.results.insert(metric, BTreeMap::from([(target(), table)]));
        }
        let mut usage = Usage::new(window(1));
        usage.add(&part);
        let time = usage.users["ada"].time;
        let expected = GpuTime { unknown: 300_000, ..GpuTime::default() };
        assert_eq!(time, (missing != Metric::Held).then_some(expected), "{missing:?}");
    }
}

#[test]
fn user_who_comes_later_is_counted_from_zero() {
    let mut part = parts(&[Some((1.0, [0.0; 3])), Some((2.0, [300.0, 0.0, 0.0]))], 2).remove(0);
    for metric in [Metric::Held, Metric::Idle, Metric::Unknown] {
        let table = part.results.get_mut(&metric).unwrap().get_mut(&target()).unwrap();
        table.insert(vec!["bob".to_owned()], vec![None, Some(120.0)]);
    }
    let mut usage = Usage::new(window(1));
    usage.add(&part);
    let expected = GpuTime { used: 0, idle: 120_000, unknown: 0 };
    assert_eq!(usage.users["bob"].time, Some(expected));
}

#[test]
fn memory_is_an_average_over_the_time_with_data() {
    let mut part = parts(&[Some((1.0, [0.0; 3])), Some((2.0, [0.0; 3])), None], 3).remove(0);
    let key = vec!["ada".to_owned()];
    let put = |part: &mut Part, metric, values| {
        part.results.insert(metric, BTreeMap::from([(target(), Table::from([(key.clone(), values)]))]));
    };
    // 4 bytes in half of the 20 scrapes.
    put(&mut part, Metric::Memory, vec![Some(80.0), Some(40.0), None]);
    put(&mut part, Metric::MemoryScrapes, vec![Some(20.0), Some(10.0), None]);
    for (scrapes, is_incomplete) in [(10.0, false), (11.0, true)] {
        put(&mut part, Metric::ProcessScrapes, vec![Some(20.0), Some(scrapes), None]);
        let mut usage = Usage::new(window(2));
        usage.add(&part);
        let ada = &usage.users["ada"];
        assert_eq!((ada.memory, ada.memory_is_incomplete), (Some(600.0), is_incomplete));
    }
}

/// Random histories: restarts, gaps, users that come late. Held time is the sum of its parts and what the exporter counted,
/// and idle time is never more than what the exporter counted between two scrapes in a row.
#[test]
fn held_is_used_and_idle_and_unknown_in_every_history() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for history in 0..500 {
        let mut scrapes = vec![Some((1e6, [0.0; 3]))];
        let (mut counters, mut snapshots, mut first) = ([0.0; 3], 1e6, 1e6);
        let (mut held, mut idle, mut pending) = (0.0, 0.0, 0.0);
        for _ in 0..=random(40) {
            if random(8) == 0 {
                // Each run has fewer snapshots than the one before, so that each restart is seen.
                first -= 1000.0;
                (counters, snapshots, pending) = ([0.0; 3], first, 0.0);
            }
            let growth =
                [300.0, [0.0, 100.0][usize::from(random(2) == 0)], [0.0, 50.0][usize::from(random(3) == 0)]];
            counters.iter_mut().zip(growth).for_each(|(counter, growth)| *counter += growth);
            snapshots += 1.0;
            pending += growth[0];
            let is_seen = random(4) > 0;
            if is_seen {
                held += pending;
                pending = 0.0;
                idle += if scrapes.last().is_some_and(Option::is_some) { growth[1] } else { 0.0 };
            }
            scrapes.push(is_seen.then_some((snapshots, counters)));
        }
        let ([used, found_idle, unknown], _) = seconds_of(&scrapes);
        assert_eq!((used + found_idle + unknown) as f64, held, "{history}: {scrapes:?}");
        assert_eq!(found_idle as f64, idle, "{history}: {scrapes:?}");
    }
}

#[test]
fn rounded_parts_add_up() {
    for (used, idle, unknown) in [(1, 1, 1), (1499, 1499, 1500), (500, 499, 0), (u64::MAX, u64::MAX, 1)] {
        let [held, used, idle, unknown] = GpuTime { used, idle, unknown }.in_units(1000);
        assert_eq!(
            u128::from(held),
            (u128::from(used) + u128::from(idle) + u128::from(unknown)).min(u64::MAX.into())
        );
    }
}
