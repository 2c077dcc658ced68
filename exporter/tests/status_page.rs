//! What the status page says of looks that did not see everything.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends there")]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "made_up/running.rs"]
mod running;

use bailiff_snapshot::{About, DeviceProcesses, Fault, GpuSample, Sample, Source, SourceState, Telemetry};
use made_up::{entry, facts, found, gpu, motley, sample, small};
use running::start;

/// The page of a node whose newest look this is.
fn page(sample: Sample) -> String {
    let running = start(&[]);
    running.show(sample);
    running.get("/", "").text()
}

/// What it says in one section.
fn section<'a>(html: &'a str, id: &str) -> &'a str {
    let begin = html.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {html}"));
    let html = &html[begin..];
    &html[..html.find("</section>").expect("it ends")]
}

/// A GPU of which this is told and no list.
fn without_list(index: u32) -> GpuSample {
    GpuSample { entries: None, ..gpu(1, index, vec![]) }
}

#[test]
fn who_is_on_a_gpu_without_a_list_is_unknown() {
    let holders = vec![entry(41, Some(made_up::GIB))];
    let lost = GpuSample::faulty(About::unnamed(2), Fault::Lost);
    for (first, others) in [(gpu(1, 0, holders), ""), (gpu(1, 0, vec![]), "Nobody on the GPUs that told.")] {
        let processes = [found(facts(41, "alice", "python3"))].into();
        let html = page(sample(1, vec![first, without_list(1), lost.clone()], processes));
        let told = section(&html, "holders");
        for why in ["1: the driver gave no list of processes", "2: the GPU has fallen off the bus"] {
            assert!(told.contains(&format!("unknown: who is on GPU {why}</span>")), "{told}");
        }
        assert!(told.contains(others) && !told.contains("GPU 0:"), "{told}");
        assert!(html.contains("<li>GPU 1: who is there is unknown: the driver gave no list"), "{html}");
    }
}

#[test]
fn a_gpu_in_mig_mode_leaves_the_list_to_its_instances() {
    let html = page(motley(1));
    let told = section(&html, "holders");
    assert!(told.contains("who is on GPU 1:") && !told.contains("who is on GPU 2:"), "{told}");
    let mut some = motley(1);
    some.gpus[2].instances = None;
    let html = page(some);
    let told = section(&html, "holders");
    assert!(told.contains("who is on GPU 2: MIG is on, and the driver did not give its instances"), "{told}");
}

#[test]
fn a_gpu_that_tells_no_figure_deserves_a_look() {
    let silent = GpuSample { memory: None, telemetry: Telemetry::default(), ..gpu(1, 0, vec![]) };
    let html = page(sample(1, vec![silent, gpu(1, 1, vec![])], [].into()));
    assert!(html.contains("<li>GPU 0: no call for memory or utilization succeeds.</li>"), "{html}");
}

#[test]
fn names_are_cut_wherever_they_stand() {
    let mut sample = motley(1);
    let leases = sample.leases.as_mut().expect("a pool");
    leases.held[0].user = Some("x".repeat(1500));
    let mut long = facts(41, "alice", "python3");
    long.place.unit = Some(format!("{}.service", "y".repeat(240)));
    sample.processes.extend([found(long)]);
    let html = page(sample);
    for letter in ["x", "y"] {
        assert!(html.contains(&format!("{}…", letter.repeat(128))), "{html}");
        assert!(!html.contains(&letter.repeat(129)), "{html}");
    }
}

#[test]
fn a_source_that_was_asked_and_is_down_did_not_answer() {
    let mut sample = small(1);
    sample.sources.insert(Source::Proc, SourceState::down(Fault::Timeout));
    let html = page(sample);
    let told = section(&html, "sources");
    assert!(told.contains("unknown: it did not answer") && !told.contains("it was not asked"), "{told}");
}

#[test]
fn that_there_is_no_gpu_is_an_answer() {
    let mut sample = sample(1, vec![], [].into());
    sample.sources.insert(Source::Nvml, SourceState::down(Fault::NoDevices));
    let html = page(sample);
    let told = section(&html, "sources");
    assert!(
        told.contains("the driver knows no GPU") && !told.contains("up: ") && !told.contains("class=\"bad\""),
        "{told}"
    );
    assert!(!told.contains("no answer") && !told.contains("did not answer"), "{told}");
    assert!(section(&html, "gpus").contains("The driver answers, and knows no GPU."), "{html}");
}

#[test]
fn who_could_not_be_looked_at_is_told_where_nobody_is_stuck() {
    let mut sample = small(1);
    let memory = sample.gpus[0].memory.as_mut().expect("it is told");
    memory.free += made_up::GIB / 2;
    sample.device_processes = Some(DeviceProcesses { at: sample.at, who: vec![], unreadable: 2 });
    let html = page(sample);
    let told = section(&html, "stuck");
    assert!(
        told.contains("unknown: who else has a GPU open, since open files of 2 processes could not be read"),
        "{told}"
    );
    assert!(!told.contains("<table"), "{told}");
}

#[test]
fn a_file_that_is_no_quota_says_why() {
    let mut sample = motley(1);
    let told = section(&page(sample.clone()), "quotas").to_owned();
    assert!(told.contains("unknown: what 1000/none says, since it is too short"), "{told}");
    sample.quotas.as_mut().expect("two").retain(|quota| quota.invalid.is_some());
    let told = section(&page(sample), "quotas").to_owned();
    assert!(told.contains("what 1000/none says") && !told.contains("No quota"), "{told}");
}

#[test]
fn moments_are_for_programs_as_well() {
    let html = page(small(1));
    assert!(
        html.contains("<time datetime=\"2023-11-14T22:13:25Z\">2023-11-14 22:13:25 UTC</time>"),
        "{html}"
    );
}
