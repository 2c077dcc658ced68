//! Tables of the status page: rules, pending steps, flags, completed actions, budgets, GPUs taken with
//! `GPU.py`.

use std::time::Duration;

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::{Bytes, Span, ago};

use super::super::status::{Breaker, Budget, Flag, PastAction, Pending, RuleStatus, Scope, Status};
use super::NOT_YET;
use crate::agent::Judged;
use bailiff_engine::engine::Now;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Hold;

const REST: &str = "bailiff-enforcer status --json has them.";
const NO_OWNER: &str = "no one owner is known";

const RULES: Table<7> = Table {
    id: "rules-table",
    caption: "The rules in force, in the order of the file, and how many each is about.",
    columns: [
        ("rule", ""),
        ("mode", ""),
        ("target", ""),
        ("matches", "n"),
        ("pending", "n"),
        ("unknown", "n"),
        ("steps", "wide"),
    ],
    most: 100,
    rest: REST,
};
const PENDING: Table<7> = Table {
    id: "pending-table",
    caption: "Destructive steps to come, the soonest first.",
    columns: [
        ("target", ""),
        ("user", ""),
        ("rule", ""),
        ("step", ""),
        ("samples", "n"),
        ("in about", "n"),
        ("held", "wide"),
    ],
    most: 100,
    rest: REST,
};
const FLAGS: Table<7> = Table {
    id: "flags-table",
    caption: "Flags that are up.",
    columns: [
        ("target", ""),
        ("flag", ""),
        ("rule", ""),
        ("user", ""),
        ("process", ""),
        ("since", "n"),
        ("GPUs", "wide"),
    ],
    most: 100,
    rest: REST,
};
const ACTIONS: Table<8> = Table {
    id: "actions-table",
    caption: "What was done, or watched, the newest first.",
    columns: [
        ("target", ""),
        ("when", ""),
        ("rule", ""),
        ("step", ""),
        ("user", ""),
        ("result", ""),
        ("released", "n"),
        ("more", "wide"),
    ],
    most: 50,
    rest: "the audit log has them.",
};
const BUDGETS: Table<3> = Table {
    id: "budgets-table",
    caption: "Actions of the last hour, and how many are allowed.",
    columns: [("budget", ""), ("target", ""), ("used", "n")],
    most: 50,
    rest: REST,
};
const LEASES: Table<3> = Table {
    id: "leases-table",
    caption: "GPUs that clients of GPU.py have, or that are nowhere, and what they are taken for.",
    columns: [("GPU", ""), ("taken for", ""), ("why", "wide")],
    most: 64,
    rest: REST,
};

/// Writes all tables.
pub(super) fn write(status: &Status, now: Now, html: &mut Html) {
    let none = |words| if status.stream.seq.is_some() { Ok(words) } else { Err(NOT_YET) };
    section(html, ("rules", "Rules", Ok("The policy has no rules.")), (&RULES, &status.rules, rule));
    section(html, ("pending", "What is coming", none("Nothing.")), (&PENDING, &status.pending, pending));
    let flag = |shown: &Flag| flag(shown, now);
    section(html, ("flags", "Flags", none("None is up.")), (&FLAGS, &status.flags, flag));
    let action = |done: &PastAction| action(done, now);
    section(
        html,
        ("actions", "What was done", Ok("Nothing since the start.")),
        (&ACTIONS, &status.actions, action),
    );
    section(html, ("budgets", "Budgets", Ok("There are none.")), (&BUDGETS, &status.budgets, budget));
    if let Some(leases) = status.leases.as_ref().filter(|leases| !leases.judged.is_empty()) {
        section(
            html,
            ("leases", "GPUs taken by GPU.py, or lost", Ok("")),
            (&LEASES, &leases.judged, |shown: &Judged| judged(shown, now)),
        );
    }
}

