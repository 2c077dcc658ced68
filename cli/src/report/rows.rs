//! The rows of a report, as they are printed: rounded, and sorted by the time for which GPUs were held.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_exposition::human::rfc3339;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::teams::Teams;
use super::usage::{Events, GpuTime, NodeUse, Usage, UserUse};
use super::window::Window;
use crate::prometheus::instance;

/// A report.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Rows {
    /// Start and end, in RFC 3339.
    pub(super) from: String,
    pub(super) to: String,
    pub(super) users: Vec<UserRow>,
    /// Sums of the users of each team, with `--teams`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) teams: Vec<UserRow>,
    /// GPUs that Slurm allocated, by account.
    pub(super) accounts: Vec<TimeRow>,
    pub(super) nodes: Vec<NodeRow>,
    /// GPU time of all users, by time.
    pub(super) timeline: Vec<ColumnRow>,
    /// Events that no user's counter contains; absent without an enforcer.
    pub(super) not_attributed: Option<EventRow>,
    /// What a reader has to know.
    pub(super) notes: Vec<String>,
}

/// GPU time in seconds; the first is the sum of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Seconds {
    #[serde(rename = "held_gpu_seconds")]
    pub(super) held: u64,
    #[serde(rename = "used_gpu_seconds")]
    pub(super) used: u64,
    #[serde(rename = "idle_gpu_seconds")]
    pub(super) idle: u64,
    #[serde(rename = "unknown_gpu_seconds")]
    pub(super) unknown: u64,
    #[serde(skip)]
    pub(super) exact: GpuTime,
}

impl From<GpuTime> for Seconds {
    fn from(exact: GpuTime) -> Self {
        let [held, used, idle, unknown] = exact.in_units(1000);
        Self { held, used, idle, unknown, exact }
    }
}

/// A user or a team.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Name {
    User(String),
    Team(String),
}

impl Name {
    pub(super) fn as_str(&self) -> &str {
        let (Self::User(name) | Self::Team(name)) = self;
        name
    }
}

/// One user, or the users of a team. An unknown value is absent.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct UserRow {
    #[serde(flatten)]
    pub(super) name: Name,
    #[serde(flatten)]
    pub(super) time: Option<Seconds>,
    pub(super) memory_gib_hours: Option<f64>,
    /// Whether the memory was not known all the time, so that the value is a lower bound.
    pub(super) memory_is_lower_bound: bool,
    pub(super) energy_kwh: Option<f64>,
    #[serde(flatten)]
    pub(super) events: Option<EventRow>,
}

/// Notices and terminations by the enforcer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct EventRow {
    pub(super) notices: u64,
    pub(super) terminations: u64,
    pub(super) reclaimed_bytes: u64,
}

/// One account of Slurm.
#[derive(Debug, Serialize)]
pub(super) struct TimeRow {
    pub(super) account: String,
    #[serde(flatten)]
    pub(super) time: Seconds,
}

/// One node.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct NodeRow {
    pub(super) node: String,
    pub(super) gpus: Option<u64>,
    pub(super) gpu_seconds: Option<u64>,
    pub(super) no_data_gpu_seconds: Option<u64>,
}

/// One column of the chart.
#[derive(Debug, Serialize)]
pub(super) struct ColumnRow {
    pub(super) from: String,
    #[serde(flatten)]
    pub(super) time: Seconds,
    pub(super) no_data_gpu_seconds: u64,
}

impl Rows {
    pub(super) fn new(usage: &Usage, teams: &Teams, window: Window, notes: Vec<String>) -> Self {
        let hosts = usage.without_enforcer();
        let users = usage.users.iter();
        let mut users: Vec<UserRow> =
            users.filter_map(|(name, user)| user_row(Name::User(name.clone()), user, &hosts)).collect();
        let teams = teams.sums(usage).into_iter();
        let mut teams: Vec<UserRow> =
            teams.filter_map(|(name, team)| user_row(Name::Team(name.to_owned()), &team, &hosts)).collect();
        for rows in [&mut users, &mut teams] {
            rows.sort_by_key(|row| Reverse(row.time.map(|time| time.held)));
        }
        let accounts = usage.accounts.iter();
        let mut accounts: Vec<TimeRow> =
            accounts.map(|(name, time)| TimeRow { account: name.clone(), time: (*time).into() }).collect();
        accounts.sort_by_key(|row| Reverse(row.time.held));
        let mut nodes: Vec<NodeRow> =
            usage.nodes.iter().map(|(target, node)| node_row(instance(target), node)).collect();
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        Self {
            from: moment(window.from),
            to: moment(window.to()),
            not_attributed: usage.has_enforcer().then(|| not_attributed(usage)),
            timeline: timeline(usage, window),
            users,
            teams,
            accounts,
            nodes,
            notes,
        }
    }

