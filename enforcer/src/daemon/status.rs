//! Status of the daemon, for the pages and the control socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actions::notices::Delivered;
use crate::actions::pod_requests;
use crate::clock::now;
use crate::settings::Settings;
use crate::status::tally::{ApiRequest, Counters, Notice};
use crate::status::{
    Breaker, Budget, Cap, Flag, HoldStatus, Open, Pending, PolicyStatus, RuleStatus, Scope, Status, Stream,
};
use crate::web::Outcome;
use bailiff_engine::engine::{Engine, OwnerHoldStatus};
use bailiff_engine::policy::{Mode, Rule, Span, Step};
use bailiff_engine::verdict::Hold;
use bailiff_engine::view::{TargetId, View};

/// Maximum number of pending steps in the status.
const MOST_PENDING: usize = 50;

/// Returns the sources that did not respond, with their errors.
pub(super) fn silent(view: &View) -> Vec<String> {
    let down = view.snapshot.sources.iter().filter(|(_, source)| !source.up);
    down.map(|(name, source)| format!("{name}: {}", source.fault.as_deref().unwrap_or("no response")))
        .collect()
}

/// Returns the status before the first snapshot.
pub(super) fn begin(settings: &Settings, policy: PolicyStatus) -> Status {
    Status {
        node: settings.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cap: match settings.most {
            Mode::DryRun => Cap::DryRun("--dry-run".to_owned()),
            Mode::Enforce => Cap::None,
        },
        policy,
        stream: Stream { path: settings.stream.path.display().to_string(), ..Stream::default() },
        ..Status::default()
    }
}

/// Returns the audit log detail of a reload.
pub(super) fn reload_detail(outcome: &Outcome, why: &str) -> String {
    match outcome {
        Outcome::Applied(sha256) => format!("{why}; in force: {sha256}"),
        Outcome::Unchanged => format!("{why}; unchanged"),
        Outcome::Refused(faults) => format!("{why}; refused: {}", faults.join("; ")),
    }
}

/// Times at which flags were raised, by rule and target, in seconds since the Unix epoch.
pub(super) type Flagged = BTreeMap<(Arc<str>, TargetId), f64>;

/// Updates the parts of the status that the engine knows.
pub(super) fn refresh(status: &mut Status, engine: &Engine, flagged: &Flagged) {
    status.holds = holds(engine);
    status.owner_holds = engine.owner_holds(now()).collect();
    status.breakers = breakers(engine, &status.breakers);
    status.budgets = vec![Budget {
        scope: Scope::Node,
        of: String::new(),
        used: u32::try_from(engine.actions_of_the_hour()).unwrap_or(u32::MAX),
        limit: engine.policy().limits.per_node_hour,
    }];
    status.rules = rules(engine, &status.stream, &status.owner_holds);
    status.flags = flags(engine, flagged);
    status.pending = pending(engine);
    for ((verb, status_code), count) in pod_requests() {
        let code = if status_code == 0 { "none".to_owned() } else { status_code.to_string() };
        status.counters.pod_requests.set(ApiRequest { verb: verb.to_owned(), code }, count);
    }
}

fn holds(engine: &Engine) -> Vec<HoldStatus> {
    let now = now();
    let pause = engine.paused(now);
    let held = |hold: Hold| match pause.filter(|_| hold == Hold::Paused) {
        Some((reason, left)) => {
            let until = left.and_then(|left| now.wall.checked_add(left));
            HoldStatus { hold, until: until.map(|until| until.as_secs_f64()), detail: reason.to_owned() }
        }
        None => HoldStatus { hold, until: None, detail: hold.meaning().to_owned() },
    };
    let breaker = |hold: &Hold| Breaker::ALL.iter().any(|breaker| breaker.hold() == *hold);
    engine.holds().into_iter().filter(|hold| !breaker(hold)).map(held).collect()
}

