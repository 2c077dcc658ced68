//! Tests which processes are terminated, how, and how the result is verified.

use std::time::Duration;

use std::os::unix::fs::PermissionsExt;

use bailiff_snapshot::{Fault, LastListed, State};

use super::*;
use crate::actions::continue_stopped;
use crate::audit::HeldStill;
use bailiff_engine::verdict::Outcome;

const LONG: Duration = Duration::from_secs(40);
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_polite_one_ends_by_term_and_its_memory_is_back() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let mut hands = home.executor();
    let report = hands.act(terminate(of_process(&holder), LONG), &mut machine);
    assert_eq!((report.id, report.outcome, report.released), (7, Outcome::Released, Some(100 * MIB)));
    assert!(!holder.lives());
    assert_eq!(home.results(), ["begun", "released"]);
    assert_eq!(home.signals(), ["SIGTERM"]);
    let last = home.lines().pop().unwrap();
    assert_eq!(last["target"]["members"][0]["key"]["pid"], holder.pid());
    assert_eq!((&last["vram_before"], &last["vram_after"]), (&(100 * MIB).into(), &0.into()));
    assert!(last["gone_ms"].is_u64() && last["policy"] == "0123" && last["node"] == "n1");
}

#[test]
fn a_request_that_begins_too_late_is_not_done() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let late = ActionRequest { until: Some(Duration::ZERO), ..terminate(of_process(&holder), LONG) };
    let report = home.executor().act(late, &mut machine);
    assert_eq!(report.outcome, Outcome::Cancelled, "{}", report.detail);
    assert!(holder.lives() && home.signals().is_empty());
    assert_eq!(home.results(), ["begun", "cancelled"]);
}

#[test]
fn third_late_attempt_in_a_row_has_failed() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let mut hands = home.executor();
    let late = ActionRequest { until: Some(Duration::ZERO), ..terminate(of_process(&holder), LONG) };
    let mut attempt = || hands.act(late.clone(), &mut machine).outcome;
    for _ in 0..2 {
        assert_eq!(
            [attempt(), attempt(), attempt()],
            [Outcome::Cancelled, Outcome::Cancelled, Outcome::Failed]
        );
    }
    assert!(holder.lives() && home.signals().is_empty());
    assert_eq!(hands.act(terminate(of_process(&holder), LONG), &mut machine).outcome, Outcome::Released);
}

#[test]
fn third_refused_attempt_in_a_row_has_failed() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let mut hands = home.executor();
    let mut refused = terminate(of_process(&holder), LONG);
    refused.limits.exporter = Some(holder.key());
    let mut changed = terminate(of_process(&holder), LONG);
    Arc::make_mut(&mut changed.subject).members[0].uid = Some(1);
    let late = ActionRequest { until: Some(Duration::ZERO), ..terminate(of_process(&holder), LONG) };
    for (attempts, last) in
        [([&refused, &changed], &refused), ([&refused, &late], &changed), ([&late, &changed], &late)]
    {
        for attempt in attempts {
            assert_ne!(hands.act(attempt.clone(), &mut machine).outcome, Outcome::Failed);
        }
        let report = hands.act(last.clone(), &mut machine);
        assert_eq!((report.outcome, report.acted), (Outcome::Failed, false));
        assert!(report.detail.starts_with("3 attempts in a row: "), "{}", report.detail);
    }
    let watched = ActionRequest { mode: Mode::DryRun, ..refused.clone() };
    for _ in 0..4 {
        assert_eq!(hands.act(watched.clone(), &mut machine).outcome, Outcome::Refused, "nothing is tried");
    }
    assert!(holder.lives() && home.signals().is_empty());
    assert_eq!(hands.act(terminate(of_process(&holder), LONG), &mut machine).outcome, Outcome::Released);
}

