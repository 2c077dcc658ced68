//! Reports on a known record.

use std::sync::Arc;
use std::time::Duration;

use super::report::Report;
use super::{Admin, Simulation, print};
use crate::commands::test::staged;
use bailiff_engine::policy::load;

const RULE: &str = "{gpu_util: {max: 1%}}, for: {samples: 60}, then: [{flag: info}, {terminate: {}}]";

fn rehearse(rules: &str, targets: &str) -> Report {
    rehearse_with(rules, targets, Admin::Away)
}

fn rehearse_with(rules: &str, test: &str, admin: Admin) -> Report {
    let rules = format!("version: 1\nrules:\n{rules}");
    let policy = load(rules.as_bytes(), "rules.yaml", crate::policy_file::context(Duration::ZERO));
    let policy = Arc::new(policy.unwrap_or_else(|faults| panic!("{}", faults.sum())).policy);
    let mut simulation = Simulation::new(Arc::clone(&policy), admin);
    for snapshot in staged(&format!("tests:\n  - name: past\n{test}"), &policy).unwrap() {
        simulation.see(snapshot);
    }
    let report = simulation.finish("past".to_owned());
    let mut shown = Vec::new();
    print(&report, &mut shown).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    report
}

fn idle(mode: &str) -> String {
    format!("  - {{name: idle, mode: {mode}, target: process, when: {RULE}}}\n")
}

#[test]
fn one_kill_a_match_and_what_it_would_have_freed() {
    for mode in ["dry-run", "enforce"] {
        // A process on two GPUs that exits by itself, 639 samples after it would have been ended at sample 60.
        let test = "    gpus: [{gpu: 0}, {gpu: 1}]\n    targets:\n      \
            - {process: 4100, gpus: [0, 1], vram: 2GiB, until: 3500s, series: {gpu_util: '0x900'}}\n";
        let report = rehearse(&idle(mode), test);
        let rule = &report.rules[0];
        assert_eq!((rule.matches, rule.flags, rule.kills, rule.regrets), (1, 1, 1, 0), "{mode}: {rule:#?}");
        let [projection] = &rule.actions[..] else { panic!("{rule:#?}") };
        assert_eq!(projection.at.0, (1_767_225_600 + 300) * 1000, "{mode}");
        assert_eq!(projection.ended.map(|at| at.0 - projection.at.0), Some(3_200_000), "{mode}");
        // The process was last observed at 3495 s, so two GPUs and 4 GiB would have been free for 3195 s.
        let hours = 3195.0 / 3600.0;
        for freed in [projection.freed, rule.freed, report.freed, report.owners[0].freed] {
            assert!((freed.gpu_hours - 2.0 * hours).abs() < 1e-6, "{freed:?}");
            assert!((freed.gib_hours - 4.0 * hours).abs() < 1e-6, "{freed:?}");
        }
        assert_eq!((report.owners[0].user.as_str(), report.owners[0].kills), ("user", 1));
    }
}

#[test]
fn busy_again_soon_is_a_regret_and_later_is_none() {
    let test = "    targets:\n      \
        - {process: 4100, series: {gpu_util: '0x99 43 0x500'}}\n      \
        - {process: 4200, series: {gpu_util: '0x499 43 0x99'}}\n      \
        - {process: 4300, series: {gpu_util: '0x99 1 0x499'}}\n";
    let report = rehearse(&idle("dry-run"), test);
    let regrets: Vec<(String, Option<u64>)> = report.rules[0]
        .actions
        .iter()
        .filter(|projection| !projection.again)
        .map(|projection| {
            (projection.target[..12].to_owned(), projection.regret.map(|regret| regret.after_seconds))
        })
        .collect();
    let case = |pid: &str, after| (format!("process:{pid}"), after);
    // One action at a time: the actions on the other two targets follow two and four samples later.
    assert_eq!(regrets, [case("4100", Some(200)), case("4200", None), case("4300", None)]);
    assert_eq!(report.rules[0].regrets, 1);
}

