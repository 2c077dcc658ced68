//! Measures the size and rendering time of the pages:
//! `cargo run --release -p bailiff-exporter --example page_cost`.

#![expect(clippy::disallowed_methods, reason = "a stopwatch")]
#![expect(clippy::expect_used, reason = "a measurement that cannot go on ends there")]

#[path = "../tests/made_up/mod.rs"]
mod made_up;

use std::time::{Duration, Instant};

use bailiff_exporter::health::Health;
use bailiff_exporter::page::{Format, Moment};
use bailiff_exporter::published::{Form, Published};
use bailiff_exporter::status_page::{Links, View};
use bailiff_http::negotiate::Encoding;
use bailiff_snapshot::Snapshot;
use made_up::{large, walk};

const ROUNDS: usize = 7;
const NODES: [(u32, u32, usize); 4] = [(8, 4, 1024), (8, 100, 1024), (8, 1250, 10_000), (8, 1250, 1024)];

fn main() {
    println!("GPUs processes most format      encoding    bytes        best       worst");
    for (gpus, each, most) in NODES {
        let snapshot = walk([large(1, gpus, each), large(2, gpus, each)]);
        for format in [Format::Text, Format::OpenMetrics] {
            for encoding in [Encoding::Identity, Encoding::Gzip] {
                let (bytes, times) = measure(&snapshot, most, Form { format, encoding });
                let (best, worst) = (times.iter().min(), times.iter().max());
                let (best, worst) = (best.expect("it ran"), worst.expect("it ran"));
                let processes = gpus * each;
                println!(
                    "{gpus:4} {processes:9} {most:5} {:11} {:8} {bytes:9} {best:>11.1?} {worst:>11.1?}",
                    format!("{format:?}"),
                    format!("{encoding:?}"),
                );
            }
        }
        status_page(&snapshot, most, gpus * each);
    }
}

/// Measures the status page, which is rendered at each request.
fn status_page(snapshot: &Snapshot, most: usize, processes: u32) {
    let deadline = Duration::from_secs(2);
    let health = Health { age: Duration::ZERO, seen: true, interval: snapshot.interval, deadline };
    let links = Links { telemetry: "/metrics", enforcer: None };
    let make = || {
        let start = Instant::now();
        let html = View { snapshot: Some(snapshot), health, links, node: "node", refreshes: true }.html();
        (start.elapsed(), html.len())
    };
    let made: Vec<(Duration, usize)> = (0..ROUNDS).map(|_| make()).collect();
    let (best, worst) = (made.iter().min().expect("it ran"), made.iter().max().expect("it ran"));
    let (gpus, bytes) = (snapshot.gpus.len(), best.1);
    println!(
        "{gpus:4} {processes:9} {most:5} status page          {bytes:9} {:>11.1?} {:>11.1?}",
        best.0, worst.0
    );
}

/// Measures the metrics page, from the snapshot to the bytes served, including selection and sorting.
fn measure(snapshot: &Snapshot, most: usize, form: Form) -> (usize, Vec<Duration>) {
    let mut bytes = 0;
    let times = (0..ROUNDS).map(|_| {
        let snapshot = snapshot.clone();
        let start = Instant::now();
        let published = Published::new(snapshot, Duration::ZERO, most, None);
        bytes = published.page(form, &Moment::default()).expect("it can be packed").len();
        start.elapsed()
    });
    let times = times.collect();
    (bytes, times)
}
