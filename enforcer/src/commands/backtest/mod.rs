//! `backtest`: what rules would have done, from the data of `bailiff-exporter` in Prometheus. Each scrape is
//! converted back to a snapshot; a missing scrape is a gap, and missing values are unknown.

mod adapt;
mod held;
mod jobs;
mod pace;
mod rebuild;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::policy::Policy;
use bailiff_lifecycle::exit::Exit;
use bailiff_prometheus::{Api, Refused, quoted};
use serde::Serialize;

use self::held::{ANCHOR, Chunk, Scraped};
use self::pace::Pace;
use self::rebuild::Rebuild;
use super::layout::{self, safe};
use super::simulation::report::{At, Report};
use super::simulation::{self, Admin, Simulation, print};
use super::{Failure, files};
use super::{admin, length, moment};
use crate::flags;

/// Minimum length of a period, in milliseconds.
const SHORTEST_CHUNK: i64 = 60_000;
/// Sampling interval if it cannot be determined.
const USUAL_TICK: Duration = Duration::from_secs(5);

/// Flags of a backtest, with their parsed values.
struct Plan<'a> {
    flags: &'a flags::Backtest,
    /// Start, since the Unix epoch.
    from: Duration,
    /// End, since the Unix epoch.
    to: Duration,
    /// Period of one query.
    chunk: Duration,
    /// Scrape interval; measured if `None`.
    interval: Option<Duration>,
    admin: Admin,
    children: Children,
}

impl<'a> Plan<'a> {
    fn new(flags: &'a flags::Backtest, now: Duration) -> Result<Self, Failure> {
        Ok(Self {
            flags,
            from: moment("--from", &flags.from, now)?,
            to: moment("--to", &flags.to, now)?,
            chunk: length("--chunk", &flags.chunk)?,
            interval: flags.interval.as_deref().map(|text| length("--interval", text)).transpose()?,
            admin: admin(flags.resume_after.as_deref())?,
            children: if flags.assume_children_idle { Children::Idle } else { Children::Unknown },
        })
    }
}

/// Assumption about the CPU time of workload members without GPU memory, for which Prometheus has no data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Children {
    /// Unknown, so that `cpu_util` is unknown.
    #[default]
    Unknown,
    /// They used none: `cpu_util` is that of holders alone.
    Idle,
}

/// Result of a backtest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Backtest {
    /// Start.
    pub from: At,
    /// End.
    pub to: At,
    /// Result for each exporter.
    pub exporters: Vec<Report>,
}

/// Reads Prometheus' data and prints what the rules would have done; `now` is the time since the Unix epoch.
///
/// # Errors
/// If the rules or flags are invalid, or Prometheus lacks required data.
pub fn run(flags: &flags::Backtest, now: Duration, out: &mut dyn Write) -> Result<Exit, Failure> {
    let backtest = rehearse(flags, now)?;
    if flags.json {
        super::replay::json(&backtest, out)?;
        return Ok(Exit::Done);
    }
    for (place, report) in backtest.exporters.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        print(report, out)?;
    }
    Ok(Exit::Done)
}

/// Reads Prometheus' data, exporter by exporter.
///
/// # Errors
/// If the rules or flags are invalid, or Prometheus lacks required data.
pub fn rehearse(flags: &flags::Backtest, now: Duration) -> Result<Backtest, Failure> {
    let plan = &Plan::new(flags, now)?;
    let times = times(plan)?;
    let policy = files::rules(&flags.rules, now)?.policy;
    let token = flags.token_file.as_deref().map(files::secret).transpose()?;
    let mut api = Api::new(&flags.prometheus, token).map_err(|error| Failure::Settings(error.to_string()))?;
    let mut exporters = Vec::new();
    for scraped in exporters_of(&mut api, plan, times)? {
        exporters.push(one(&mut api, (&policy, plan), (&scraped, times))?);
    }
    let at = |time| At(bailiff_snapshot::millis(time));
    Ok(Backtest { from: at(plan.from), to: at(plan.to), exporters })
}

/// Returns start and end in milliseconds.
fn times(plan: &Plan<'_>) -> Result<(i64, i64), Failure> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).ok();
    match (millis(plan.from), millis(plan.to)) {
        (Some(from), Some(to)) if from < to && plan.chunk >= Duration::from_secs(1) => Ok((from, to)),
        (Some(from), Some(to)) if from < to => {
            Err(Failure::Settings("--chunk must be at least 1s".to_owned()))
        }
        _ => Err(Failure::Settings("--from must be earlier than --to".to_owned())),
    }
}