#[test]
fn one_that_ignores_term_is_killed_after_the_grace() {
    let home = Home::new();
    let holder = Holder::shell(&home, "trap '' TERM; echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let report = home.executor().act(terminate(of_process(&holder), SHORT), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert_eq!(home.signals(), ["SIGTERM", "SIGSTOP", "SIGKILL"]);
    let gone = home.lines().pop().unwrap()["gone_ms"].as_u64().unwrap();
    assert!(gone >= 200, "killed after {gone} ms");
}

#[test]
fn one_at_work_has_its_grace_once_more_and_no_more() {
    for io in [false, true] {
        let home = Home::new();
        let holder = Holder::shell(&home, "trap '' TERM; echo ready; exec sleep 1000");
        let mut machine = Machine::with(&[holder.key()]);
        let mut hands = home.executor();
        hands.see(&machine);
        hands.executor().act(terminate(of_process(&holder), SHORT)).unwrap();
        let report = until("a report", || {
            machine.sample();
            for listed in &mut machine.holders {
                listed.utilization = if io { 0 } else { 60 };
                listed.io_bytes += if io { 2 * MIB } else { 0 };
            }
            hands.see(&machine);
            hands.reports.try_recv().ok()
        });
        assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
        let last = home.lines().pop().unwrap();
        assert!(last["notes"][0].as_str().unwrap().contains("extended"), "{last}");
        let gone = last["gone_ms"].as_u64().unwrap();
        assert!((400..5000).contains(&gone), "killed after {gone} ms");
    }
}

#[test]
fn descendants_end_with_their_process() {
    for (subject, program) in [
        (of_process as fn(&Holder) -> Subject, "sleep 1000 & sleep 1000 & echo ready; wait"),
        (of_process, "trap '' TERM; (sleep 1000; :) & sleep 1000 & echo ready; wait"),
        (of_tree, "trap '' TERM; (sleep 1000; :) & sleep 1000 & echo ready; wait"),
    ] {
        let home = Home::new();
        let holder = Holder::shell(&home, program);
        until("children", || (of_session(holder.pid()).len() >= 3).then_some(()));
        let mut machine = Machine::with(&[holder.key()]);
        let report = home.executor().act(terminate(subject(&holder), SHORT), &mut machine);
        assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
        assert_eq!(of_session(holder.pid()), Vec::<u32>::new());
    }
}

#[test]
fn one_that_forks_all_the_time_is_ended_with_all_its_offspring() {
    let home = Home::new();
    let holder = Holder::shell(&home, "trap '' TERM; echo ready; while :; do sleep 1000 & sleep 0.005; done");
    let mut machine = Machine::with(&[holder.key()]);
    let report = home.executor().act(terminate(of_tree(&holder), SHORT), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert_eq!(of_session(holder.pid()), Vec::<u32>::new(), "orphans");
}

#[test]
fn a_descendant_that_holds_memory_itself_is_a_target_of_its_own() {
    let home = Home::new();
    let holder = Holder::shell(&home, "sleep 1000 & echo ready; exec sleep 1000");
    let child = until("a child", || of_session(holder.pid()).into_iter().find(|pid| *pid != holder.pid()));
    let mut machine = Machine::with(&[holder.key(), key(child)]);
    let report = home.executor().act(terminate(of_process(&holder), LONG), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert!(lives(child) && !holder.lives());
}

#[test]
fn descendant_whose_memory_is_unknown_is_not_signalled() {
    type Change<'a> = &'a dyn Fn(&mut Machine, ProcessKey);
    let hung =
        wire::Gpu { listed: None, fault: Some(Fault::Timeout.into()), ..fixtures::gpu("1", Vec::new()) };
    let lost = |child: ProcessKey, holders: &[ProcessKey]| {
        let after_start = child.start_ticks * 10 + 20;
        let holders = holders.iter().map(|key| (key.pid, Some(key.start_ticks))).collect();
        let last = Some(LastListed { at_ms: after_start, holders });
        LostGpu { index: "1".into(), uuid: None, parent_uuid: None, since_ms: Some(after_start), last }
    };
    let unread = |child: ProcessKey| fixtures::unconfirmed(child.pid, 1, State::Unknown);
    let cases: [(Change<'_>, Outcome); 5] = [
        (&|_, _| {}, Outcome::Released),
        (&|machine, child| machine.lost = vec![lost(child, &[])], Outcome::Released),
        (&|machine, child| machine.lost = vec![lost(child, &[child])], Outcome::Reprieved),
        (&|machine, _| machine.others = vec![hung.clone()], Outcome::Reprieved),
        (&|machine, child| machine.unread = vec![unread(child)], Outcome::Reprieved),
    ];
    for (place, (change, expected)) in cases.into_iter().enumerate() {
        let home = Home::new();
        let holder = Holder::shell(&home, "sleep 1000 & echo ready; exec sleep 1000");
        let child =
            until("a child", || of_session(holder.pid()).into_iter().find(|pid| *pid != holder.pid()));
        let mut machine = Machine::with(&[holder.key()]);
        change(&mut machine, key(child));
        let report = home.executor().act(terminate(of_process(&holder), LONG), &mut machine);
        assert_eq!(report.outcome, expected, "{place}: {}", report.detail);
        assert_eq!(
            (lives(child), holder.lives()),
            (expected == Outcome::Reprieved, expected == Outcome::Reprieved)
        );
    }
}

#[test]
fn zombie_leader_with_running_threads_is_ended() {
    let home = Home::new();
    let program = "import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(1000)).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
    let holder = Holder::start(&home, NOBODY, &["/usr/bin/python3", "-c", program]);
    until("a leader that has ended", || {
        let person = proc_table().person(holder.pid()).unwrap().unwrap();
        is_over(person.stat.state).then_some(())
    });
    assert!(holder.lives(), "its other thread does");
    let threads = || proc_table().threads(holder.pid()).unwrap();
    until("a thread that has come to rest", || (threads() == [State::Zombie, State::Sleeping]).then_some(()));
    // If the enforcer dies after it stopped the process, the process is continued.
    let pidfd = bailiff_proc::Pidfd::open(holder.pid()).unwrap().unwrap();
    assert_eq!(pidfd.send(rustix::process::Signal::STOP), Ok(true));
    until("a stopped thread", || threads().contains(&State::Stopped).then_some(()));
    let still = HeldStill { processes: vec![holder.key()], freezer: None };
    assert_eq!(continue_stopped(&still), 1);
    until("a continued thread", || (!threads().contains(&State::Stopped)).then_some(()));
    let mut machine = Machine::with(&[holder.key()]);
    let report = home.executor().act(terminate(of_process(&holder), LONG), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert!(!holder.lives());
}

#[test]
fn ended_is_not_given_back() {
    let cases = [
        (true, false, Outcome::GoneNotReleased, "still lists"),
        (false, true, Outcome::Undetermined, "unaccounted"),
    ];
    for (stuck, leaks, outcome, why) in cases {
        let home = Home::new();
        let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
        let mut machine = Machine { stuck, leaks, ..Machine::with(&[holder.key()]) };
        let settings = ExecutorSettings { verify: Duration::from_millis(300), ..home.settings() };
        let report = home.executor_with(settings).act(terminate(of_process(&holder), LONG), &mut machine);
        assert_eq!((report.outcome, report.released), (outcome, None), "{}", report.detail);
        assert!(report.detail.contains(why), "{}", report.detail);
        assert!(!holder.lives());
    }
}

#[test]
fn result_without_a_later_snapshot_is_undetermined() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let settings = ExecutorSettings { verify: Duration::from_millis(300), ..home.settings() };
    let mut hands = home.executor_with(settings);
    hands.see(&Machine::with(&[holder.key()]));
    hands.executor().act(terminate(of_process(&holder), LONG)).unwrap();
    let report = until("a report", || hands.reports.try_recv().ok());
    assert_eq!(report.outcome, Outcome::Undetermined);
}

#[test]
fn signal_step_reaches_all_and_kills_none() {
    let home = Home::new();
    let program = "trap 'echo usr1' USR1; echo ready; while :; do sleep 1000 & wait; done";
    let mut command = Command::new("setsid");
    command.args(["/bin/sh", "-c", program]).uid(NOBODY).stdin(File::open(home.device()).unwrap());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let holder = Holder(child);
    let signal =
        bailiff_engine::policy::Signal { number: rustix::process::Signal::USR1.as_raw(), name: "SIGUSR1" };
    let mut machine = Machine::with(&[holder.key()]);
    let report = home.executor().act(request(of_process(&holder), Action::Signal(signal)), &mut machine);
    assert_eq!(report.outcome, Outcome::Done, "{}", report.detail);
    assert_eq!(lines.next().unwrap().unwrap(), "usr1");
    assert!(holder.lives());
    assert_eq!(
        (home.results(), home.signals()),
        (vec!["begun".into(), "done".into()], vec!["SIGUSR1".into()])
    );
}

/// The SIGTERM handler starts a program that writes a checkpoint.
#[test]
fn child_started_in_the_grace_is_sent_nothing_before_it_is_over() {
    for subject in [of_process as fn(&Holder) -> Subject, of_tree] {
        let home = Home::new();
        let file = home.0.path().join("checkpoint");
        fs::set_permissions(home.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let program = format!(
            "trap 'sh -c \"trap \\\"echo TERM > {0}; exit\\\" TERM; i=0; while [ \\$i -lt 100 ]; do sleep 0.02; i=\\$((i+1)); done; echo saved > {0}\"; exit' TERM
            echo ready; while :; do sleep 0.05; done",
            file.display()
        );
        let holder = Holder::shell(&home, &program);
        let mut machine = Machine::with(&[holder.key()]);
        let report = home.executor().act(terminate(subject(&holder), LONG), &mut machine);
        assert_eq!(fs::read_to_string(&file).unwrap_or_default(), "saved\n");
        assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
        assert_eq!(home.signals(), ["SIGTERM"]);
    }
}

#[test]
fn action_whose_newest_snapshot_disagrees_is_reprieved() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let usr1 =
        bailiff_engine::policy::Signal { number: rustix::process::Signal::USR1.as_raw(), name: "SIGUSR1" };
    for action in [
        Action::Terminate { grace: LONG, requires_notice: false },
        Action::Signal(usr1),
        Action::Exec(vec!["/bin/false".into()]),
    ] {
        let mut machine = Machine::with(&[holder.key()]);
        let mut hands = home.executor();
        *hands.answer.lock().unwrap() = Permission::Denied("it is busy".to_owned());
        let report = hands.act(request(of_process(&holder), action), &mut machine);
        assert_eq!((report.outcome, report.acted), (Outcome::Reprieved, false), "{}", report.detail);
        assert!(report.detail.contains("it is busy") && holder.lives());
        assert_eq!(home.lines().last().unwrap()["sent"], serde_json::json!([]));
    }
}

#[test]
fn request_cancelled_in_its_grace_kills_none() {
    let home = Home::new();
    let holder = Holder::shell(&home, "trap '' TERM; echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let mut hands = home.executor();
    hands.see(&machine);
    hands.executor().act(terminate(of_process(&holder), LONG)).unwrap();
    until("the beginning", || (home.results() == ["begun"]).then_some(()));
    let another = terminate(of_process(&holder), LONG);
    assert!(hands.executor().act(another).is_err(), "one at a time");
    hands.executor().cancel(7);
    let report = hands.report(&mut machine);
    assert_eq!(report.outcome, Outcome::Cancelled);
    assert!(holder.lives());
    assert_eq!(home.results(), ["begun", "cancelled"]);
    until("a free hand", || hands.executor().act(terminate(of_process(&holder), LONG)).ok());
}

#[test]
fn executor_dropped_in_a_grace_kills_none_and_reports_it() {
    let home = Home::new();
    let holder = Holder::shell(&home, "trap '' TERM; echo ready; exec sleep 1000");
    let mut hands = home.executor();
    hands.see(&Machine::with(&[holder.key()]));
    hands.executor().act(terminate(of_process(&holder), LONG)).unwrap();
    until("the beginning", || (home.results() == ["begun"]).then_some(()));
    // The answering thread may keep the executor alive for a moment longer.
    hands.executor = None;
    let report = until("a report", || hands.reports.try_recv().ok());
    assert_eq!((report.outcome, holder.lives()), (Outcome::Cancelled, true));
    assert_eq!(home.results(), ["begun", "cancelled"]);
}
