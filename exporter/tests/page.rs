//! Cases of the page: what is on it, what is not, and that no name ever breaks it.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends there")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "figures of tests are small"
)]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "made_up/parse.rs"]
mod parse;

use std::collections::BTreeSet;

use bailiff_exporter::metrics::{FAMILIES, OWN_PROCESS};
use bailiff_exporter::page::{self, Content, Format};
use bailiff_exporter::selection::Selection;
use bailiff_snapshot::{Fault, GpuSample, PidNamespace, Snapshot};
use made_up::{GIB, entry, facts, found, gpu, large, motley, sample, small, walk};
use parse::{Page, parse};
use proptest::prelude::*;

fn written(snapshot: &Snapshot, most: usize, format: Format) -> String {
    let selection = Selection::of(snapshot, most);
    let dropped = selection.left_out_of(snapshot.processes.len());
    let mut out = Vec::new();
    let content = Content { snapshot, selection: &selection, dropped };
    page::write(Some(content), format, &mut out).expect("memory takes everything");
    page::write_tail(&page::Moment::default(), format, &mut out).expect("memory takes everything");
    String::from_utf8(out).expect("a page is text")
}

fn page(snapshot: &Snapshot) -> Page {
    parse(&written(snapshot, usize::MAX, Format::Text))
}

/// Names of the samples that have this label.
fn with<'a>(page: &'a Page, label: &str, value: &str) -> BTreeSet<&'a str> {
    let samples = page.samples.iter().filter(|sample| sample.labels.get(label).is_some_and(|v| v == value));
    samples.map(|sample| sample.name.as_str()).collect()
}

const FIRST: [(&str, &str); 1] = [("gpu", "0")];
const OF_ALICE: [(&str, &str); 2] = [("gpu", "0"), ("pid", "41")];

#[test]
fn both_formats_tell_the_same() {
    let snapshot = walk([motley(1), motley(2)]);
    let text = parse(&written(&snapshot, usize::MAX, Format::Text));
    let open = written(&snapshot, usize::MAX, Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"));
    assert_eq!(text.samples, parse(&open).samples);
}

#[test]
fn every_label_stands_in_the_table_and_most_families_on_this_page() {
    let page = page(&walk([motley(1), motley(2)]));
    for sample in &page.samples {
        let family = FAMILIES.iter().chain(OWN_PROCESS).find(|family| family.name == sample.name);
        let labels: Vec<&str> = family.expect("it is in the table").labels.split_ascii_whitespace().collect();
        assert!(sample.labels.keys().all(|label| labels.contains(&label.as_str())), "{sample:?}");
    }
    let seen: BTreeSet<&str> = page.samples.iter().map(|sample| sample.name.as_str()).collect();
    let missing: Vec<&str> =
        FAMILIES.iter().map(|family| family.name).filter(|name| !seen.contains(name)).collect();
    let at_requests = [
        "bailiff_snapshot_age_seconds",
        "bailiff_http_requests_total",
        "bailiff_http_connections_refused_total",
        "bailiff_stream_clients",
        "bailiff_record_write_failures_total",
    ];
    assert_eq!(missing, at_requests);
}

#[test]
fn a_gpu_that_does_not_answer_is_down_and_nothing_else() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(page.value("bailiff_gpu_up", &[("gpu", "3")]), Some(0.0));
    assert_eq!(page.value("bailiff_gpu_fault_info", &[("gpu", "3"), ("reason", "lost")]), Some(1.0));
    let told = with(&page, "gpu", "3");
    assert_eq!(told, BTreeSet::from(["bailiff_gpu_info", "bailiff_gpu_up", "bailiff_gpu_fault_info"]));
}

#[test]
fn what_the_driver_does_not_say_is_absent() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(with(&page, "gpu", "1"), BTreeSet::from(["bailiff_gpu_info", "bailiff_gpu_up"]));
    let first = walk([small(1)]);
    let first = parse(&written(&first, usize::MAX, Format::Text));
    for name in [
        "bailiff_process_gpu_utilization_ratio",
        "bailiff_process_gpu_idle_seconds",
        "bailiff_idle_memory_bytes",
    ] {
        assert_eq!(first.values(name), [], "{name} on the first look");
    }
    assert_eq!(first.values("bailiff_process_gpu_busy_seconds_total"), []);
    let why = [("pid", "41"), ("reason", "first_look")];
    assert_eq!(first.value("bailiff_process_gpu_utilization_unknown_info", &why), Some(1.0));
}

#[test]
fn an_idle_process_is_observed_idle() {
    let page = page(&walk([small(1), small(2), small(3)]));
    for engine in ["sm", "memory", "encoder", "decoder"] {
        let labels = [OF_ALICE.as_slice(), &[("engine", engine)]].concat();
        assert_eq!(page.value("bailiff_process_gpu_utilization_ratio", &labels), Some(0.0), "{engine}");
    }
    assert_eq!(page.value("bailiff_process_gpu_idle_seconds", &OF_ALICE), Some(10.0));
    assert_eq!(page.value("bailiff_process_gpu_busy_seconds_total", &OF_ALICE), Some(0.0));
    let of_user = [("gpu", "0"), ("user", "alice")];
    assert_eq!(page.value("bailiff_idle_memory_bytes", &of_user), Some(GIB as f64));
    assert_eq!(page.value("bailiff_idle_gpu_seconds_total", &[("user", "alice")]), Some(10.0));
}