/// Writes a section with its table; without rows, a text in its place or the reason why it is unknown.
fn section<T, const N: usize>(
    html: &mut Html,
    (id, title, nothing): (&'static str, &str, Result<&str, &str>),
    (table, items, cells): (&Table<N>, &[T], impl Fn(&T) -> [Cell; N]),
) {
    html.section(id, title, |html| match nothing {
        _ if !items.is_empty() => table.write(html, items, cells),
        Ok(words) => html.paragraph("dim", words),
        Err(why) => html.unknown_paragraph(why),
    });
}

fn rule(rule: &RuleStatus) -> [Cell; 7] {
    [
        rule.name.as_str().into(),
        rule.mode.name().into(),
        rule.target.name().replace('_', " ").into(),
        Cell::of(rule.matches, NOT_YET),
        Cell::of(rule.pending, NOT_YET),
        Cell::of(rule.unknown, NOT_YET),
        rule.steps.join(", ").into(),
    ]
}

fn pending(step: &Pending) -> [Cell; 7] {
    let due = step.due_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let watch = step.mode == Mode::DryRun;
    [
        target(&step.target, step.comm.as_ref()),
        Cell::of(step.user.as_ref(), NO_OWNER),
        step.rule.as_str().into(),
        if watch { format!("{} (dry-run)", step.step).into() } else { step.step.as_str().into() },
        format!("{}/{}", step.streak, step.needed).into(),
        Cell::of(due.map(Span), "cannot be determined"),
        step.hold.map_or(Cell::Nothing, |hold| Cell::Bad(format!("held: {}", held(hold)))),
    ]
}

/// Describes why a step waits; the cause of an open breaker is shown once, above.
fn held(hold: Hold) -> String {
    let breaker = Breaker::ALL.into_iter().find(|breaker| breaker.hold() == hold);
    breaker.map_or_else(|| hold.meaning().to_owned(), |breaker| format!("breaker {}", breaker.name()))
}

fn target(target: &str, comm: Option<&String>) -> Cell {
    comm.map_or_else(|| target.into(), |comm| Cell::Named(target.to_owned(), comm.clone()))
}

fn flag(flag: &Flag, now: Now) -> [Cell; 7] {
    [
        flag.target.as_str().into(),
        flag.severity.name().into(),
        flag.rule.as_str().into(),
        Cell::of(flag.user.as_ref(), NO_OWNER),
        Cell::of(flag.comm.as_ref().filter(|comm| !comm.is_empty()), "no name is known"),
        ago(flag.since, now.wall).into(),
        flag.gpus.join(" ").into(),
    ]
}

fn action(action: &PastAction, now: Now) -> [Cell; 8] {
    let when = ago(action.at, now.wall);
    let at = Duration::try_from_secs_f64(action.at).ok();
    [
        action.target.as_str().into(),
        at.map_or_else(|| Cell::Unknown("the clock shows a year after 9999".into()), |at| Cell::At(when, at)),
        action.rule.as_str().into(),
        action.step.as_str().into(),
        Cell::of(action.user.as_ref(), NO_OWNER),
        action.outcome.name().replace('_', " ").into(),
        if action.is_unknown() {
            Cell::Unknown("cannot be determined".into())
        } else {
            Cell::maybe(action.released.map(|bytes| Bytes(bytes.into())))
        },
        Cell::maybe(Some(&action.detail).filter(|detail| !detail.is_empty())),
    ]
}

fn budget(budget: &Budget) -> [Cell; 3] {
    [
        budget.scope.name().into(),
        if budget.scope == Scope::Node { Cell::Nothing } else { budget.of.as_str().into() },
        format!("{} of {}", budget.used, budget.limit).into(),
    ]
}

fn judged(judged: &Judged, now: Now) -> [Cell; 3] {
    let taken_for = if judged.judgement == "keep" { "held" } else { &judged.judgement };
    [judged.gpu.as_str().into(), taken_for.into(), judged.describe(now.boot).into()]
}
