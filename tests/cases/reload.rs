//! Rules that are edited while they are in force: every way to edit them, every way to ask for it, and files that make
//! no sense.
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
use std::time::{Duration, Instant};

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::home::Home;
use end_to_end::http;
use end_to_end::node::Node;
use end_to_end::page::Page;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::Signal;

const BAD: &str = "version: 1\nrules:\n  - name: idle\n    off: process\n    when: {gpu_utill: {max: 1%}}\n    for: {samples: 3}\n    then: [{flag: loud}]\n";

/// Rules with a name of their own, so that one sees which are in force.
fn named(name: &str) -> String {
    format!(
        "version: 1\nrules:\n  - {{name: {name}, of: process, when: {{gpu_util: {{max: 1%}}}}, for: {{samples: 3}}, then: [{{flag: info}}]}}\n"
    )
}

fn in_force(page: &Page) -> (String, String) {
    let label = |family, label| page.label(family, &[], label).unwrap();
    (label("bailiff_rule_info", "rule"), label("bailiff_policy_info", "sha256"))
}

/// Edits three times, and gives how long the slowest took to be in force.
fn edited(home: &Home, edit: impl Fn(&Path, &str)) -> Duration {
    let enforcer = home.enforcer(&[]);
    let mut known = vec![in_force(&enforcer.page()).1];
    let mut longest = Duration::ZERO;
    for name in ["one", "two", "three"] {
        edit(home.path(), &named(name));
        let began = Instant::now();
        enforcer.until(name, |page| (in_force(page).0 == name).then_some(()));
        longest = longest.max(began.elapsed());
        let sha256 = in_force(&enforcer.page()).1;
        assert!(!known.contains(&sha256), "the policy's name changes with it");
        known.push(sha256);
    }
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_policy_last_reload_successful", &[]), Some(1.0));
    assert_eq!(page.value("bailiff_policy_reloads_total", &[("result", "applied")]), Some(3.0));
    until("the audit log has all", || (home.results("reload") == ["done", "done", "done"]).then_some(()));
    println!("longest reload: {longest:?}");
    longest
}

#[test]
fn truncated_and_written() {
    edited(&Home::with(&named("zero")), |folder, text| fs::write(folder.join("rules.yaml"), text).unwrap());
}

#[test]
fn renamed_over() {
    edited(&Home::with(&named("zero")), |folder, text| {
        fs::write(folder.join(".rules.swp"), text).unwrap();
        fs::rename(folder.join(".rules.swp"), folder.join("rules.yaml")).unwrap();
    });
}

/// As vim does with `backupcopy=no`: the old file becomes the backup, and a new one is written in its place.
#[test]
fn with_a_backup_as_vim_does() {
    edited(&Home::with(&named("zero")), |folder, text| {
        fs::rename(folder.join("rules.yaml"), folder.join("rules.yaml~")).unwrap();
        fs::write(folder.join("rules.yaml"), text).unwrap();
        fs::remove_file(folder.join("rules.yaml~")).unwrap();
    });
}

/// As the kubelet does: `rules.yaml -> ..data/rules.yaml`, and `..data` is swapped as a whole.
#[test]
fn a_config_map_swapped() {
    let swap = |folder: &Path, text: &str| {
        let before = fs::read_link(folder.join("..data")).ok();
        let version = tempfile::Builder::new().prefix("..version").tempdir_in(folder).unwrap().keep();
        fs::write(version.join("rules.yaml"), text).unwrap();
        symlink(version.file_name().unwrap(), folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        before.map_or(Ok(()), |before| fs::remove_dir_all(folder.join(before))).unwrap();
    };
    let home = Home::new();
    swap(home.path(), &named("zero"));
    symlink("..data/rules.yaml", home.rules()).unwrap();
    edited(&home, swap);
}

/// The file changes under another name in another folder, so that nothing tells of it by itself.
fn unseen() -> (Home, tempfile::TempDir) {
    let elsewhere = tempfile::tempdir().unwrap();
    let home = Home::new();
    fs::write(elsewhere.path().join("rules.yaml"), named("zero")).unwrap();
    fs::hard_link(elsewhere.path().join("rules.yaml"), home.rules()).unwrap();
    (home, elsewhere)
}

#[test]
fn whenever_it_is_asked_for() {
    let (home, elsewhere) = unseen();
    let edit = |text: &str| fs::write(elsewhere.path().join("rules.yaml"), text).unwrap();
    let enforcer = home.enforcer(&["--web.enable-lifecycle"]);
    let rule = |enforcer: &Enforcer| in_force(&enforcer.page()).0;

    edit(&named("hangup"));
    assert_eq!(rule(&enforcer), "zero", "nobody told of it");
    enforcer.signal(Signal::HUP);
    enforcer.until("SIGHUP", |page| (in_force(page).0 == "hangup").then_some(()));

    edit(&named("post"));
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    let sha256 = in_force(&enforcer.page()).1;
    assert_eq!((answer.status, answer.text().trim()), (200, format!("in force: {sha256}").as_str()));
    assert_eq!(rule(&enforcer), "post");
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    assert_eq!((answer.status, answer.text().trim()), (200, "unchanged"));

    edit(&named("command"));
    let output = enforcer.run(&["reload"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let sha256 = in_force(&enforcer.page()).1;
    assert_eq!((output.status.code(), said.trim()), (Some(0), format!("applied: {sha256}").as_str()));
    assert_eq!(rule(&enforcer), "command");

    edit(BAD);
    let answer = http::post(enforcer.address(), "/-/reload").unwrap();
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("unknown key") && answer.text().contains("rules.yaml:4:5"),
        "{}",
        answer.text()
    );
    let output = enforcer.run(&["reload"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(said.contains("what was in force goes on") && said.contains("`off`"), "{said}");
    assert_eq!(rule(&enforcer), "command");
}

#[test]
fn over_http_only_where_that_is_allowed() {
    let home = Home::with(&named("zero"));
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
  - {name: idle, of: process, when: {gpu_util: {max: 1%}}, for: {samples: 5}, then: [{flag: info}, {terminate: {}}]}
";

#[test]
fn while_the_file_makes_no_sense_the_last_good_one_goes_on_and_ends_nobody() {
    let node = Node::new(KILLS);
    let tenant = Tenant::obeying(&node.home);
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
    assert_eq!(line["detail"], "the file on disk is invalid; the last good policy goes on");
    enforcer.until_waits(tenant.pid(), "invalid_file");
    enforcer.beats(3);
    assert!(tenant.lives() && tenant.asked() == 0);
    // Its own audit log lies beside the rules, and changes the folder.
    assert_eq!(node.home.results("reload"), ["refused"], "told once");
    let status = enforcer.run(&["status"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("makes no sense") && status.contains("rules.yaml:4:5"), "{status}");
    node.home.write(KILLS);
    tenant.gone();
    node.home.until_line("terminate", "released");
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_policy_last_reload_successful", &[]), Some(1.0));
    assert!(!enforcer.is_held("invalid_file"));
    assert_eq!(in_force(&page), good);
}

#[test]
fn a_file_that_makes_no_sense_is_a_refusal_to_start() {
    let home = Home::with(BAD);
    let arguments = enforcer::arguments(&home);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = enforcer::run(&arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{told}");
    for part in [
        "rules.yaml:4:5",
        "unknown key `off`",
        "did you mean `of`?",
        "    off: process",
        "did you mean `gpu_util`?",
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    let _ = fs::remove_file(home.rules());
    let output = enforcer::run(&arguments);
    assert_eq!(output.status.code(), Some(64), "nor does it start without one");
}
