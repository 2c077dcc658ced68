//! Tests rules files: valid files and their meaning, invalid files and their messages, and
//! arbitrary bytes. `UPDATE_GOLDEN=1` renews the texts and the schema; review the difference.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic, reason = "cases are files")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_engine::policy::{self, FaultSeverity, FaultStyle, LoadContext, check};
use proptest::prelude::*;

/// 2026-11-21, noon.
const CONTEXT: LoadContext = LoadContext {
    is_redis_address: |text| text.starts_with("redis"),
    is_mail_address: |text| text.contains('@'),
    check_template: |text| {
        if text.contains("{{ nothing") { Err("it has no `nothing`".to_owned()) } else { Ok(()) }
    },
    check_body: |format, text| {
        let why = || format!("it has no `nothing`, and is for {}", format.name());
        if text.contains("{{ nothing") { Err(why()) } else { Ok(()) }
    },
    ..LoadContext::accepting(Duration::from_hours(498_684))
};

fn local_host(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the rules files in a directory, sorted by name.
fn files(directory: &str) -> Vec<(String, Vec<u8>, PathBuf)> {
    let mut files: Vec<_> = fs::read_dir(local_host(directory))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap(), path))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{directory} is empty");
    files
}

fn golden(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(expected == text, "{} differs; UPDATE_GOLDEN=1 renews it:\n{text}", path.display());
}

fn shipped() -> Vec<(String, Vec<u8>, PathBuf)> {
    files("../../config").into_iter().chain(files("../../config/rules")).collect()
}

#[test]
fn shipped_rules_have_no_warnings_and_no_actions() {
    for (name, bytes, _) in shipped() {
        let loaded = policy::load(&bytes, &name, CONTEXT).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        for rule in &loaded.policy.rules {
            assert_eq!(rule.mode, policy::Mode::DryRun, "{name}: {}", rule.name);
        }
    }
}

#[test]
fn every_example_is_one_rule_named_after_its_file() {
    for (name, bytes, _) in files("../../config/rules") {
        let rules = policy::load(&bytes, &name, CONTEXT).unwrap().policy.rules;
        let names: Vec<String> = rules.iter().map(|rule| format!("{}.yaml", rule.name)).collect();
        assert_eq!(names, [name]);
    }
}

#[test]
fn good_files_match_their_reports() {
    for (name, bytes, path) in files("tests/good") {
        let report = check::report(&name, &bytes, CONTEXT, FaultStyle::Plain);
        assert!(report.sound, "{}", report.text);
        golden(&path.with_extension("txt"), &report.text);
    }
}

#[test]
fn bad_files_match_their_reports() {
    for (name, bytes, path) in files("tests/bad") {
        let faults = policy::load(&bytes, &name, CONTEXT).expect_err(&name);
        assert!(faults.errors() > 0, "{name}");
        golden(&path.with_extension("txt"), &faults.render(FaultStyle::Plain));
        assert_eq!(faults.lines().count(), faults.iter().count());
        for (fault, line) in faults.iter().zip(faults.lines()) {
            assert!(line.starts_with(&format!("{name}:{}:{}: ", fault.line, fault.column)), "{line}");
            let place = format!("--> {name}:{}:{}\n", fault.line, fault.column);
            assert!(faults.render(FaultStyle::Plain).contains(&place), "{place}");
            assert!(line.lines().count() == 1 && !line.contains(char::is_control), "{line:?}");
        }
    }
}

#[test]
fn faults_are_sorted_by_position() {
    let text = "version: 1\nrules:\n  - name: ä\n    off: gpu\n    then: [{flagg: info}]\n";
    let faults = policy::load(text.as_bytes(), "x.yaml", CONTEXT).unwrap_err();
    let places: Vec<(usize, usize, &str)> =
        faults.iter().map(|fault| (fault.line, fault.column, &text[fault.bytes.clone()])).collect();
    assert!(places.is_sorted_by_key(|(line, column, _)| (*line, *column)), "{places:?}");
    for expected in [(3, 11, "ä"), (4, 5, "off"), (5, 13, "flagg")] {
        assert!(places.contains(&expected), "{expected:?} in {places:?}");
    }
}

#[test]
fn colours_are_for_terminals_only() {
    let faults = policy::load(b"version: 2\n", "x.yaml", CONTEXT).unwrap_err();
    assert!(faults.render(FaultStyle::Coloured).contains("\u{1b}["));
    assert!(!faults.render(FaultStyle::Plain).contains('\u{1b}'));
}

