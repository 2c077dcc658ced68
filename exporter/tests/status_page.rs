//! Tests the status page for incomplete samples.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot continue fails")]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "made_up/running.rs"]
mod running;

use bailiff_snapshot::{About, DeviceProcesses, Fault, GpuSample, Sample, Source, SourceState, Telemetry};
use made_up::{entry, facts, found, gpu, motley, sample, small};
use running::start;

/// Returns the page of a node with this newest sample.
fn page(sample: Sample) -> String {
    let running = start(&[]);
    running.show(sample);
    running.get("/", "").text()
}

/// Returns the content of one section.
fn section<'a>(html: &'a str, id: &str) -> &'a str {
    let begin = html.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {html}"));
    let html = &html[begin..];
    &html[..html.find("</section>").expect("the section is closed")]
}

/// Returns a GPU with these values and without a process list.
fn without_list(index: u32) -> GpuSample {
    GpuSample { entries: None, ..gpu(1, index, vec![]) }
}

#[test]
fn processes_of_a_gpu_without_list_are_unknown() {
    let holders = vec![entry(41, Some(made_up::GIB))];
    let lost = GpuSample::faulty(About::unnamed(2), Fault::Lost);
    for (first, others) in
        [(gpu(1, 0, holders), ""), (gpu(1, 0, vec![]), "None on the GPUs whose processes are known.")]
    {
        let processes = [found(facts(41, "alice", "python3"))].into();
        let html = page(sample(1, vec![first, without_list(1), lost.clone()], processes));
        let section_text = section(&html, "holders");
        for why in ["1: the driver returned no process list", "2: the GPU has fallen off the bus"] {
            assert!(
                section_text.contains(&format!("unknown: the processes on GPU {why}</span>")),
                "{section_text}"
            );
        }
        assert!(section_text.contains(others) && !section_text.contains("GPU 0:"), "{section_text}");
        assert!(
            html.contains(
                "<li>GPU 1: the processes are unknown, because the driver returned no process list"
            ),
            "{html}"
        );
    }
}

#[test]
fn a_gpu_in_mig_mode_leaves_the_list_to_its_instances() {
    let html = page(motley(1));
    let section_text = section(&html, "holders");
    assert!(
        section_text.contains("the processes on GPU 1:") && !section_text.contains("the processes on GPU 2:"),
        "{section_text}"
    );
    let mut some = motley(1);
    some.gpus[2].instances = None;
    let html = page(some);
    let section_text = section(&html, "holders");
    assert!(
        section_text
            .contains("the processes on GPU 2: MIG is enabled, but the driver did not list the instances"),
        "{section_text}"
    );
}

#[test]
fn gpu_without_values_is_a_finding() {
    let silent = GpuSample { memory: None, telemetry: Telemetry::default(), ..gpu(1, 0, vec![]) };
    let html = page(sample(1, vec![silent, gpu(1, 1, vec![])], [].into()));
    assert!(html.contains("<li>GPU 0: all driver calls for memory and utilization fail.</li>"), "{html}");
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
    let section_text = section(&html, "sources");
    assert!(
        section_text.contains("unknown: no response") && !section_text.contains("the driver was not queried"),
        "{section_text}"
    );
}

#[test]
fn that_there_is_no_gpu_is_an_answer() {
    let mut sample = sample(1, vec![], [].into());
    sample.sources.insert(Source::Nvml, SourceState::down(Fault::NoDevices));
    let html = page(sample);
    let section_text = section(&html, "sources");
    assert!(
        section_text.contains("the driver lists no GPUs")
            && !section_text.contains("up: ")
            && !section_text.contains("class=\"bad\""),
        "{section_text}"
    );
    assert!(!section_text.contains("no response") && !section_text.contains("no data"), "{section_text}");
    assert!(section(&html, "gpus").contains("The driver responds, but lists no GPUs."), "{html}");
}

#[test]
fn unreadable_processes_are_reported_without_stuck_ones() {
    let mut sample = small(1);
    let memory = sample.gpus[0].memory.as_mut().expect("a value");
    memory.free += made_up::GIB / 2;
    sample.device_processes = Some(DeviceProcesses { boot_ms: 0, processes: vec![], unreadable: 2 });
    let html = page(sample);
    let section_text = section(&html, "stuck");
    assert!(
        section_text.contains(
            "unknown: which other processes have a GPU open, because the open files of 2 processes could not be read"
        ),
        "{section_text}"
    );
    assert!(!section_text.contains("<table"), "{section_text}");
}

#[test]
fn a_file_that_is_no_quota_says_why() {
    let mut sample = motley(1);
    let section_text = section(&page(sample.clone()), "quotas").to_owned();
    assert!(
        section_text.contains("unknown: the content of 1000/none, because it is too short"),
        "{section_text}"
    );
    sample.quotas.as_mut().expect("two").retain(|quota| quota.invalid.is_some());
    let section_text = section(&page(sample), "quotas").to_owned();
    assert!(
        section_text.contains("the content of 1000/none") && !section_text.contains("No quota"),
        "{section_text}"
    );
}

#[test]
fn moments_are_for_programs_as_well() {
    let html = page(small(1));
    assert!(
        html.contains("<time datetime=\"2023-11-14T22:13:25Z\">2023-11-14 22:13:25 UTC</time>"),
        "{html}"
    );
}
