//! Tests that the tests of the shipped rules pass, and that tests that should fail do fail.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

use std::fs;
use std::path::{Path, PathBuf};

use bailiff_enforcer::commands::{Failure, test};
use bailiff_enforcer::flags::Test;
use bailiff_lifecycle::exit::Exit;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("config")
}

fn run(file: &Path) -> (Exit, String) {
    let mut out = Vec::new();
    let flags = Test { files: vec![file.to_owned()], json: false };
    let exit = test::run(&flags, &mut out).unwrap_or_else(|failure| panic!("{failure}"));
    (exit, String::from_utf8(out).unwrap())
}

#[test]
fn shipped_rules_pass_their_tests() {
    let (exit, text) = run(&config().join("tests/rules.test.yaml"));
    assert_eq!(exit, Exit::Done, "{text}");
}

#[test]
fn every_shipped_rules_file_has_tests() {
    let tests = fs::read_to_string(config().join("tests/rules.test.yaml")).unwrap();
    for entry in fs::read_dir(config().join("rules")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(tests.contains(&format!("rules: ../rules/{name}\n")), "{name} has no test");
    }
}

/// Writes a tests file and a file with one rule into the same directory.
fn written(tests: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let rules = "version: 1\nrules:\n  - {name: idle, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 60}, then: [{flag: info}, {terminate: {}}]}\n";
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let file = directory.path().join("rules.test.yaml");
    fs::write(&file, tests).unwrap();
    (directory, file)
}

#[test]
fn failure_reports_expected_and_actual() {
    let (_directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: too early\n    targets: [{process: 4100, series: {gpu_util: '0x99'}}]\n    \
         expect: [{at: 290s, rule: idle, step: terminate, target: 4100}]\n    never: [{step: flag}]\n  \
         - name: right\n    targets: [{process: 4100, series: {gpu_util: '0x99'}}]\n    \
         expect: [{at: 300s, rule: idle, step: terminate, target: 4100}]\n",
    );
    let (exit, text) = run(&file);
    assert_eq!(exit, Exit::Failed);
    for part in [
        "FAILED: too early",
        "expected: terminate by idle of 4100 at 4m 50s (sample 58)",
        "got: no step at that sample",
        "expected: never: flag",
        "4m 55s (sample 59): flag by idle of",
        "5m (sample 60): terminate by idle of",
        "FAILED: 1 of 2 tests",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("right"), "{text}");
}

#[test]
fn class_of_xids_is_unknown_without_an_xid_of_the_class() {
    let (directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: xids\n    gpus:\n      - {gpu: 0, series: {xid: '_x9'}}\n      \
         - {gpu: 1, series: {xid: '31x9'}}\n      - {gpu: 2, series: {xid: '79x9'}}\n    \
         expect: [{at: {sample: 0}, rule: reboot, step: flag, target: 'gpu:2'}]\n    \
         never: [{rule: works}, {target: 'gpu:0'}, {target: 'gpu:1'}]\n",
    );
    let rules = "version: 1\nrules:\n  - {name: reboot, target: gpu, when: {xid_class: reboot}, for: {samples: 1}, then: [{flag: info}]}\n  \
                 - {name: works, target: gpu, when: {not: {xid_class: reboot}}, for: {samples: 1}, then: [{flag: info}]}\n";
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let (exit, text) = run(&file);
    assert_eq!(exit, Exit::Done, "{text}");
}

#[test]
fn xid_of_a_process_is_unknown_without_such_an_xid() {
    let (directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: xids\n    gpus: [{gpu: 0}, {gpu: 1}]\n    targets:\n      \
         - {process: 41, gpus: [0, 1], series: {xid: '31x9'}}\n      - {process: 42, series: {xid: '139x9'}}\n      \
         - {process: 43, series: {xid: '8x9'}}\n      - {process: 44, series: {xid: '_x9'}}\n    \
         expect:\n      - {at: {sample: 0}, rule: caused, step: flag, target: '41'}\n      \
         - {at: {sample: 0}, rule: caused, step: flag, target: '42'}\n    \
         never: [{rule: works}, {target: '43'}, {target: '44'}]\n",
    );
    let rules = "version: 1\nrules:\n  - {name: caused, target: process, when: {xid: [31, 139]}, for: {samples: 1}, then: [{flag: info}]}\n  \
                 - {name: works, target: process, when: {not: {xid: 31}}, for: {samples: 1}, then: [{flag: info}]}\n";
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let (exit, text) = run(&file);
    assert_eq!(exit, Exit::Done, "{text}");
}