fn exporters_of(api: &mut Api, plan: &Plan<'_>, times: (i64, i64)) -> Result<Vec<Scraped>, Failure> {
    let selector = match &plan.flags.instance {
        Some(instance) => format!("{ANCHOR}{{instance=\"{}\"}}", quoted(instance)),
        None => ANCHOR.to_owned(),
    };
    let mut found: Vec<Scraped> = api.series(&selector, times)?.iter().map(Scraped::of).collect();
    found.sort_by(|one, other| one.labels.cmp(&other.labels));
    found.dedup_by(|one, other| one.matcher() == other.matcher());
    if found.is_empty() {
        let of = plan.flags.instance.as_ref().map(|instance| format!(" of instance {}", safe(instance)));
        let moment = |time: Duration| layout::moment(time);
        return Err(Failure::Data(format!(
            "Prometheus has no {ANCHOR}{} between {} and {}; check that it scrapes bailiff-exporter",
            of.unwrap_or_default(),
            moment(plan.from),
            moment(plan.to)
        )));
    }
    Ok(found)
}

fn one(
    api: &mut Api,
    (policy, plan): (&Policy, &Plan<'_>),
    (scraped, (from, to)): (&Scraped, (i64, i64)),
) -> Result<Report, Failure> {
    api.warnings.clear();
    let long = millis(plan.chunk);
    let pace = Pace::measure(api, scraped, (from - 1, to, long))?;
    let mut work = Work::new((policy, plan), scraped, pace);
    let mut parts = Parts { from: from - 1, to, long };
    while let Some(mut chunk) = parts.next(api, scraped)? {
        for at in std::mem::take(&mut chunk.scrapes) {
            if let Some(snapshot) = work.rebuild.snapshot(&chunk.scrape(at), at) {
                work.simulation.see(snapshot);
            }
        }
    }
    let mut report = work.simulation.finish(format!("{} by {}", scraped.name(), plan.flags.prometheus));
    report.notes.extend(work.notes);
    report.notes.extend(api.warnings.iter().map(|warning| format!("Prometheus warns: {}", safe(warning))));
    Ok(report)
}

/// The periods of a backtest.
struct Parts {
    from: i64,
    to: i64,
    long: i64,
}

impl Parts {
    /// Returns the next period, shortened until the server does not refuse it as too large.
    fn next(&mut self, api: &mut Api, scraped: &Scraped) -> Result<Option<Chunk>, Failure> {
        while self.from < self.to {
            let end = self.to.min(self.from + self.long);
            match Chunk::load(api, scraped, (self.from, end)) {
                Ok(chunk) => {
                    self.from = end;
                    return Ok(Some(chunk));
                }
                Err(Refused::TooMuch(_)) if self.long > SHORTEST_CHUNK => {
                    self.long = (self.long / 2).max(SHORTEST_CHUNK);
                }
                Err(refused) => return Err(refused.into()),
            }
        }
        Ok(None)
    }
}

/// Simulation for one exporter.
struct Work<'a> {
    rebuild: Rebuild<'a>,
    simulation: Simulation,
    notes: Vec<String>,
}

