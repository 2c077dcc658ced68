//! Holds of owners: what is granted, how long it lasts, and that it changes nothing else.

use std::time::Duration;

use bailiff_engine::engine::{HeldTargets, HoldRequest, Question};
use bailiff_snapshot::SubordinateUids;

use super::node::{Node, TICK};
use super::{crowded, picking, rule, terminate};

/// Steps of a rule that acts at once on a match, and permits holds of at most 50 s.
fn holding() -> String {
    rule("    hold: {max: 50s, per_day: 2}", "[{terminate: {}}]")
}

impl Node {
    /// Requests a hold. Returns for each rule the seconds that were granted, or why not.
    fn hold(&mut self, uid: u32, seconds: u64, which: HeldTargets) -> Result<Vec<String>, &'static str> {
        let length = Duration::from_secs(seconds);
        let request = HoldRequest { uid, length, reason: "not saved".to_owned(), which };
        let answers = self.engine.hold_for_owner(self.now(0), &request)?;
        Ok(answers.into_iter().map(|hold| hold.left.map_or(hold.reason, |left| left.to_string())).collect())
    }
}

const MATCHES: &str = "TTT";

#[test]
fn steps_wait_until_a_hold_ends() {
    let mut node = Node::new(&holding());
    node.run("T");
    assert_eq!(node.hold(1000, 3600, HeldTargets::Pid(4100)), Ok(vec!["50".to_owned()]), "at most 50 s");
    // The hold lasts for ten samples, of which the first two complete the match.
    let events = node.run("TTTTTTTTTTT");
    let (held, after) = events.split_at(9);
    assert_eq!(
        held.iter().filter(|event| !event.is_empty()).collect::<Vec<_>>(),
        ["4100 withheld terminate: owner"]
    );
    assert_eq!(after, ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn holds_are_granted_only_to_owners_and_within_the_limits_of_the_rule() {
    let mut node = Node::new(&holding());
    node.run(MATCHES);
    let not_theirs = Err("in the last snapshot, you have no such process with GPU memory and no such job");
    for (uid, which) in [
        (1001, HeldTargets::Pid(4100)),
        (0, HeldTargets::Pid(4100)),
        (1001, HeldTargets::Mine),
        (1000, HeldTargets::Pid(4101)),
        (1000, HeldTargets::Job("4100".to_owned())),
    ] {
        assert_eq!(node.hold(uid, 10, which.clone()), not_theirs, "uid {uid}: {which:?}");
    }
    assert_eq!(node.hold(1000, 10, HeldTargets::Mine), Ok(vec!["10".to_owned()]));
    assert_eq!(node.hold(1000, 20, HeldTargets::Pid(4100)), Ok(vec!["20".to_owned()]));
    let spent = Ok(vec!["the rule permits 2 holds within 24 hours".to_owned()]);
    assert_eq!(node.hold(1000, 20, HeldTargets::Pid(4100)), spent);
    node.wait(24 * 3600 * 1000);
    node.run("T");
    assert_eq!(node.hold(1000, 20, HeldTargets::Pid(4100)), Ok(vec!["20".to_owned()]), "the next day");
    let mut strict = Node::new(&terminate());
    strict.run(MATCHES);
    let no_rule = Err("no rule permits to hold it (rules permit this with `hold`)");
    assert_eq!(strict.hold(1000, 10, HeldTargets::Pid(4100)), no_rule);
}

#[test]
fn hold_belongs_to_its_process_and_to_the_rule_in_force() {
    type Change = fn(&mut Node);
    let cases: [(&str, Change, bool); 6] = [
        ("restart", Node::restart, true),
        ("crash", Node::crash, true),
        ("a step of the wall clock", |node| node.wall_offset += 7_200_000, true),
        (
            "a reload that permits holds",
            |node| {
                node.reload(&holding());
            },
            true,
        ),
        (
            "a reload that permits none",
            |node| {
                node.reload(&terminate());
            },
            false,
        ),
        ("the pid is reused", |node| node.process(4100).ticks += 1, false),
    ];
    for (what, change, is_held) in cases {
        let mut node = Node::new(&holding());
        node.run(MATCHES);
        node.hold(1000, 50, HeldTargets::Pid(4100)).unwrap();
        change(&mut node);
        let acts = node.run("TTTTTTTT").iter().any(|event| event.ends_with("4100 terminate"));
        assert_eq!(acts, !is_held, "{what}");
    }
}

#[test]
fn hold_reprieves_a_confirmed_action_before_its_first_signal() {
    let mut node = Node::new(&holding());
    node.run("TTTT");
    let id = *node.requests.last().unwrap();
    assert_eq!(node.engine.agrees(id), Ok(()));
    node.hold(1000, 10, HeldTargets::Pid(4100)).unwrap();
    assert_eq!(node.engine.agrees(id), Err("held by its owner (bailiff hold)"));
}

#[test]
fn holds_are_shown_until_they_end() {
    let mut node = Node::new(&holding());
    node.run(MATCHES);
    node.hold(1000, 10, HeldTargets::Pid(4100)).unwrap();
    node.wait(TICK);
    let question = Question { pid: Some(4100), ..Question::default() };
    let explained =
        |node: &Node| node.engine.explain(node.now(0), &question).unwrap().pop().unwrap().owner_hold;
    let hold = explained(&node).unwrap();
    assert_eq!((hold.left, hold.reason.as_str(), hold.uid), (Some(5.0), "not saved", 1000));
    assert_eq!(node.engine.owner_holds(node.now(0)).count(), 1);
    node.wait(TICK);
    assert_eq!((explained(&node), node.engine.owner_holds(node.now(0)).count()), (None, 0));
}

#[test]
fn subordinate_uids_have_no_holds_of_their_own() {
    let mut node = Node::new(&rule("    hold: {max: 50s, per_day: 1000}", "[{terminate: {}}]"));
    node.engine.set_subordinate(SubordinateUids::parse("alice:100000:65536", |_| Some(1000)));
    node.run(MATCHES);
    for hold in 0..256 {
        let uid = if hold % 2 == 0 { 1000 } else { 100_000 + hold };
        assert_eq!(node.hold(uid, 1, HeldTargets::Mine), Ok(vec!["1".to_owned()]), "hold {hold}");
    }
    for uid in [1000, 100_001] {
        let refused = Ok(vec!["too many holds within 24 hours".to_owned()]);
        assert_eq!(node.hold(uid, 1, HeldTargets::Mine), refused);
    }
    node.process(4200).uid = Some(1001);
    node.run("T");
    assert_eq!(node.hold(1001, 1, HeldTargets::Pid(4200)), Ok(vec!["1".to_owned()]), "another user");
    let none = Err("the length of a hold must be greater than 0");
    assert_eq!(node.hold(1001, 0, HeldTargets::Mine), none);
}

#[test]
fn held_workload_is_not_picked_and_shields_no_other() {
    let mut node = crowded(&[(4100, 7000), (4200, 9000)]);
    node.reload(&picking("    hold: {max: 1h}"));
    assert_eq!(node.ticks(3), ["", "", "slurm:4100 notify owner"]);
    node.hold(1000, 3600, HeldTargets::Pid(4100)).unwrap();
    let events = node.ticks(3);
    assert_eq!(events[0], "slurm:4100 reprieved, slurm:4200 notify owner");
    assert_eq!(events[1..], ["slurm:4200 due terminate", "slurm:4200 terminate"]);
}

#[test]
fn hold_of_a_process_that_ended_is_not_shown_and_two_count_once() {
    let mut node = Node::new(&holding());
    node.run(MATCHES);
    for seconds in [10, 40] {
        node.hold(1000, seconds, HeldTargets::Pid(4100)).unwrap();
    }
    let shown =
        |node: &Node| node.engine.owner_holds(node.now(0)).map(|hold| hold.left.unwrap()).collect::<Vec<_>>();
    assert_eq!(shown(&node), [40.0]);
    node.processes.remove(&4100);
    node.tick();
    assert_eq!(shown(&node), Vec::<f64>::new());
}