/// Returns the fault for which a file is rejected.
fn refusal(bytes: &[u8]) -> String {
    let faults = policy::load(bytes, "bomb.yaml", CONTEXT).unwrap_err();
    let error = faults.iter().find(|fault| fault.severity == FaultSeverity::Error).unwrap();
    assert!(faults.render(FaultStyle::Plain).len() < 100_000);
    error.message.clone()
}

#[test]
fn yaml_bombs_are_refused() {
    assert!(refusal(&vec![b' '; (1 << 20) + 1]).contains("1 MiB"));
    assert!(refusal(&vec![b'['; 1 << 20]).contains("more than 32 levels deep"));
    assert!(refusal("{a: ".repeat(200_000).as_bytes()).contains("more than 32 levels deep"));
    assert!(refusal("- ".repeat(500_000).as_bytes()).contains("more than 32 levels deep"));
    assert!(
        refusal(format!("version: [{}]", "1,".repeat(400_000)).as_bytes()).contains("more than 50000 values")
    );
}

#[test]
fn yaml_aliases_billion_laughs_are_refused() {
    let mut aliases = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    let mut uses = "version: 1\nconditions:\n  a0: {orphaned: true}\n".to_owned();
    for step in 1..20 {
        let before = step - 1;
        writeln!(aliases, "a{step}: &a{step} [{}]", vec![format!("*a{before}"); 10].join(", ")).unwrap();
        let all = vec![format!("{{use: a{before}}}"); 10].join(", ");
        writeln!(uses, "  a{step}: {{any: [{all}]}}").unwrap();
    }
    assert!(refusal(aliases.as_bytes()).contains("anchors and aliases"));
    uses.push_str(
        "rules:\n  - {name: a, target: process, when: {use: a19}, for: 30m, then: [{flag: info}]}\n",
    );
    assert!(refusal(uses.as_bytes()).contains("too large when fully expanded"));
}

#[test]
fn too_many_conditions_are_refused() {
    let mut text = "version: 1\nconditions:\n  a0: {orphaned: true}\n".to_owned();
    for step in 1..2000 {
        writeln!(text, "  a{step}: {{use: a{}}}", step - 1).unwrap();
    }
    text.push_str(
        "rules:\n  - {name: a, target: process, when: {use: a1999}, for: 30m, then: [{flag: info}]}\n",
    );
    assert!(refusal(text.as_bytes()).contains("deep"));
}

#[test]
fn first_100_faults_are_kept_and_all_counted() {
    let text = (0..1000).map(|key| format!("key{key}: 1")).collect::<Vec<_>>().join("\n");
    let faults = policy::load(text.as_bytes(), "x.yaml", CONTEXT).unwrap_err();
    assert_eq!((faults.errors(), faults.iter().count()), (1002, 100));
    assert!(faults.sum().contains("902 of them are not shown"), "{}", faults.sum());
}

fn any_good_file() -> impl Strategy<Value = Vec<u8>> {
    let good: Vec<Vec<u8>> =
        shipped().into_iter().chain(files("tests/good")).map(|(_, bytes, _)| bytes).collect();
    prop::sample::select(good)
}

/// Bytes that have a meaning in YAML or in the grammar, and some that do not.
fn a_change() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "",
        "\n",
        " ",
        "\t",
        ":",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "#",
        "&a ",
        "*a",
        "!x ",
        "<<: ",
        "|",
        ">",
        "%",
        "?",
        "~",
        "null",
        "true",
        "0",
        "-1",
        "1e999",
        "99999999999999999999",
        "%",
        "8GB",
        "re:(",
        "use: ",
        "any: ",
        "not: ",
        "\u{0}",
        "\u{feff}",
        "\u{2028}",
        "é",
        "---\n",
        "...\n",
    ];
    prop_oneof![
        prop::sample::select(words.map(|word| word.as_bytes().to_vec()).to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ]
}

