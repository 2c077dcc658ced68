//! Tests reloads of the rules: every way to edit the file, every way to request a reload, and invalid files.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::home::Home;
use end_to_end::http;
use end_to_end::hung::link;
use end_to_end::node::Node;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::Signal;

const BAD: &str = "version: 1\nrules:\n  - name: idle\n    targt: process\n    when: {gpu_utill: {max: 1%}}\n    for: {samples: 3}\n    then: [{flag: loud}]\n";

/// Returns rules with this name, which shows which rules are in force.
fn rules_named(name: &str) -> String {
    format!(
        "version: 1\nrules:\n  - {{name: {name}, target: process, when: {{gpu_util: {{max: 1%}}}}, for: {{samples: 3}}, then: [{{flag: info}}]}}\n"
    )
}

fn in_force(page: &Page) -> (String, String) {
    let label = |family, label| page.label(family, &[], label).unwrap();
    (label("bailiff_rule_info", "rule"), label("bailiff_policy_info", "sha256"))
}

/// Edits the file three times.
fn edit_three_times(home: &Home, edit: impl Fn(&Path, &str)) {
    timed_edits((home, home.enforcer(&[])), edit);
}

/// Edits the file three times, and returns how long each edit took to be in force.
fn timed_edits((home, enforcer): (&Home, Enforcer), edit: impl Fn(&Path, &str)) -> Vec<Duration> {
    let mut known = vec![in_force(&enforcer.page()).1];
    let mut took = Vec::new();
    for name in ["one", "two", "three"] {
        edit(home.path(), &rules_named(name));
        let began = Instant::now();
        enforcer.until(name, |page| (in_force(page).0 == name).then_some(()));
        took.push(began.elapsed());
        let sha256 = in_force(&enforcer.page()).1;
        assert!(!known.contains(&sha256), "the policy's hash must change");
        known.push(sha256);
    }
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_policy_last_reload_successful", &[]), Some(1.0));
    assert_eq!(page.value("bailiff_policy_reloads_total", &[("result", "applied")]), Some(3.0));
    until("the audit log has all", || (home.results("reload") == ["done", "done", "done"]).then_some(()));
    took
}

#[test]
fn truncated_and_rewritten_file_is_read() {
    edit_three_times(&Home::with(&rules_named("zero")), |directory, text| {
        fs::write(directory.join("rules.yaml"), text).unwrap();
    });
}

#[test]
fn file_renamed_over_is_read() {
    edit_three_times(&Home::with(&rules_named("zero")), |directory, text| {
        fs::write(directory.join(".rules.swp"), text).unwrap();
        fs::rename(directory.join(".rules.swp"), directory.join("rules.yaml")).unwrap();
    });
}

/// Saves the file as vim does with `backupcopy=no`: the old file becomes the backup, and a new file is written
/// in its place.
#[test]
fn file_saved_with_a_backup_is_read() {
    edit_three_times(&Home::with(&rules_named("zero")), |directory, text| {
        fs::rename(directory.join("rules.yaml"), directory.join("rules.yaml~")).unwrap();
        fs::write(directory.join("rules.yaml"), text).unwrap();
        fs::remove_file(directory.join("rules.yaml~")).unwrap();
    });
}

/// Changes the file as the kubelet does: `rules.yaml` links to `..data/rules.yaml`, and `..data` is swapped as
/// a whole.
#[test]
fn swapped_config_map_is_read() {
    let swap = |directory: &Path, text: &str| {
        let before = fs::read_link(directory.join("..data")).ok();
        let version = tempfile::Builder::new().prefix("..version").tempdir_in(directory).unwrap().keep();
        fs::write(version.join("rules.yaml"), text).unwrap();
        symlink(version.file_name().unwrap(), directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        before.map_or(Ok(()), |before| fs::remove_dir_all(directory.join(before))).unwrap();
    };
    let home = Home::new();
    swap(home.path(), &rules_named("zero"));
    symlink("..data/rules.yaml", home.rules()).unwrap();
    edit_three_times(&home, swap);
}

/// Replaces the directory that contains the rules. The change is noticed within 2 s, and on a busy machine
/// well within a minute.
fn replace_directory(begin: impl Fn(&Path, &str), edit: impl Fn(&Path, &str)) {
    let home = Home::new();
    begin(home.path(), &rules_named("zero"));
    let mut arguments = enforcer::arguments(&home);
    arguments[1] = home.path().join("rules.d/rules.yaml").display().to_string();
    let mut command = Command::new(programs::enforcer());
    command.args(arguments);
    let enforcer = Enforcer::spawn(&home, command);
    let took = timed_edits((&home, enforcer), edit);
    let within = |seconds| took.iter().filter(|took| **took < Duration::from_secs(seconds)).count();
    assert!(within(2) > 0 && within(15) == 3, "{took:?}");
}

/// Creates a directory with these rules in it.
fn rules_directory(path: &Path, text: &str) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("rules.yaml"), text).unwrap();
}

