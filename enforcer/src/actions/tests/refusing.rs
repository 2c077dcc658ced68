//! Tests which processes the executor refuses to signal.

use std::time::Duration;

use super::*;
use bailiff_engine::guard::Protect;
use bailiff_engine::policy::{Address, Leases};
use bailiff_engine::verdict::Outcome;

const LONG: Duration = Duration::from_secs(40);

fn refused(home: &Home, request: ActionRequest, why: &str) {
    let mut machine = Machine::default();
    let report = home.executor().act(request, &mut machine);
    assert!(
        matches!(report.outcome, Outcome::Refused | Outcome::IdentityChanged),
        "{:?} {}",
        report.outcome,
        report.detail
    );
    assert!(report.detail.contains(why), "{}", report.detail);
    assert_eq!(home.lines().last().unwrap()["sent"], serde_json::json!([]));
}

fn sleeper(home: &Home) -> Holder {
    Holder::shell(home, "echo ready; exec sleep 1000")
}

#[test]
fn changed_process_is_not_signalled() {
    type Change = fn(&mut Member);
    let cases: [(Change, &str); 6] = [
        (|member| member.key.as_mut().unwrap().start_ticks -= 1, "now belongs to another process"),
        (|member| member.uid = Some(1), "now has uid 65534"),
        (|member| member.confinement.push_str("/x"), "another cgroup"),
        (|member| member.uid = None, "was unknown"),
        (|member| member.confinement.clear(), "cgroup"),
        (|member| member.key = None, "there is no such process"),
    ];
    for (change, why) in cases {
        let home = Home::new();
        let holder = sleeper(&home);
        let mut subject = of_process(&holder);
        change(&mut subject.members[0]);
        refused(&home, terminate(subject, LONG), why);
        assert!(holder.lives(), "{why}");
    }
}

#[test]
fn the_protected_live() {
    let home = Home::new();
    let holder = sleeper(&home);
    let mut limited = terminate(of_process(&holder), LONG);
    limited.limits.exporter = Some(holder.key());
    refused(&home, limited, "exporter");
    let mut by_policy = terminate(of_process(&holder), LONG);
    by_policy.limits.protect =
        Some(Protect(Arc::new(|person| (person.stat.comm == "sleep").then(|| "the file says so".into()))));
    refused(&home, by_policy, "the file says so");
    let mut too_many = terminate(of_process(&holder), LONG);
    too_many.limits.max_processes = 0;
    refused(&home, too_many, "the maximum is 0");
    assert!(holder.lives());

    let roots = Holder::start(&home, 0, &["/bin/sh", "-c", "echo ready; exec sleep 1000"]);
    refused(&home, terminate(of_process(&roots), LONG), "runs as root");
    assert!(roots.lives());
    let ours = key(std::process::id());
    let mut us = terminate(subject(Kind::Process, "process:us", &[ours]), LONG);
    us.limits.root = Root::Allowed;
    us.subject = Arc::new(Subject { members: us.subject.members.clone(), ..(*us.subject).clone() });
    let home = Home::new();
    let _device = File::open(home.device()).unwrap();
    refused(&home, us, "it is the enforcer");
}

#[test]
fn process_that_the_exporter_started_is_exempt_by_its_identity() {
    let home = Home::new();
    let parent = Holder::shell(&home, "exec 3<&0; sleep 1000 & echo ready; wait");
    let child = until("a child", || {
        let table = proc_table().everybody().unwrap();
        let mut people = table.people.values();
        people.find(|it| it.stat.ppid == parent.pid() && it.stat.comm == "sleep").map(|it| it.stat.key)
    });
    let mut request = terminate(subject(Kind::Process, "process:x", &[child]), LONG);
    request.limits.exporter = Some(parent.key());
    refused(&home, request.clone(), "belongs to the exporter");
    assert!(parent.lives() && lives(child.pid));
    // The exporter's pid was reused by another process.
    request.limits.exporter = Some(ProcessKey { start_ticks: parent.key().start_ticks - 1, ..parent.key() });
    let report = home.executor().act(request, &mut Machine::default());
    assert!(!lives(child.pid), "{report:?}");
}

#[test]
fn a_group_with_another_users_process_lives_as_a_whole() {
    let home = Home::new();
    let program = "setpriv --reuid 65533 sleep 1000 & echo ready; exec sleep 1000";
    let holder = Holder::start(&home, 0, &["/bin/sh", "-c", program]);
    let child = until("a child", || {
        let table = proc_table().everybody().unwrap();
        table.people.values().find(|person| person.uid == 65533 && person.stat.ppid == holder.pid()).cloned()
    });
    let mut request = terminate(of_process(&holder), LONG);
    request.limits.root = Root::Allowed;
    refused(&home, request, "it has uid 65533");
    assert!(holder.lives() && lives(child.stat.key.pid));
}

#[test]
fn a_holder_without_a_device_file_is_not_what_the_driver_lists() {
    let home = Home::new();
    let holder = sleeper(&home);
    let settings = ExecutorSettings { devices: "/dev/nvidia".into(), ..home.settings() };
    let report =
        home.executor_with(settings).act(terminate(of_process(&holder), LONG), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Refused);
    assert!(report.detail.contains("no device file"), "{}", report.detail);
    assert!(holder.lives());
}