pub(super) fn breakers(engine: &Engine, before: &[Open]) -> Vec<Open> {
    let holds = engine.holds();
    let of_node = Breaker::ALL.into_iter().filter(|breaker| holds.contains(&breaker.hold()));
    let of_node = of_node.map(|breaker| (breaker, breaker.hold(), breaker.hold().meaning().to_owned()));
    let of_users = engine.failing_authors().map(|author| {
        let whom = match author {
            (_, Some(namespace)) => format!("pods of namespace {namespace}"),
            (Some(uid), None) => format!("user {uid}"),
            (None, None) => "targets without a unique owner".to_owned(),
        };
        let detail = format!("three consecutive actions against {whom} failed");
        (Breaker::Failures, Hold::UserFailureBreaker, detail)
    });
    let open = |(breaker, hold, detail): (Breaker, Hold, String)| {
        let known = before.iter().find(|open| open.hold == hold && open.detail == detail);
        let since = || now().wall.as_secs_f64();
        known.cloned().unwrap_or_else(|| Open { breaker, hold, since: since(), detail })
    };
    of_node.chain(of_users).map(open).collect()
}

fn rules(engine: &Engine, stream: &Stream, holds: &[OwnerHoldStatus]) -> Vec<RuleStatus> {
    let interval = stream.interval();
    let counts = engine.counts();
    let shown = engine.policy().rules.iter().zip(counts).map(|(rule, counts)| {
        let known = |count: usize| stream.seq.map(|_| count as u64);
        RuleStatus {
            name: rule.name.to_string(),
            target: rule.target,
            mode: counts.mode,
            needed: interval.map(|interval| rule.span.samples(interval)),
            matches: known(counts.matches),
            pending: known(counts.pending),
            unknown: known(counts.unknown),
            owner_holds: rule
                .hold
                .map(|_| holds.iter().filter(|hold| hold.rule == *rule.name).count() as u64),
            steps: steps(rule),
        }
    });
    shown.collect()
}

fn flags(engine: &Engine, flagged: &Flagged) -> Vec<Flag> {
    let flags = engine.flags().into_iter().map(|flag| {
        let key = (Arc::clone(&flag.rule), flag.subject.id.clone());
        let holders: Vec<_> = flag.subject.members.iter().filter(|member| member.holds).collect();
        let alone = if let [one] = holders.as_slice() { Some(*one) } else { None };
        Flag {
            rule: flag.rule.to_string(),
            severity: flag.severity,
            target: flag.subject.id.to_string(),
            gpus: flag.subject.gpus,
            pid: alone.map(|member| member.pid),
            user: flag.subject.user,
            comm: holders.first().map(|member| member.comm.clone()),
            since: flagged.get(&key).copied().unwrap_or_else(|| now().wall.as_secs_f64()),
        }
    });
    flags.collect()
}

fn pending(engine: &Engine) -> Vec<Pending> {
    let pending_steps = engine.pending(MOST_PENDING).into_iter().filter_map(|pending| {
        Some(Pending {
            target: pending.target.to_string(),
            user: pending.user,
            comm: pending.comm,
            rule: pending.rule,
            mode: pending.mode,
            step: pending.next?,
            streak: pending.streak,
            needed: pending.streak.saturating_add(pending.samples_left),
            due_in: pending.due_in,
            hold: pending.hold,
        })
    });
    pending_steps.collect()
}

/// Starts the counters of all steps and channels in the policy at 0.
pub(super) fn begin_counts(counters: &mut Counters, engine: &Engine) {
    let notices = &mut counters.notices;
    // Channels that were removed from the policy keep their counters only if they were used.
    notices.remove_unused();
    for channel in engine.policy().channels.keys() {
        for result in Delivered::ALL {
            notices.add(Notice { channel: channel.clone(), result: result.name().to_owned() }, 0);
        }
    }
    for (rule, counts) in engine.policy().rules.iter().zip(engine.counts()) {
        for step in &rule.then {
            counters.begin(&rule.name, (step.action.name(), counts.mode));
        }
    }
}

/// Returns a description of each step of a rule.
fn steps(rule: &Rule) -> Vec<String> {
    let text = |step: &Step| match step.after {
        Span::Samples(0) => step.action.name().to_owned(),
        Span::Samples(samples) => format!("{} after {samples} samples", step.action.name()),
        Span::Time(time) => format!("{} after {}", step.action.name(), humantime::format_duration(time)),
    };
    rule.then.iter().map(text).collect()
}