#[test]
fn every_fault_has_its_line() {
    let (_directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: wrong\n    targets:\n      - process: 4100\n        vram: 8GB\n        \
         series:\n          gpu_util: '0x'\n    expect:\n      - {at: 3s, rule: idle, step: terminate}\n      \
         - {at: 5m, rule: idel, step: kill}\n",
    );
    let flags = Test { files: vec![file], json: false };
    let failure = test::run(&flags, &mut Vec::new()).unwrap_err();
    assert_eq!(failure.exit(), Exit::Usage);
    let text = failure.to_string();
    for part in [
        ".yaml:6:15\n",
        "GiB",
        ".yaml:8:21\n",
        "error: 3s is between two samples",
        ".yaml:10:14\n",
        "\"idel\"",
        "\"kill\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn value_of_wrong_type_is_refused_at_its_place() {
    for (keys, message, place) in [
        ("sources: nvml", "expected a map of sources and series; found `nvml`", ":3:24"),
        ("gpus: {gpu: 0}", "expected a list; found a map", ":3:21"),
        ("leases: [{lease: a, gpus: [[0]]}]", "expected text; found a list", ":3:42"),
        ("expect: [{at: 500000000000y, rule: idle, step: flag}]", "has no fixed length", ":3:29"),
    ] {
        let (_directory, file) = written(&format!("rules: rules.yaml\ntests:\n  - {{name: a, {keys}}}\n"));
        let failure =
            test::run(&Test { files: vec![file], json: false }, &mut Vec::new()).unwrap_err().to_string();
        assert!(failure.contains(message) && failure.contains(place), "{message:?} {place:?}\n{failure}");
    }
}

#[test]
fn namespace_without_pod_is_refused() {
    let (_directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: alone\n    targets:\n      - process: 4100\n        \
         namespace: kube-system\n        series: {gpu_util: '0x99'}\n    never: [{step: flag}]\n",
    );
    let flags = Test { files: vec![file], json: false };
    let failure = test::run(&flags, &mut Vec::new()).unwrap_err();
    assert_eq!(failure.exit(), Exit::Usage);
    for part in ["error: `namespace` needs `pod`", ".yaml:6:20\n"] {
        assert!(failure.to_string().contains(part), "{part:?} is not in\n{failure}");
    }
}

#[test]
fn unknown_keys_and_bad_rules_are_refused() {
    let (_directory, file) = written("rules: rules.yaml\ntests:\n  - {name: a, expected: []}\n");
    let flags = Test { files: vec![file.clone()], json: false };
    let failure = test::run(&flags, &mut Vec::new()).unwrap_err();
    assert!(matches!(&failure, Failure::Faults(text) if text.contains("expected")), "{failure}");
    fs::write(file.parent().unwrap().join("rules.yaml"), "version: 1\nrules: [{nmae: idle}]\n").unwrap();
    fs::write(&file, "rules: rules.yaml\ntests: [{name: a, targets: [{process: 1}]}]\n").unwrap();
    let failure = test::run(&flags, &mut Vec::new()).unwrap_err();
    assert!(failure.to_string().contains("nmae"), "{failure}");
    let missing = Test { files: vec!["/nonexistent/rules.test.yaml".into()], json: false };
    let failure = test::run(&missing, &mut Vec::new()).unwrap_err();
    assert_eq!(failure.exit(), Exit::Failed);
    assert_eq!(failure.to_string(), "cannot read /nonexistent/rules.test.yaml: no such file or directory");
}

fn page() -> String {
    fs::read_to_string(config().parent().unwrap().join("docs/rule-tests.md")).unwrap()
}

#[test]
fn documented_example_passes() {
    let page = page();
    let mut blocks = page.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let (rules, tests) = (blocks.next().unwrap(), blocks.next().unwrap());
    let (directory, file) = written(tests);
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let (exit, text) = run(&file);
    assert_eq!(exit, Exit::Done, "{text}");
    assert!(text.contains('2'), "both tests must run: {text}");
}

#[test]
fn every_test_key_is_documented() {
    let page = page();
    let grammar = include_str!("../src/commands/test/grammar.json");
    let grammar: serde_json::Value = serde_json::from_str(grammar).unwrap();
    let maps = grammar["$defs"].as_object().unwrap().values().chain([&grammar]);
    let keys: Vec<&String> =
        maps.filter_map(|map| map["properties"].as_object()).flat_map(|map| map.keys()).collect();
    for key in &keys {
        assert!(page.contains(&format!("`{key}`")) || page.contains(&format!("`{{{key}: ")), "{key}");
    }
    assert!(keys.len() > 60, "{} keys were found", keys.len());
}

#[test]
fn limits_of_cgroups() {
    let (directory, file) = written(
        "rules: rules.yaml\ntests:\n  - name: limits\n    gpus: [{gpu: 0}, {gpu: 1}]\n    targets:\n      \
- {process: 4101, cgroup: /a, vram: 3GiB, gpu_memory_limit: 4GiB}\n      - {process: 4102, cgroup: /a, vram: 1GiB}\n      \
- {process: 4103, cgroup: /b, vram: 3GiB, gpu_memory_limit: none}\n      - {process: 4104, cgroup: /c, vram: 3GiB}\n      \
- {process: 4105, cgroup: /d, vram: 1GiB, gpu_memory_limit: 9GiB, gpus: ['0', '1']}\n    expect:\n      \
- {at: 0s, rule: limited, step: flag, target: 4101}\n      - {at: 0s, rule: limited, step: flag, target: 4102}\n      \
- {at: 0s, rule: limited, step: flag, target: 4105}\n      - {at: 0s, rule: unlimited, step: flag, target: 4103}\n      \
- {at: 0s, rule: full, step: flag, target: 4101}\n      - {at: 0s, rule: full, step: flag, target: 4102}\n      \
- {at: 0s, rule: small, step: flag, target: 4101}\n      - {at: 0s, rule: small, step: flag, target: 4102}\n    never:\n      \
- {step: flag, rule: unlimited, target: 4104}\n      - {step: flag, rule: limited, target: 4104}\n      \
- {step: flag, rule: limited, target: 4103}\n      - {step: flag, rule: small, target: 4103}\n      \
- {step: flag, rule: small, target: 4105}\n      - {step: flag, rule: full, target: 4105}\n      \
- {step: flag, rule: full, target: 4103}\n      - {step: flag, rule: full, target: 4104}\n",
    );
    let rule = |(name, when): (&str, &str)| {
        format!(
            "  - {{name: {name}, target: process, when: {{{when}}}, for: {{samples: 1}}, then: [{{flag: info}}]}}\n"
        )
    };
    let rules = [
        ("limited", "gpu_memory_limited: true"),
        ("unlimited", "gpu_memory_limited: false"),
        ("full", "gpu_memory_limit_ratio: {min: 100%}"),
        ("small", "gpu_memory_limit: {max: 4GiB}"),
    ];
    let rules = format!("version: 1\nrules:\n{}", rules.map(rule).concat());
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let (exit, text) = run(&file);
    assert_eq!(exit, Exit::Done, "{text}");
}

/// Rules with a mail channel, a webhook and a terminal.
const CHANNELS: &str = "version: 1
notify:
  owner: {mail: {server: localhost, from: gpu@example.org, to: '{user}@example.org'}}
  chat: {webhook: {url: 'https://example.org/', format: slack}}
  own: {webhook: {url: 'https://example.org/', body: '{\"what\": \"{{ notice.what }}\", \"uid\": \"{{ notice.uid }}\"}'}}
  tty: {tty: true}
rules:
  - name: idle
    target: process
    mode: enforce
    startup_grace: 0s
    when: {gpu_util: {max: 1%}}
    for: {samples: 60}
    then: [{notify: [owner, chat, own, tty]}, {after: 1m, terminate: {}}]
";

/// Returns the result of a test that expects these messages of the notification.
fn with_messages(messages: &str) -> Result<(Exit, String), String> {
    let (directory, file) = written(&format!(
        "rules: rules.yaml\ntests:\n  - name: texts\n    targets: [{{process: 4100, comm: 'A\"<B', vram: 4GiB, series: {{gpu_util: '0x99'}}}}]\n    \
         expect:\n      - at: 295s\n        rule: idle\n        step: notify\n        target: 4100\n        messages:\n{messages}"
    ));
    fs::write(directory.path().join("rules.yaml"), CHANNELS).unwrap();
    let mut out = Vec::new();
    let exit = test::run(&Test { files: vec![file], json: false }, &mut out);
    exit.map(|exit| (exit, String::from_utf8(out).unwrap())).map_err(|failure| failure.to_string())
}

#[test]
fn messages_are_compared() {
    for (messages, got) in [
        (
            "          - channel: owner
            subject: 'Your process (A\"<B, pid 4100) on node: will be terminated in about 1m'
            subject_contains: on node
            body_contains: ['Hello user,', 'it holds 4.0GiB of GPU memory; gpu_util is 0% (max 1%)', '2026-01-01T00:05:55Z']
",
            "",
        ),
        ("          - {channel: own, body: '{\"uid\":\"1000\",  \"what\": \"your process (A\\\"‹B, pid 4100)\"}'}\n", ""),
        ("          - {channel: chat, body_contains: 'your process (A\\\"&lt;B, pid 4100)'}\n", ""),
        ("          - {channel: tty, body_contains: it will be terminated in about 1m}\n", ""),
        ("          - {channel: owner, subject: Hello}\n", "got: Your process (A\"<B, pid 4100) on node"),
        ("          - {channel: owner, body_contains: [Hello, Goodbye]}\n", "with body_contains on owner: Goodbye"),
        ("          - {channel: own, body: '{}'}\n", "got: {\"uid\":\"1000\",\"what\":"),
    ] {
        let (exit, text) = with_messages(messages).unwrap();
        assert_eq!(exit == Exit::Done, got.is_empty(), "{messages}\n{text}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(got), "{got:?} is not in\n{text}");
    }
}

#[test]
fn messages_that_no_channel_can_send_are_refused() {
    for (messages, message) in [
        (
            "          - {channel: ops, body: x}\n",
            "there is no channel \"ops\"; the file has chat, own, owner, tty",
        ),
        ("          - {channel: chat, subject: x}\n", "only a mail has a subject"),
        ("          - {channel: chat}\n", "an expected message has at least one of subject"),
        ("          - {body: x}\n", "an expected message needs `channel`"),
    ] {
        let failure = with_messages(messages).unwrap_err();
        assert!(failure.contains(message) && failure.contains(".yaml:11:"), "{message:?}\n{failure}");
    }
}
