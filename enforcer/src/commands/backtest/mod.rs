//! `backtest`: what rules would have done, from the data of `bailiff-exporter` in Prometheus. Each scrape is
//! converted back to a snapshot; a missing scrape is a gap, and missing values are unknown.

mod adapt;
mod answer;
mod api;
mod held;
mod pace;
mod rebuild;
mod usage;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::exit::Exit;
use serde::Serialize;

use self::api::{Api, Refused};
use self::held::{ANCHOR, Chunk, Scraped, quoted};
use self::pace::Pace;
use self::rebuild::Rebuild;
use super::layout::safe;
use super::simulation::report::{At, Report};
use super::simulation::{Admin, Simulation, print};
use super::{Failure, Form, files, layout};
use bailiff_engine::policy::Policy;

/// Minimum length of a period, in milliseconds.
const SHORTEST_CHUNK: i64 = 60_000;
/// Sampling interval if it cannot be determined.
const USUAL_TICK: Duration = Duration::from_secs(5);

/// Settings of a backtest.
#[derive(Debug, Clone)]
pub struct BacktestSettings {
    /// Rules file.
    pub rules: PathBuf,
    /// Address of Prometheus: `http://prometheus:9090`.
    pub prometheus: String,
    /// File with a bearer token.
    pub token_file: Option<PathBuf>,
    /// Start, since the Unix epoch.
    pub from: Duration,
    /// End, since the Unix epoch.
    pub to: Duration,
    /// Only the exporter with this label `instance`; otherwise all, one after another.
    pub instance: Option<String>,
    /// Assumption about processes that Prometheus has no data of.
    pub children: Children,
    /// Period of one query, by default an hour.
    pub chunk: Duration,
    /// Scrape interval; measured if `None`.
    pub interval: Option<Duration>,
    /// What an administrator does after a breaker has opened.
    pub admin: Admin,
    /// Output format.
    pub form: Form,
    /// Current time since the Unix epoch, at which the rules are evaluated.
    pub now: Duration,
}

/// Assumption about the CPU time of workload members without GPU memory, which Prometheus has no data of.
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

/// Reads Prometheus' data and prints what the rules would have done.
///
/// # Errors
/// If the rules are invalid, or Prometheus lacks required data.
pub fn run(settings: &BacktestSettings, out: &mut dyn Write) -> Result<Exit, Failure> {
    let backtest = rehearse(settings)?;
    match settings.form {
        Form::Json => super::replay::json(&backtest, out)?,
        Form::Text => {
            for (place, report) in backtest.exporters.iter().enumerate() {
                if place > 0 {
                    writeln!(out)?;
                }
                print(report, out)?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Reads Prometheus' data, exporter by exporter.
///
/// # Errors
/// If the rules are invalid, or Prometheus lacks required data.
pub fn rehearse(settings: &BacktestSettings) -> Result<Backtest, Failure> {
    let times = times(settings)?;
    let policy = files::rules(&settings.rules, settings.now)?.policy;
    let token = settings.token_file.as_deref().map(files::secret).transpose()?;
    let mut api = Api::new(&settings.prometheus, token)?;
    let mut exporters = Vec::new();
    for scraped in exporters_of(&mut api, settings, times)? {
        exporters.push(one(&mut api, (&policy, settings), (&scraped, times))?);
    }
    let at = |time: Duration| At(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    Ok(Backtest { from: at(settings.from), to: at(settings.to), exporters })
}

/// Returns start and end in milliseconds.
fn times(settings: &BacktestSettings) -> Result<(i64, i64), Failure> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).ok();
    match (millis(settings.from), millis(settings.to)) {
        (Some(from), Some(to)) if from < to && settings.chunk >= Duration::from_secs(1) => Ok((from, to)),
        (Some(from), Some(to)) if from < to => {
            Err(Failure::Settings("--chunk must be at least 1s".to_owned()))
        }
        _ => Err(Failure::Settings("--from must be earlier than --to".to_owned())),
    }
}

fn exporters_of(
    api: &mut Api,
    settings: &BacktestSettings,
    times: (i64, i64),
) -> Result<Vec<Scraped>, Failure> {
    let selector = match &settings.instance {
        Some(instance) => format!("{ANCHOR}{{instance=\"{}\"}}", quoted(instance)),
        None => ANCHOR.to_owned(),
    };
    let mut found: Vec<Scraped> = api.series(&selector, times)?.iter().map(Scraped::of).collect();
    found.sort_by(|one, other| one.labels.cmp(&other.labels));
    found.dedup_by(|one, other| one.matcher() == other.matcher());
    if found.is_empty() {
        let of = settings.instance.as_ref().map(|instance| format!(" of instance {}", safe(instance)));
        let moment = |time: Duration| layout::moment(time);
        return Err(Failure::Prometheus(format!(
            "Prometheus has no {ANCHOR}{} between {} and {}; check that it scrapes bailiff-exporter",
            of.unwrap_or_default(),
            moment(settings.from),
            moment(settings.to)
        )));
    }
    Ok(found)
}

fn one(
    api: &mut Api,
    (policy, settings): (&Policy, &BacktestSettings),
    (scraped, (from, to)): (&Scraped, (i64, i64)),
) -> Result<Report, Failure> {
    api.warnings.clear();
    let long = millis(settings.chunk);
    let pace = Pace::measure(api, scraped, (from - 1, to, long))?;
    let mut work = Work::new((policy, settings), scraped, pace);
    let mut parts = Parts { from: from - 1, to, long };
    while let Some(mut chunk) = parts.next(api, scraped)? {
        for at in std::mem::take(&mut chunk.scrapes) {
            if let Some(snapshot) = work.rebuild.snapshot(&chunk.scrape(at), at) {
                work.simulation.see(snapshot);
            }
        }
    }
    let mut report = work.simulation.finish(format!("{} by {}", scraped.name(), settings.prometheus));
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
    fn new((policy, settings): (&Policy, &BacktestSettings), scraped: &'a Scraped, pace: Pace) -> Self {
        let tick = pace.tick.or(policy.interval).unwrap_or(USUAL_TICK);
        // If scrapes are more frequent than samples, some return the same snapshot again.
        let interval = settings.interval.or(pace.interval).unwrap_or(tick).max(tick);
        let notes = notes((policy, settings), (interval, tick));
        let policy = Arc::new(adapt::adapt(policy.clone(), (interval, tick)));
        Self {
            rebuild: Rebuild::new(scraped, (interval, tick), settings.children),
            simulation: Simulation::new(policy, settings.admin),
            notes,
        }
    }
}

/// Returns notes for readers of the report.
fn notes(
    (policy, settings): (&Policy, &BacktestSettings),
    (interval, tick): (Duration, Duration),
) -> Vec<String> {
    let shown = |time: Duration| humantime::format_duration(time).to_string();
    let mut notes = vec![format!(
        "one snapshot per scrape (every {}); the exporter's sampling interval is {}, so durations that rules give in samples count scrapes here",
        shown(interval),
        shown(tick)
    )];
    if let Some(written) = policy.interval.filter(|written| *written != tick) {
        notes.push(format!(
            "the rules file was written for a sampling interval of {}; on this node, all destructive steps would be withheld",
            shown(written)
        ));
    }
    if adapt::asks_for(policy, "cpu_util") {
        notes.push(match settings.children {
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
    if exempts && settings.children == Children::Unknown {
        let note = "`protect` and `except` are unknown for processes without GPU memory, and therefore exempt the target: Prometheus \
                    has no data on them; --assume-children-idle assumes that there are none";
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
