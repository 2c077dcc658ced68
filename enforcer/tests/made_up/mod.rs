//! A made-up status with every field set, and a status with hostile names.

use bailiff_enforcer::agent::{AgentStatus, Judged, LeaseAction, LeaseOutcome};
use bailiff_enforcer::status::tally::{ApiRequest, Counters, LeaseAct, Notice, Reloaded, Skipped};
use bailiff_enforcer::status::{
    Breaker, Budget, Cap, Flag, HoldStatus, InFlight, Open, PastAction, Pending, PolicyStatus, RuleStatus,
    Scope, Status, Stream,
};
use bailiff_engine::Kind;
use bailiff_engine::engine::OwnerHoldStatus;
use bailiff_engine::policy::{Mode, Severity};
use bailiff_engine::verdict::{Hold, Outcome};
use bailiff_engine::view::TargetId;

/// Returns a status with every field set.
pub(crate) fn full() -> Status {
    named("alice", "python3")
}

/// Returns a status in which every name that users control has this value.
pub(crate) fn named(user: &str, comm: &str) -> Status {
    Status {
        node: "gpu-7".into(),
        version: "0.1.0".into(),
        cap: Cap::DryRun("--dry-run".into()),
        policy: policy(),
        holds: vec![HoldStatus {
            hold: Hold::Paused,
            until: Some(1_700_003_600.0),
            detail: "by root: upgrade".into(),
        }],
        owner_holds: vec![owner_hold(comm)],
        breakers: vec![Open {
            breaker: Breaker::Mass,
            hold: Hold::MassBreaker,
            since: 1_700_000_000.0,
            detail: "5 of 8 matched".into(),
        }],
        budgets: vec![
            Budget { scope: Scope::Node, of: String::new(), used: 2, limit: 6 },
            Budget { scope: Scope::User, of: user.into(), used: 2, limit: 3 },
        ],
        rules: vec![
            rule("idle", Kind::Workload, [Some(1), Some(2), Some(0)]),
            rule("stuck", Kind::MpsServer, [None; 3]),
        ],
        flags: vec![flag(user, comm, &["GPU-0", "GPU-1"], None), flag(user, comm, &["GPU-0"], Some(41))],
        pending: vec![pending(user, comm)],
        actions: vec![action(user)],
        in_flight: Some(InFlight {
            id: 8,
            rule: "idle".into(),
            step: "terminate".into(),
            target: "workload:slurm:77".into(),
            since: 1_700_000_000.0,
            waits: None,
        }),
        stream: Stream {
            path: "/run/bailiff/exporter/stream.sock".into(),
            connected: true,
            error: None,
            seq: Some(720),
            seen_boot_ms: Some(3_600_000),
            interval_ms: Some(5000),
            tick_seconds: Some(0.000_25),
            silent: vec!["nvml: timeout".into()],
        },
        leases: Some(leases()),
        counters: counters(),
    }
}

fn leases() -> AgentStatus {
    let judged = |gpu: &str, judgement: &str| Judged {
        gpu: gpu.into(),
        judgement: judgement.into(),
        why: "the process that took it has exited, and no process is on the GPU".into(),
        freed_at_ms: (judgement == "suspect").then_some(1_200_000),
    };
    let judged = vec![judged("0", "keep"), judged("1", "suspect")];
    AgentStatus { up: true, error: None, acts: true, judged }
}

fn policy() -> PolicyStatus {
    PolicyStatus {
        path: "/etc/bailiff/rules.yaml".into(),
        sha256: Some("ab".repeat(32)),
        loaded: Some(1_699_999_000.0),
        good: Some(1_699_999_000.0),
        last: Some(Reloaded::Refused),
        read: Some(1_699_999_900.0),
        faults: vec!["rules.yaml:3:9: no attribute is called \"gpu_utill\"; gpu_util is".into()],
    }
}

fn owner_hold(comm: &str) -> OwnerHoldStatus {
    OwnerHoldStatus {
        rule: "idle".into(),
        target: TargetId("process:4711@98765".into()),
        uid: 1000,
        left: Some(5400.0),
        reason: format!("{comm} is not saved"),
    }
}

fn rule(name: &str, of: Kind, [matches, pending, unknown]: [Option<u64>; 3]) -> RuleStatus {
    let steps = vec!["flag warning".into(), "terminate after 25m".into()];
    RuleStatus {
        name: name.into(),
        target: of,
        mode: Mode::Enforce,
        needed: Some(60),
        matches,
        pending,
        unknown,
        owner_holds: (name == "idle").then_some(1),
        steps,
    }
}

fn flag(user: &str, comm: &str, gpus: &[&str], pid: Option<u32>) -> Flag {
    Flag {
        rule: "idle".into(),
        severity: if pid.is_some() { Severity::Critical } else { Severity::Warning },
        target: pid.map_or_else(|| "workload:slurm:77".into(), |pid| format!("process:{pid}@98765")),
        gpus: gpus.iter().map(|gpu| (*gpu).into()).collect(),
        pid,
        user: Some(user.into()),
        comm: Some(comm.into()),
        since: 1_699_999_940.0,
    }
}

fn pending(user: &str, comm: &str) -> Pending {
    Pending {
        target: "workload:slurm:77".into(),
        user: Some(user.into()),
        comm: Some(comm.into()),
        rule: "idle".into(),
        mode: Mode::Enforce,
        step: "terminate".into(),
        streak: 300,
        needed: 360,
        due_in: Some(300.0),
        hold: Some(Hold::Paused),
    }
}

fn action(user: &str) -> PastAction {
    PastAction {
        id: 7,
        at: 1_699_999_990.0,
        rule: "idle".into(),
        mode: Mode::Enforce,
        step: "terminate".into(),
        target: "process:40@1234".into(),
        user: Some(user.into()),
        outcome: Outcome::Released,
        detail: "gone after 2.1 s".into(),
        released: Some(40 << 30),
    }
}

fn counters() -> Counters {
    let mut counters =
        Counters { snapshots: 719, released_bytes: 40 << 30, audit_failures: 1, ..Counters::default() };
    counters.step("idle", ("terminate", Mode::Enforce), Outcome::Released);
    counters.step("idle", ("flag", Mode::DryRun), Outcome::Done);
    let user = counters.user(Some("alice")).expect("one user");
    (user.notices, user.released_bytes) = (1, 40 << 30);
    user.kills.count(Outcome::Released);
    counters.skipped.count(Skipped::Stale);
    counters.refused.count("wrong_owner".into());
    counters.reloads.count(Reloaded::Applied);
    counters.reloads.count(Reloaded::Refused);
    counters.leases.count(LeaseAct { act: LeaseAction::ReapDead, result: LeaseOutcome::Freed });
    counters.pod_requests.count(ApiRequest { verb: "evict".to_owned(), code: "201".to_owned() });
    counters.notices.count(Notice { channel: "owner".into(), result: "delivered".into() });
    counters
}