/// Loads a file. Any result is accepted if it can be displayed.
fn survives(bytes: &[u8]) {
    let report = check::report("x.yaml", bytes, CONTEXT, FaultStyle::Plain);
    assert!(!report.text.is_empty());
    if let Err(faults) = policy::load(bytes, "x.yaml", CONTEXT) {
        assert!(faults.errors() > 0);
        assert!(faults.iter().all(|fault| fault.line > 0 && fault.column > 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        survives(&bytes);
    }

    #[test]
    fn mutated_files_do_not_panic(
        good in any_good_file(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..8, a_change()), 1..6),
    ) {
        let mut bytes = good;
        for (place, length, change) in changes {
            let start = place.index(bytes.len() + 1);
            let end = (start + length).min(bytes.len());
            bytes.splice(start..end, change);
        }
        survives(&bytes);
    }
}

fn one_rule(text: &str) -> policy::Rule {
    let text = format!("version: 1\n{text}");
    let loaded =
        policy::load(text.as_bytes(), "x.yaml", CONTEXT).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    loaded.policy.rules.into_iter().next().unwrap()
}

/// Returns the identity of the condition of a process rule with this `when`, after these top-level keys.
fn condition(when: &str, file: &str) -> String {
    let rule =
        format!("rules: [{{name: a, target: process, when: {when}, for: 30m, then: [{{flag: info}}]}}]\n");
    one_rule(&format!("{file}{rule}")).condition
}

#[test]
fn equal_conditions_have_equal_hashes() {
    let idle = condition("{gpu_util: {max: 1%}, cpu_util: {max: 5%}}", "");
    let named = "conditions: {idle: {cpu_util: {max: 5%}, gpu_util: {max: 1%}}}\n";
    for (when, file) in [
        ("{cpu_util: {max: 5%}, gpu_util: {max: 1%}}", ""),
        ("{cpu_util: {max: 5.0%}, gpu_util: {max: \"1 %\"}} # a comment", ""),
        ("{use: idle}", named),
        ("{use: [idle]}", named),
        ("{all: [{use: idle}, {gpu_util: {max: 1%}}]}", named),
        ("{all: [{all: [{gpu_util: {max: 1%}}]}], cpu_util: {max: 5%}}", ""),
        ("{any: [{gpu_util: {max: 1%}, cpu_util: {max: 5%}}]}", ""),
    ] {
        assert_eq!(condition(&when.replace(" # a comment", ""), file), idle, "{when}");
    }
    for when in [
        "{gpu_util: {max: 1%}}",
        "{gpu_util: {below: 1%}, cpu_util: {max: 5%}}",
        "{gpu_util: {max: 2%}, cpu_util: {max: 5%}}",
        "{any: [{gpu_util: {max: 1%}}, {cpu_util: {max: 5%}}]}",
        "{not: {gpu_util: {max: 1%}, cpu_util: {max: 5%}}}",
        "{gpu_util: {max: 1%}, cpu_util: {max: 5%}, users: [alice]}",
    ] {
        assert_ne!(condition(when, ""), idle, "{when}");
    }
    let selected = |patterns: &str| condition(&format!("{{users: {patterns}}}"), "");
    assert_eq!(selected("[a, b]"), selected("[b, a, b]"));
    assert_ne!(selected("[a, b]"), selected("[\"a\\\", \\\"b\"]"));
}

#[test]
fn pick_candidates_are_part_of_the_condition_hash() {
    let rule = |pick: &str| {
        let when = "when: {vram_free: {below: 8GiB}}, for: 30m";
        one_rule(&format!("rules: [{{name: a, target: gpu, {when}, pick: {pick}, then: [{{flag: info}}]}}]"))
            .condition
    };
    let usual = rule("{from: {vram: {min: 1GiB}}, idle_for: 5m}");
    let written = "order: [lowest_priority, smallest_sufficient, longest_idle]";
    assert_eq!(rule(&format!("{{from: {{vram: {{min: 1024MiB}}}}, idle_for: 300s, {written}}}")), usual);
    assert_ne!(rule("{from: {vram: {min: 2GiB}}, idle_for: 5m}"), usual);
    assert_ne!(rule("{from: {vram: {min: 1GiB}}, idle_for: 6m}"), usual);
    assert_ne!(rule("{from: {vram: {min: 1GiB}}, idle_for: 5m, order: [youngest]}"), usual);
}

#[test]
fn rule_overrides_file_overrides_built_in_defaults() {
    use policy::Mode::{DryRun, Enforce};
    use policy::Span::{Samples, Time};
    let rule = "rules: [{name: a, target: process, when: {orphaned: true}, for: 30m, then: [{flag: info}, {notify: o}, {terminate: {}}]";
    let file = "notify: {o: {tty: true}}\nmode: enforce\ndefaults: {max_gap: 5, startup_grace: 1m, clear_after: 2m, grace: 9s, cooldown: 4h}\n";
    let built_in = one_rule(&format!("notify: {{o: {{tty: true}}}}\n{rule}}}]"));
    let of_file = one_rule(&format!("{file}{rule}}}]"));
    let own = one_rule(&format!(
        "{file}{rule}, mode: dry-run, max_gap: 0, startup_grace: 0s, clear_after: 7, cooldown: 1s}}]"
    ));
    let seconds = Duration::from_secs;
    let gate_of =
        |rule: &policy::Rule| (rule.mode, rule.max_gap, rule.startup_grace, rule.clear_after, rule.cooldown);
    assert_eq!(gate_of(&built_in), (DryRun, 2, seconds(600), Samples(3), seconds(1800)));
    assert_eq!(gate_of(&of_file), (Enforce, 5, seconds(60), Time(seconds(120)), seconds(14_400)));
    assert_eq!(gate_of(&own), (DryRun, 0, Duration::ZERO, Samples(7), seconds(1)));
    let grace = |rule: &policy::Rule| rule.then[2].action.clone();
    assert_eq!(grace(&built_in), policy::Action::Terminate { grace: seconds(60), requires_notice: false });
    assert_eq!(grace(&of_file), policy::Action::Terminate { grace: seconds(9), requires_notice: false });
}

#[test]
fn full_example_is_parsed() {
    use bailiff_engine::Kind;
    use policy::webhook::{Format, Webhook};
    use policy::{Action, Address, Channel, Condition, Field, Order, Span};
    let text = fs::read(local_host("tests/good/everything.yaml")).unwrap();
    let policy = policy::load(&text, "everything.yaml", CONTEXT).unwrap().policy;
    assert_eq!(policy.sha256.len(), 64);
    assert_eq!((policy.interval, policy.allow_root), (None, false));
    let limits = policy.limits;
    assert_eq!(
        (limits.per_gpu_hour, limits.per_user_hour, limits.per_node_hour, limits.max_processes),
        (2, 3, 6, 512)
    );
    assert_eq!(policy.channels["owner"], Channel::Tty);
    let address = Address::File("/etc/bailiff/ops-url".into());
    let webhook = Webhook { address, format: Format::Json, body: None, routing_key_file: None };
    assert_eq!(policy.channels["ops"], Channel::Webhook(webhook));
    let [policy::Exception { condition: Condition::Any(protected), reason: None, until: None }] =
        &policy.protect[..]
    else {
        panic!("{:?}", policy.protect)
    };
    let fields: Vec<Field> = protected
        .iter()
        .map(|condition| match condition {
            Condition::Select(selector) => selector.field,
            _ => panic!("{condition:?}"),
        })
        .collect();
    assert_eq!(fields, [Field::Users, Field::Comms, Field::Namespaces]);
    let idle = &policy.rules[0];
    assert_eq!((idle.target, idle.span), (Kind::Workload, Span::Time(Duration::from_mins(30))));
    assert_eq!(idle.except[0].reason.as_deref(), Some("paper deadline"));
    assert_eq!(idle.except[0].until.map(|until| until.as_secs()), Some(1_798_761_600));
    let names: Vec<&str> = idle.then.iter().map(|step| step.action.name()).collect();
    assert_eq!(names, ["flag", "notify", "signal", "terminate"]);
    let Action::Signal(signal) = &idle.then[2].action else { panic!("{:?}", idle.then[2]) };
    assert_eq!((signal.name, signal.number), ("SIGUSR1", 10));
    let pick = policy.rules[6].pick.as_ref().unwrap();
    assert_eq!(pick.order, [Order::LowestPriority, Order::SmallestSufficient, Order::LongestIdle]);
    assert_eq!(pick.idle_for, Span::Samples(40));
}

#[test]
fn destructive_steps_have_a_minimum_window() {
    let loads = |file: &str, span: &str, then: &str| {
        let text = format!(
            "version: 1\nnotify: {{o: {{tty: true}}}}\n{file}rules: [{{name: a, target: process, when: {{orphaned: true}}, for: {span}, then: [{{notify: o}}, {then}]}}]"
        );
        policy::load(text.as_bytes(), "x.yaml", CONTEXT).is_ok()
    };
    for (file, span, then, expected) in [
        ("", "{samples: 3}", "{terminate: {}}", true),
        ("", "{samples: 2}", "{terminate: {}}", false),
        ("", "{samples: 2}", "{after: {samples: 1}, terminate: {}}", true),
        ("", "{samples: 1}", "{flag: info}", true),
        ("", "30s", "{terminate: {}}", true),
        ("", "29s", "{signal: USR1}", false),
        ("", "29s", "{exec: [/bin/true]}", false),
        ("", "20s", "{after: 10s, terminate: {}}", true),
        ("", "1s", "{flag: info}", true),
        ("interval: 5s\n", "30s", "{terminate: {}}", true),
        ("interval: 15m\n", "30m", "{terminate: {}}", false),
        ("interval: 15m\n", "31m", "{terminate: {}}", true),
        ("interval: 1s\n", "5s", "{terminate: {}}", false),
        ("interval: 1s\n", "{samples: 3}", "{terminate: {}}", true),
    ] {
        assert_eq!(loads(file, span, then), expected, "{file}{span} {then}");
    }
}