#[test]
fn the_parts_sum_up_to_the_total() {
    let page = page(&walk([small(1)]));
    let parts = page.values("bailiff_gpu_memory_parts_bytes");
    let sum: i128 = parts.iter().map(|(_, bytes)| *bytes as i128).sum();
    assert_eq!((parts.len(), sum), (6, i128::from(141 * GIB)));
    let motley = self::page(&walk([motley(1), motley(2)]));
    assert_eq!(
        motley.value("bailiff_gpu_memory_unaccounted_bytes", &FIRST),
        None,
        "one holder's is not known"
    );
}

#[test]
fn a_sum_with_an_unknown_part_is_absent() {
    let page = page(&walk([motley(1), motley(2)]));
    let of = |user| [("gpu", "0"), ("user", user)];
    assert_eq!(page.value("bailiff_user_gpu_memory_bytes", &of("1234")), None);
    assert_eq!(page.value("bailiff_user_gpu_processes", &of("1234")), Some(1.0));
    assert_eq!(page.value("bailiff_user_gpu_memory_bytes", &of("alice")), Some(2.0 * GIB as f64));
    assert_eq!(page.value("bailiff_idle_memory_bytes", &of("alice")), Some(0.0), "observed busy");
    assert_eq!(page.value("bailiff_idle_memory_bytes", &[("gpu", "2:0"), ("user", "alice")]), None, "MIG");
}

#[test]
fn everybody_who_opened_the_device_and_is_not_listed_is_counted() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(page.value("bailiff_gpu_unlisted_openers", &FIRST), Some(2.0));
    assert_eq!(page.value("bailiff_gpu_unlisted_openers", &[("gpu", "2")]), Some(1.0), "by its instances");
    assert_eq!(page.value("bailiff_gpu_unlisted_openers", &[("gpu", "1")]), None, "it gave no list");
    let mut elsewhere = motley(1);
    elsewhere.namespace = PidNamespace::Other;
    assert_eq!(self::page(&walk([elsewhere])).values("bailiff_gpu_unlisted_openers"), []);
}

#[test]
fn beyond_the_limit_processes_are_summed_up_exactly() {
    let held = [(11, Some(3)), (12, None), (13, Some(9)), (14, Some(9)), (15, Some(1))];
    let entries = held.iter().map(|(pid, memory)| entry(*pid, *memory)).collect();
    let processes = held.iter().map(|(pid, _)| found(facts(*pid, "alice", "x"))).collect();
    let snapshot = walk([sample(1, vec![gpu(1, 0, entries)], processes)]);
    let page = parse(&written(&snapshot, 2, Format::Text));
    let shown: Vec<&str> =
        page.values("bailiff_process_info").iter().map(|(labels, _)| labels["pid"].as_str()).collect();
    assert_eq!(shown, ["12", "13"], "one that may hold any amount, then the largest of the lowest pid");
    assert_eq!(page.value("bailiff_gpu_other_processes", &FIRST), Some(3.0));
    assert_eq!(page.value("bailiff_gpu_other_processes_memory_bytes", &FIRST), Some(13.0));
    assert_eq!(page.value("bailiff_processes_dropped_total", &[]), Some(3.0));
    assert_eq!(page.value("bailiff_user_gpu_processes", &FIRST), Some(5.0), "sums are over all");
}

#[test]
fn two_gpus_without_uuid_are_told_apart() {
    let lost = |index| GpuSample::faulty(bailiff_snapshot::About::unnamed(index), Fault::Timeout);
    let page = page(&walk([sample(1, vec![lost(0), lost(1)], [].into())]));
    assert_eq!(page.values("bailiff_gpu_up").len(), 2);
}

#[test]
fn a_full_node_is_in_order() {
    let snapshot = walk([large(1, 8, 100), large(2, 8, 100)]);
    let page = parse(&written(&snapshot, usize::MAX, Format::OpenMetrics));
    assert_eq!(page.values("bailiff_process_gpu_memory_bytes").len(), 800);
}

proptest! {
    #[test]
    fn no_name_breaks_the_page(names in proptest::collection::vec(any::<String>(), 8)) {
        let [user, comm, container, pod, job, gpu_name, command, clock] = names.as_slice() else {
            panic!("eight were asked for")
        };
        let mut hostile = facts(41, user, comm);
        hostile.command = Some(command.clone());
        hostile.place.container = Some(container.clone());
        hostile.place.pod = Some(pod.clone());
        hostile.place.slurm_job = Some(job.clone());
        let mut gpu = gpu(1, 0, vec![entry(41, Some(1)), entry(42, Some(1))]);
        gpu.about.name = Some(gpu_name.clone());
        gpu.telemetry.clocks = [(clock.clone(), 1)].into();
        let processes = [found(hostile), found(facts(42, &format!("{user}x"), comm))].into();
        let snapshot = walk([sample(1, vec![gpu], processes)]);
        for format in [Format::Text, Format::OpenMetrics] {
            let page = parse(&written(&snapshot, usize::MAX, format));
            let long = |value: &String| value.len() > 128 + '…'.len_utf8();
            prop_assert!(!page.samples.iter().any(|sample| sample.labels.values().any(long)));
            prop_assert_eq!(page.values("bailiff_process_info").len(), 2);
        }
    }
}
