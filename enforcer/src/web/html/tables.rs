//! Tables of the status page: rules, pending steps, flags, completed actions, budgets, GPUs taken with
//! `GPU.py`.

use std::time::Duration;

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::{Bytes, Span, ago};

use super::NOT_YET;
use crate::agent::Judged;
use crate::status::{Breaker, Budget, Flag, PastAction, Pending, RuleStatus, Scope, Status};
use bailiff_engine::engine::Now;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Hold;

const REST: &str = "bailiff-enforcer status --json shows them.";
const NO_OWNER: &str = "unknown, or several owners";

/// Title and CSS class of a column, and its cell for a row.
type Column<T> = (&'static str, &'static str, fn(&T, Now) -> Cell);

/// A section of the page with one table.
struct Section<T, const N: usize> {
    /// HTML ids of the section and of its table.
    ids: (&'static str, &'static str),
    title: &'static str,
    caption: &'static str,
    columns: [Column<T>; N],
    /// Maximum number of rows, and where the other rows can be found.
    most: (usize, &'static str),
}

const RULES: Section<RuleStatus, 7> = Section {
    ids: ("rules", "rules-table"),
    title: "Rules",
    caption: "The rules in force, in the order of the file, with the number of their targets.",
    columns: [
        ("rule", "", |rule, _| rule.name.as_str().into()),
        ("mode", "", |rule, _| rule.mode.name().into()),
        ("target", "", |rule, _| rule.target.name().replace('_', " ").into()),
        ("matches", "n", |rule, _| Cell::of(rule.matches, NOT_YET)),
        ("pending", "n", |rule, _| Cell::of(rule.pending, NOT_YET)),
        ("unknown", "n", |rule, _| Cell::of(rule.unknown, NOT_YET)),
        ("steps", "wide", |rule, _| rule.steps.join(", ").into()),
    ],
    most: (100, REST),
};
const PENDING: Section<Pending, 7> = Section {
    ids: ("pending", "pending-table"),
    title: "Pending steps",
    caption: "Pending destructive steps, the next one first.",
    columns: [
        ("target", "", |step, _| match &step.comm {
            Some(comm) => Cell::Named(step.target.clone(), comm.clone()),
            None => step.target.as_str().into(),
        }),
        ("user", "", |step, _| Cell::of(step.user.as_ref(), NO_OWNER)),
        ("rule", "", |step, _| step.rule.as_str().into()),
        ("step", "", |step, _| match step.mode {
            Mode::DryRun => format!("{} (dry-run)", step.step).into(),
            Mode::Enforce => step.step.as_str().into(),
        }),
        ("samples", "n", |step, _| format!("{}/{}", step.streak, step.needed).into()),
        ("in about", "n", |step, _| Cell::of(step.due_in().map(Span), "cannot be determined")),
        ("held", "wide", |step, _| {
            step.hold.map_or(Cell::Nothing, |hold| Cell::Bad(format!("held: {}", held(hold))))
        }),
    ],
    most: (100, REST),
};
const FLAGS: Section<Flag, 7> = Section {
    ids: ("flags", "flags-table"),
    title: "Flags",
    caption: "Raised flags.",
    columns: [
        ("target", "", |flag, _| flag.target.as_str().into()),
        ("flag", "", |flag, _| flag.severity.name().into()),
        ("rule", "", |flag, _| flag.rule.as_str().into()),
        ("user", "", |flag, _| Cell::of(flag.user.as_ref(), NO_OWNER)),
        ("process", "", |flag, _| {
            Cell::of(flag.comm.as_ref().filter(|comm| !comm.is_empty()), "its name is unknown")
        }),
        ("since", "n", |flag, now| ago(flag.since, now.wall).into()),
        ("GPUs", "wide", |flag, _| flag.gpus.join(" ").into()),
    ],
    most: (100, REST),
};
const ACTIONS: Section<PastAction, 8> = Section {
    ids: ("actions", "actions-table"),
    title: "Completed actions",
    caption: "Completed actions, including dry runs, the newest first.",
    columns: [
        ("target", "", |action, _| action.target.as_str().into()),
        ("when", "", |action, now| match Duration::try_from_secs_f64(action.at) {
            Ok(at) => Cell::At(ago(action.at, now.wall), at),
            Err(_) => Cell::Unknown("the clock shows a year after 9999".into()),
        }),
        ("rule", "", |action, _| action.rule.as_str().into()),
        ("step", "", |action, _| action.step.as_str().into()),
        ("user", "", |action, _| Cell::of(action.user.as_ref(), NO_OWNER)),
        ("result", "", |action, _| action.outcome.name().replace('_', " ").into()),
        ("released", "n", |action, _| match action.released {
            None if action.is_unknown() => Cell::Unknown("cannot be determined".into()),
            released => Cell::maybe(released.map(|bytes| Bytes(bytes.into()))),
        }),
        ("more", "wide", |action, _| Cell::maybe(Some(&action.detail).filter(|detail| !detail.is_empty()))),
    ],
    most: (50, "the audit log contains them."),
};
const BUDGETS: Section<Budget, 3> = Section {
    ids: ("budgets", "budgets-table"),
    title: "Budgets",
    caption: "Actions in the last hour, and the maximum per hour.",
    columns: [
        ("budget", "", |budget, _| budget.scope.name().into()),
        ("target", "", |budget, _| match budget.scope {
            Scope::Node => Cell::Nothing,
            Scope::User | Scope::Gpu => budget.of.as_str().into(),
        }),
        ("used", "n", |budget, _| format!("{} of {}", budget.used, budget.limit).into()),
    ],
    most: (50, REST),
};
const LEASES: Section<Judged, 3> = Section {
    ids: ("leases", "leases-table"),
    title: "GPUs taken by GPU.py, or lost",
    caption: "GPUs that clients of GPU.py hold, or that are recorded neither as idle nor as taken.",
    columns: [
        ("GPU", "", |judged, _| judged.gpu.as_str().into()),
        ("judgement", "", |judged, _| match judged.judgement.as_str() {
            "keep" => "held".into(),
            judgement => judgement.into(),
        }),
        ("why", "wide", |judged, now| judged.describe(now.boot).into()),
    ],
    most: (64, REST),
};

/// Writes all tables.
pub(super) fn write(status: &Status, now: Now, html: &mut Html) {
    let none = |words| if status.stream.seq.is_some() { Ok(words) } else { Err(NOT_YET) };
    RULES.write((&status.rules, Ok("The policy has no rules.")), now, html);
    PENDING.write((&status.pending, none("No pending steps.")), now, html);
    FLAGS.write((&status.flags, none("No raised flags.")), now, html);
    ACTIONS.write((&status.actions, Ok("No actions since the start.")), now, html);
    BUDGETS.write((&status.budgets, Ok("No budgets.")), now, html);
    if let Some(leases) = status.leases.as_ref().filter(|leases| !leases.judged.is_empty()) {
        LEASES.write((&leases.judged, Ok("")), now, html);
    }
}

impl<T, const N: usize> Section<T, N> {
    /// Writes the section; without rows, writes a text in place of the table, or why its content is unknown.
    fn write(&self, (items, nothing): (&[T], Result<&str, &str>), now: Now, html: &mut Html) {
        let (most, rest) = self.most;
        let columns = self.columns.map(|(title, class, _)| (title, class));
        let table = Table { id: self.ids.1, caption: self.caption, columns, most, rest };
        let cells = |item: &T| self.columns.map(|(.., cell)| cell(item, now));
        html.section(self.ids.0, self.title, |html| match nothing {
            _ if !items.is_empty() => table.write(html, items, cells),
            Ok(words) => html.paragraph("dim", words),
            Err(why) => html.unknown_paragraph(why),
        });
    }
}

/// Describes why a step waits; the cause of an open breaker is shown once, above.
fn held(hold: Hold) -> String {
    let breaker = Breaker::ALL.into_iter().find(|breaker| breaker.hold() == hold);
    breaker.map_or_else(|| hold.meaning().to_owned(), |breaker| format!("breaker {}", breaker.name()))
}