    /// Returns the time of all users.
    pub(super) fn total(&self) -> GpuTime {
        let mut total = GpuTime::default();
        self.users.iter().filter_map(|user| user.time).for_each(|time| total.add(time.exact));
        total
    }

    /// Returns the GPU-seconds of all nodes, and those without data.
    pub(super) fn nodes_total(&self) -> (u64, u64) {
        let sum = |seconds: fn(&NodeRow) -> Option<u64>| total(self.nodes.iter().filter_map(seconds));
        (sum(|node| node.gpu_seconds), sum(|node| node.no_data_gpu_seconds))
    }
}

/// Returns a sum; Prometheus can return any values.
fn total(seconds: impl Iterator<Item = u64>) -> u64 {
    seconds.fold(0, u64::saturating_add)
}

/// Returns the row of a user or team that had a GPU, or on whose processes the enforcer acted.
fn user_row(name: Name, user: &UserUse, without_enforcer: &BTreeSet<&str>) -> Option<UserRow> {
    let is_used = user.time.is_some_and(|time| time != GpuTime::default())
        || user.memory.is_some_and(|memory| memory > 0.0)
        || user.memory_is_incomplete
        || user.events != Events::default();
    // Where no enforcer is scraped, it is not known that there were none.
    let is_whole = !user.hosts.iter().any(|host| without_enforcer.contains(host.as_str()));
    let has_own = matches!(name, Name::User(_)) && user.events != Events::default();
    is_used.then(|| UserRow {
        name,
        time: user.time.map(Seconds::from),
        memory_gib_hours: user.memory.map(|memory| rounded(memory / f64::from(1 << 30) / 3600.0)),
        memory_is_lower_bound: user.memory_is_incomplete,
        energy_kwh: user.energy.map(|joules| rounded(joules / 3.6e6)),
        events: (has_own || is_whole).then(|| event_row(user.events)),
    })
}

fn node_row(name: &str, node: &NodeUse) -> NodeRow {
    let known = |value: f64| node.gpus.map(|_| whole(value));
    NodeRow {
        node: name.to_owned(),
        gpus: node.gpus.map(whole),
        gpu_seconds: known(node.total),
        no_data_gpu_seconds: known(node.unknown.values().sum()),
    }
}

fn timeline(usage: &Usage, window: Window) -> Vec<ColumnRow> {
    let no_data = |column: &usize| usage.nodes.values().filter_map(|node| node.unknown.get(column)).sum();
    let starts = (0_i64..).map(|column| moment(window.from + column * window.column()));
    let columns = usage.columns.iter().enumerate().zip(starts);
    let row = |((column, time), from): ((usize, &GpuTime), String)| ColumnRow {
        from,
        time: (*time).into(),
        no_data_gpu_seconds: whole(no_data(&column)),
    };
    columns.map(row).collect()
}

/// Returns the events of users without counters of their own, and of targets of several users.
fn not_attributed(usage: &Usage) -> EventRow {
    let sum = |event: fn(&Events) -> f64| usage.users.values().map(|user| event(&user.events)).sum::<f64>();
    event_row(Events {
        notices: usage.events.notices - sum(|events| events.notices),
        kills: usage.events.kills - sum(|events| events.kills),
        released: usage.events.released - sum(|events| events.released),
    })
}

fn event_row(events: Events) -> EventRow {
    EventRow {
        notices: whole(events.notices),
        terminations: whole(events.kills),
        reclaimed_bytes: whole(events.released),
    }
}

/// Formats a time in seconds since the Unix epoch.
fn moment(seconds: i64) -> String {
    u64::try_from(seconds).ok().and_then(|seconds| rfc3339(Duration::from_secs(seconds))).unwrap_or_default()
}

/// Rounds to three decimals, so that output does not depend on the order of sums.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded; saturates")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