#[test]
fn second_match_of_a_target_that_would_have_ended_is_counted_separately() {
    let test = "    targets:\n      - {process: 4100, series: {gpu_util: '0x99 50 0x99'}}\n";
    let report = rehearse(&idle("dry-run"), test);
    let rule = &report.rules[0];
    assert_eq!((rule.matches, rule.kills, rule.regrets), (2, 1, 1));
    assert_eq!(rule.actions.iter().map(|projection| projection.again).collect::<Vec<_>>(), [false, true]);
    // In enforce mode, the cooldown withholds the second action.
    let report = rehearse(&idle("enforce"), test);
    assert_eq!(report.rules[0].actions.len(), 1);
    assert_eq!(report.rules[0].withheld.get("cooldown"), Some(&1));
}

#[test]
fn a_gpu_that_two_rules_free_counts_once() {
    let rules = format!("{}  - {{name: jobs, target: workload, when: {RULE}}}\n", idle("dry-run"));
    let test = "    targets:\n      - {process: 4100, series: {gpu_util: '0x359'}}\n";
    let report = rehearse(&rules, test);
    assert_eq!((report.rules[0].kills, report.rules[1].kills), (1, 1), "{report:#?}");
    assert!((report.freed.gpu_hours - report.rules[0].freed.gpu_hours).abs() < 1e-9);
    assert_eq!(report.owners[0].kills, 1);
}

#[test]
fn near_misses_are_those_that_never_matched() {
    let test = "    targets:\n      \
        - {process: 4100, series: {gpu_util: '0x47 50x99'}}\n      \
        - {process: 4200, series: {gpu_util: '0x46 50x99'}}\n      \
        - {process: 4300, series: {gpu_util: '0x49 50 0x79 50'}}\n";
    let report = rehearse(&idle("dry-run"), test);
    let near: Vec<(&str, u32)> =
        report.rules[0].near_misses.iter().map(|near| (&near.target[..12], near.longest)).collect();
    assert_eq!(near, [("process:4100", 48)]);
}

#[test]
fn unknown_is_counted_and_gaps_are_missed_intervals() {
    let test = "    targets:\n      - {process: 4100, series: {gpu_util: '0x29 _x10 0x59'}}\n    intervals: '1x49 _x5 1x44'\n";
    let report = rehearse(&idle("dry-run"), test);
    let period = &report.period;
    assert_eq!((period.snapshots, period.judged, period.missed_intervals), (95, 95, 5));
    let rule = &report.rules[0];
    assert_eq!((rule.asked, rule.held_true, rule.unknown, rule.kills), (95, 85, 10, 0));
    assert!(report.unknown.iter().any(|case| case.name == "gpu_util" && case.unknown == 10));
}

#[test]
fn breaker_holds_until_resume() {
    let target = |number| format!("      - {{process: 4{number}00, series: {{gpu_util: '0x199'}}}}\n");
    let test = format!("    targets:\n{}", [1, 2, 3, 4].map(target).concat());
    let report = rehearse(&idle("enforce"), &test);
    assert_eq!(report.rules[0].kills, 0);
    assert!(report.rules[0].withheld.contains_key("mass_breaker"), "{report:#?}");
    assert!(report.notes[0].contains("breaker"), "{:?}", report.notes);
    let report = rehearse_with(&idle("enforce"), &test, Admin::Resumes(Duration::from_mins(5)));
    assert!(report.rules[0].kills > 0, "{report:#?}");
}

#[test]
fn names_are_harmless_on_paper() {
    let test = "    targets:\n      - {process: 4100, comm: \"a\\e[2J\\u202Eb\", user: \"x\\ny\", series: {gpu_util: '0x99'}}\n";
    let report = rehearse(&idle("dry-run"), test);
    let mut shown = Vec::new();
    print(&report, &mut shown).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(!shown.contains(['\u{1b}', '\u{202e}']) && shown.contains("x\u{fffd}y"), "{shown}");
}