/// Users can give any file such a path, in a mount namespace of their own.
#[test]
fn a_file_with_the_path_of_a_device_is_none() {
    let home = Home::new();
    let script = "mount -t tmpfs none /dev && exec 3<>/dev/nvidia0 && echo ready && exec sleep 1000";
    let holder = Holder::start(&home, 0, &["/usr/bin/unshare", "--mount", "/bin/sh", "-c", script]);
    let settings = ExecutorSettings { devices: "/dev/nvidia".into(), ..home.settings() };
    let mut request = terminate(of_process(&holder), LONG);
    request.limits.root = Root::Allowed;
    let report = home.executor_with(settings).act(request, &mut Machine::default());
    assert!(report.detail.contains("no device file"), "{}", report.detail);
    assert!(holder.lives());
}

/// Otherwise no action could be taken against a user who opens a device file at a path of their own.
#[test]
fn a_device_is_known_by_its_number_under_any_path() {
    let home = Home::new();
    let path = home.0.path().join("elsewhere");
    let made = Command::new("mknod").arg(&path).args(["c", "195", "250"]).status().unwrap();
    assert!(made.success(), "these tests need root, to make a device");
    let program = format!(
        "import os, time
os.open('{}', os.O_PATH)
print('ready', flush=True)
time.sleep(1000)",
        path.display()
    );
    let holder = Holder::start(&home, NOBODY, &["/usr/bin/python3", "-c", &program]);
    let settings = ExecutorSettings { devices: "/dev/nvidia".into(), ..home.settings() };
    let mut machine = Machine::with(&[holder.key()]);
    let report = home.executor_with(settings).act(terminate(of_process(&holder), LONG), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert!(!holder.lives());
}

#[test]
fn one_that_has_ended_is_gone() {
    let home = Home::new();
    let mut holder = sleeper(&home);
    let subject = of_process(&holder);
    holder.0.kill().unwrap();
    until("a zombie", || (!holder.lives()).then_some(()));
    let report = home.executor().act(terminate(subject.clone(), LONG), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Gone, "{}", report.detail);
    holder.0.wait().unwrap();
    let report = home.executor().act(terminate(subject, LONG), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Gone, "{}", report.detail);
}

#[test]
fn watching_does_all_but_the_request() {
    let home = Home::new();
    let holder = sleeper(&home);
    let mut watched = terminate(of_process(&holder), LONG);
    watched.mode = Mode::DryRun;
    let report = home.executor().act(watched.clone(), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::DryRun);
    assert_eq!(home.results(), ["dry_run"]);
    Arc::make_mut(&mut watched.subject).members[0].uid = Some(1);
    let report = home.executor().act(watched, &mut Machine::default());
    assert_eq!(report.outcome, Outcome::IdentityChanged, "the guard was asked");
    assert!(holder.lives());
}

#[test]
fn without_an_audit_log_nothing_is_done() {
    let home = Home::new();
    let holder = sleeper(&home);
    fs::create_dir(home.log()).unwrap();
    let mut hands = home.executor();
    let report = hands.act(terminate(of_process(&holder), LONG), &mut Machine::default());
    assert_eq!((report.outcome, report.acted), (Outcome::Cancelled, false), "it is due again");
    assert!(report.detail.contains("audit log"), "{}", report.detail);
    assert!(holder.lives());
    fs::remove_dir(home.log()).unwrap();
    let mut machine = Machine::with(&[holder.key()]);
    let report = hands.act(terminate(of_process(&holder), LONG), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "it is tried again");
    assert!(
        home.results().contains(&"cancelled".to_owned()),
        "and what could not be written is written later"
    );
}

#[test]
fn what_has_no_processes_is_not_signalled() {
    let home = Home::new();
    for kind in [Kind::Gpu, Kind::Lease, Kind::MpsServer] {
        let holder = sleeper(&home);
        let mut subject = of_process(&holder);
        subject.kind = kind;
        let report = home.executor().act(terminate(subject, LONG), &mut Machine::default());
        assert_eq!(report.outcome, Outcome::Refused);
        assert!(holder.lives());
    }
    let holder = sleeper(&home);
    let release = |subject: Subject| {
        let report = home.executor().act(request(subject, Action::ReleaseLease), &mut Machine::default());
        assert_eq!(report.outcome, Outcome::Refused);
        report.detail
    };
    assert_eq!(release(of_process(&holder)), "the target is not a lease");
    for name in ["lease:a", "lease:a#", "lease:a#b", "gpu:a#1"] {
        assert_eq!(release(subject(Kind::Lease, name, &[])), "the target is not a lease", "{name}");
    }
    let nowhere = release(subject(Kind::Lease, "lease:a#1", &[]));
    assert_eq!(nowhere, "the policy has no `leases` section");
    let mut request = request(subject(Kind::Lease, "lease:a#1", &[]), Action::ReleaseLease);
    request.leases = Some(Arc::new(Leases {
        redis: Address::Url("redis+unix:///nowhere.sock".to_owned()),
        prefix: "GPU".to_owned(),
        reap: true,
        legacy_idle_grace: None,
        lost_after: LONG,
    }));
    let report = home.executor().act(request, &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Refused, "{}", report.detail);
    assert!(report.detail.contains("does not respond"), "{}", report.detail);
    assert_eq!(home.results().iter().filter(|result| *result == "begun").count(), 0, "nothing was begun");
}