impl<'a> Work<'a> {
    fn new((policy, plan): (&Policy, &Plan<'_>), scraped: &'a Scraped, pace: Pace) -> Self {
        let tick = pace.tick.or(policy.interval).unwrap_or(USUAL_TICK);
        // If scrapes are more frequent than samples, some return the same snapshot again.
        let interval = plan.interval.or(pace.interval).unwrap_or(tick).max(tick);
        let notes = notes((policy, plan), (interval, tick));
        let policy = Arc::new(adapt::adapt(policy.clone(), (interval, tick)));
        Self {
            rebuild: Rebuild::new(scraped, (interval, tick), plan.children),
            simulation: Simulation::new(policy, plan.admin),
            notes,
        }
    }
}

/// Returns notes for readers of the report.
fn notes((policy, plan): (&Policy, &Plan<'_>), (interval, tick): (Duration, Duration)) -> Vec<String> {
    let shown = |time: Duration| humantime::format_duration(time).to_string();
    let mut notes = vec![format!(
        "one snapshot per scrape (every {}); numbers of samples in the rules are converted to times at the exporter's sampling interval of {}",
        shown(interval),
        shown(tick)
    )];
    if let Some(written) = policy.interval.filter(|written| *written != tick) {
        notes.push(format!(
            "the rules file was written for a sampling interval of {}, which is not the exporter's, so the enforcer would withhold all destructive steps",
            shown(written)
        ));
    }
    if simulation::uses(policy, "cpu_util") {
        notes.push(match plan.children {
            Children::Unknown => {
                "cpu_util is unknown: Prometheus has no data on processes without GPU memory, \
                                  which are part of it; --assume-children-idle assumes that they are idle"
                    .to_owned()
            }
            Children::Idle => {
                "cpu_util covers only processes with GPU memory: all others are assumed to be idle, \
                               because of --assume-children-idle"
                    .to_owned()
            }
        });
    }
    let exempts = !policy.protect.is_empty() || policy.rules.iter().any(|rule| !rule.except.is_empty());
    if exempts && plan.children == Children::Unknown {
        let note = "`protect` and `except` are unknown for processes without GPU memory, and therefore exempt the target: Prometheus \
                    has no data on them; --assume-children-idle assumes that there are no such processes";
        notes.push(note.to_owned());
    }
    if policy.rules.iter().any(|rule| rule.target == bailiff_engine::Kind::Workload || rule.pick.is_some()) {
        notes.push(
            "outside containers, jobs, pods and units, each process is treated as a separate workload"
                .to_owned(),
        );
    }
    notes
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

// Utilization of a GPU by a process between two scrapes. A gauge has only the last sample, a counter all of
// them.

/// Tolerance of the counter, which is a sum of rounded values.
const SLACK: f64 = 1.05;
/// Growth below this number of busy seconds is rounding.
const ROUNDING: f64 = 0.002;

/// Data of the time between two scrapes.
#[derive(Debug, Clone, Copy)]
struct Window {
    /// Utilization in the last sample in percent; `None` if it was not observed.
    gauge: Option<u32>,
    /// Growth of the busy seconds since the previous scrape; `None` without a previous scrape.
    growth: Option<f64>,
    /// Seconds since the previous scrape.
    passed: f64,
    /// Sampling interval in seconds.
    tick: f64,
}

impl Window {
    /// Returns the busiest sample in percent. Growth that the gauge does not explain is attributed to one
    /// unseen sample, so that no busy process counts as idle.
    fn busiest(&self) -> Option<u32> {
        let Some(growth) = self.growth.filter(|growth| *growth > ROUNDING) else { return self.gauge };
        let gauge = f64::from(self.gauge.unwrap_or_default()) / 100.0;
        if growth <= gauge * self.passed * SLACK + ROUNDING {
            return self.gauge;
        }
        let unseen = (growth - gauge * self.tick.min(self.passed)).max(0.0);
        let tick = self.tick.max(ROUNDING);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 100")]
        let unseen = (unseen / tick * 100.0).ceil().clamp(1.0, 100.0) as u32;
        Some(unseen.max(self.gauge.unwrap_or_default()))
    }
}

/// Returns the growth of a counter; a counter that decreased was reset.
fn growth(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_believed_where_the_counter_agrees() {
        let cases = [
            (Some(0), None, Some(0)),
            (Some(0), Some(0.0), Some(0)),
            (Some(50), Some(7.5), Some(50)),
            (Some(50), Some(2.5), Some(50)),
            (Some(1), Some(0.15), Some(1)),
            // One of the two ticks that were not seen was busy.
            (Some(0), Some(5.0), Some(100)),
            (Some(0), Some(0.1), Some(2)),
            (Some(0), Some(15.0), Some(100)),
            (Some(1), Some(5.05), Some(100)),
            // The last sample was not observed, but earlier samples may have been busy.
            (None, Some(0.5), Some(10)),
            (None, Some(0.0), None),
            (None, None, None),
        ];
        for (gauge, growth, expected) in cases {
            let window = Window { gauge, growth, passed: 15.0, tick: 5.0 };
            assert_eq!(window.busiest(), expected, "{window:?}");
        }
    }

    #[test]
    fn counters_that_fell_began_again() {
        assert!((growth(10.0, 12.5) - 2.5).abs() < 1e-9);
        assert!((growth(10.0, 1.5) - 1.5).abs() < 1e-9);
    }
}