#[test]
fn directory_renamed_over_is_read_at_once() {
    replace_directory(
        |directory, text| rules_directory(&directory.join("rules.d"), text),
        |directory, text| {
            rules_directory(&directory.join("next"), text);
            let old = tempfile::tempdir_in(directory).unwrap().keep();
            fs::rename(directory.join("rules.d"), old.join("old")).unwrap();
            fs::rename(directory.join("next"), directory.join("rules.d")).unwrap();
        },
    );
}

#[test]
fn directory_removed_and_made_again_is_read_at_once() {
    replace_directory(
        |directory, text| rules_directory(&directory.join("rules.d"), text),
        |directory, text| {
            fs::remove_dir_all(directory.join("rules.d")).unwrap();
            rules_directory(&directory.join("rules.d"), text);
        },
    );
}

#[test]
fn swapped_directory_link_is_read_at_once() {
    let swap = |directory: &Path, text: &str| {
        let version = tempfile::tempdir_in(directory).unwrap().keep();
        fs::write(version.join("rules.yaml"), text).unwrap();
        link(&version, &directory.join("rules.d"));
    };
    replace_directory(swap, swap);
}

/// Creates a second hard link to the file, in another directory that is not watched.
fn unwatched_link() -> (Home, tempfile::TempDir) {
    let elsewhere = tempfile::tempdir().unwrap();
    let home = Home::new();
    fs::write(elsewhere.path().join("rules.yaml"), rules_named("zero")).unwrap();
    fs::hard_link(elsewhere.path().join("rules.yaml"), home.rules()).unwrap();
    (home, elsewhere)
}

#[test]
fn every_reload_request_is_served() {
    let (home, elsewhere) = unwatched_link();
    let edit = |text: &str| fs::write(elsewhere.path().join("rules.yaml"), text).unwrap();
    let enforcer = home.enforcer(&["--web.enable-lifecycle"]);
    let rule = |enforcer: &Enforcer| in_force(&enforcer.page()).0;
    // If the change is noticed just before the request, the file is edited again.
    let edit_three_times = |name: &str, query: &dyn Fn() -> bool| {
        until(name, || {
            edit(&rules_named("other"));
            enforcer.until("other", |page| (in_force(page).0 == "other").then_some(()));
            edit(&rules_named(name));
            query().then_some(())
        });
        assert_eq!(rule(&enforcer), name);
    };

    edit_three_times("hangup", &|| {
        enforcer.signal(Signal::HUP);
        enforcer.until("SIGHUP", |page| (in_force(page).0 == "hangup").then_some(()));
        home.lines().iter().any(|line| line["detail"].as_str().is_some_and(|why| why.starts_with("SIGHUP")))
    });

    edit_three_times("post", &|| {
        let answer = http::post(enforcer.address(), "/-/reload").unwrap();
        let applied = format!("in force: {}", in_force(&enforcer.page()).1);
        assert_eq!(answer.status, 200);
        answer.text().trim() == applied
    });
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    assert_eq!((answer.status, answer.text().trim()), (200, "unchanged"));

    edit_three_times("command", &|| {
        let output = enforcer.run(&["reload"]);
        assert_eq!(output.status.code(), Some(0));
        let applied = format!("applied: {}", in_force(&enforcer.page()).1);
        String::from_utf8_lossy(&output.stdout).trim() == applied
    });

    edit(BAD);
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("unknown key") && answer.text().contains("rules.yaml:4:5"),
        "{}",
        answer.text()
    );
    let output = enforcer.run(&["reload"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(printed.contains("the previous rules stay in force") && printed.contains("`targt`"), "{printed}");
    assert_eq!(rule(&enforcer), "command");
}

#[test]
fn http_reload_needs_its_flag() {
    let home = Home::with(&rules_named("zero"));
    let enforcer = home.enforcer(&[]);
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("--web.enable-lifecycle"), "{}", answer.text());
    assert_eq!(http::get(enforcer.address(), "/-/reload", &[]).unwrap().status, 405);
}

const KILLS: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, grace: 30s}
rules:
  - {name: idle, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 5}, then: [{flag: info}, {terminate: {}}]}
";

#[test]
fn invalid_file_keeps_previous_rules_without_actions() {
    let node = Node::new(KILLS);
    let tenant = Tenant::ending_on_term(&node.home);
    let enforcer = node.home.enforcer(&[]);
    let good = in_force(&enforcer.page());
    node.home.write(BAD);
    enforcer.until("the file is refused", |page| {
        (page.value("bailiff_policy_last_reload_successful", &[])? == 0.0).then_some(())
    });
    assert!(enforcer.is_held("invalid_file"));
    assert_eq!(in_force(&enforcer.page()), good);
    node.hold(&tenant, 0, "used: 1GiB");
    node.home.until_line("flag", "raised");
    let line = node.home.until_line("terminate", "withheld");
    assert_eq!(
        line["detail"],
        "the rules file is invalid or cannot be read; the previous rules stay in force"
    );
    enforcer.until_waits(tenant.pid(), "invalid_file");
    enforcer.ticks(3);
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    // The enforcer's own audit log is in the same directory as the rules, so writing to it changes the
    // directory.
    assert_eq!(node.home.results("reload"), ["refused"], "the refused reload is reported once");
    let status = enforcer.run(&["status"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(
        status.contains("the rules file was not loaded") && status.contains("rules.yaml:4:5"),
        "{status}"
    );
    node.home.write(KILLS);
    tenant.gone();
    node.home.until_line("terminate", "released");
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_policy_last_reload_successful", &[]), Some(1.0));
    assert!(!enforcer.is_held("invalid_file"));
    assert_eq!(in_force(&page), good);
}

#[test]
fn invalid_file_prevents_the_start() {
    let home = Home::with(BAD);
    let arguments = enforcer::arguments(&home);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = enforcer::run(&arguments);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{printed}");
    for part in [
        "rules.yaml:4:5",
        "unknown key `targt`",
        "did you mean `target`?",
        "    targt: process",
        "did you mean `gpu_util`?",
    ] {
        assert!(printed.contains(part), "no {part} in {printed}");
    }
    let _ = fs::remove_file(home.rules());
    let output = enforcer::run(&arguments);
    assert_eq!(output.status.code(), Some(64), "the command does not start without valid rules");
}

#[test]
fn deleted_file_keeps_the_loaded_rules() {
    let home = Home::with(&rules_named("zero"));
    let enforcer = home.enforcer(&["--web.enable-lifecycle"]);
    let good = in_force(&enforcer.page());
    fs::remove_file(home.rules()).unwrap();
    enforcer.until("the file is refused", |page| {
        (page.value("bailiff_policy_last_reload_successful", &[])? == 0.0).then_some(())
    });
    let words =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
    let reload = enforcer.run(&["reload"]);
    let status = enforcer.run(&["status"]);
    let page = http::get(enforcer.address(), "/", &[]).unwrap();
    let post = http::post(enforcer.address(), "/-/reload").unwrap();
    for printed in [words(&reload.stdout), words(&status.stdout), page.text(), words(post.text().as_bytes())]
    {
        assert!(printed.contains("rules.yaml: not found"), "{printed}");
        assert!(printed.to_lowercase().contains("the rules file was not loaded"), "{printed}");
    }
    assert_eq!(in_force(&enforcer.page()), good);
}

#[test]
fn unchanged_file_keeps_its_load_time() {
    let home = Home::with(&rules_named("zero"));
    let enforcer = home.enforcer(&[]);
    let read = |page: &Page| page.value("bailiff_policy_last_reload_success_timestamp_seconds", &[]);
    let (loaded, before) = (enforcer.status()["policy"]["loaded"].as_f64(), read(&enforcer.page()));
    enforcer.until("the file is read again", |page| {
        let output = enforcer.run(&["reload"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "unchanged");
        (read(page) > before).then_some(())
    });
    assert_eq!(enforcer.status()["policy"]["loaded"].as_f64(), loaded);
    let status = String::from_utf8(enforcer.run(&["status"]).stdout).unwrap();
    assert!(status.split_whitespace().collect::<Vec<_>>().join(" ").contains(", loaded "), "{status}");
}
