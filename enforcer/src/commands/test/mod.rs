//! `test`: rule tests. Made-up snapshots pass through the daemon's loader and engine by a made-up clock, and the
//! verdicts are compared with the expected ones. A file looks like this:
//!
//! ```yaml
//! rules: ../rules.yaml         # relative to this file; a test may name others
//! interval: 5s                 # the sampling interval
//! tests:
//!   - name: an idle notebook is flagged, then ended
//!     targets:
//!       - process: 4100        # also: comm, user, uid, groups, exe, cmdline, cgroup, workload, container, pod,
//!         vram: 4GiB           # namespace, slurm_job, parent, gpus, context, role, lease, notebook, age, from, until
//!         series:              # also: io_rate, vram, state, orphaned, quota_denied, mps_status, xid; what is not given is unknown
//!           gpu_util: '0x240'  # percent: 0 and 240 times 0 more; `_` was not observed
//!           cpu_util: '0x240'
//!     gpus: [{gpu: 0, memory: 80GiB, series: {vram_unaccounted: '0x240'}}]
//!     leases:                  # none: no pool; also: user, uid, holder (a target's pid), priority, age, from, until
//!       - {lease: train, gpus: [0], series: {holder_alive: 'true x240', heartbeat_age: '0x240'}}
//!     jobs:                    # of Slurm, with a record of the prolog; also: user, uid, age, from, until
//!       - {job: 7, gpus: [0], series: {state: 'never_used x240'}}
//!     expect:
//!       - {at: 5m, rule: idle, step: terminate, target: 4100}   # or at: {sample: 60}, counted from 0
//!       - {at: 3m, rule: idle, step: notify, messages: [{channel: owner, body_contains: will be terminated}]}
//!     never:
//!       - {rule: too-old}      # also: step, target
//! ```
//!
//! A destructive step is decided at one sample and done at the next, which is where it is expected. As with
//! `replay`, a process that would have been ended continues as its series specify.

mod fixture;
mod jobs;
mod messages;
mod parse;
mod pool;
mod quota;
mod script;
mod series;
mod timeline;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::policy::{FaultStyle, Faults, Policy, load};
use bailiff_engine::verdict::{Verdict, What};
use bailiff_engine::view::View;
use bailiff_engine::yaml::{self, Fault, Fields};
use bailiff_lifecycle::exit::Exit;
use serde::Serialize;

use self::messages::Contents;
use self::parse::{list, string};
use self::script::{Case, Expected, Pattern};
use self::timeline::TimelineReader;
use super::playback::Playback;
use super::{Failure, files, layout};
use crate::actions::notices::Content;
use crate::actions::wording;
use crate::commands::layout::{Layout, count, foreign, safe};
use crate::flags;

/// Description of a rules file.
const RULES: &str =
    "this is a rules file, which `check` reads; a test file names its rules file: `rules: ../rules.yaml`";

/// Name of the node in messages.
const NODE: &str = "node";

/// What belongs into an empty file.
const EMPTY: &str = "a file of rule tests has `rules` and `tests`";

/// Results of a test file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleTestReport {
    /// Path of the file.
    pub file: String,
    /// Results in the order of the file.
    pub tests: Vec<TestReport>,
}

/// Result of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TestReport {
    /// Name of the test.
    pub name: String,
    /// Failures; none if it passed.
    pub failures: Vec<Mismatch>,
    /// All steps that happened.
    pub steps: Vec<Happened>,
}

/// An expectation that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Expected result, as text.
    pub expected: String,
    /// Actual result, as text.
    pub got: String,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Happened {
    /// Index of the sample, from 0.
    pub sample: usize,
    /// Time of the sample, as text.
    pub at: String,
    /// Name of the rule.
    pub rule: String,
    /// Name of the step: `flag`, `notify`, `due`, `terminate`, `withheld` and others.
    pub step: &'static str,
    /// Name of the target.
    pub target: String,
    /// Hold that withheld the step.
    pub hold: Option<&'static str>,
    /// True samples in the streak.
    pub streak: u32,
    #[serde(skip)]
    names: Vec<String>,
    #[serde(skip)]
    contents: Contents,
}

impl RuleTestReport {
    /// Returns whether all tests passed.
    pub fn passed(&self) -> bool {
        self.tests.iter().all(|test| test.failures.is_empty())
    }
}

/// Runs the tests of files; the exit code says whether all passed.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub fn run(flags: &flags::Test, out: &mut dyn Write) -> Result<Exit, Failure> {
    let reports =
        flags.files.iter().map(|file| rehearse(file)).collect::<Result<Vec<RuleTestReport>, _>>()?;
    if flags.json {
        super::replay::json(&reports, out)?;
    } else {
        reports.iter().try_for_each(|report| print(report, out))?;
    }
    Ok(if reports.iter().all(RuleTestReport::passed) { Exit::Done } else { Exit::Failed })
}

/// Runs the tests of a file.
fn rehearse(path: &Path) -> Result<RuleTestReport, Failure> {
    let text = files::text(path)?;
    let shown = layout::foreign(&path.display().to_string());
    let refused = |faults: Faults| {
        let rules = load(text.as_bytes(), &shown, crate::policy_file::context(Duration::ZERO)).is_ok();
        Failure::Faults(if rules { format!("{shown}: {RULES}") } else { faults.render(FaultStyle::Plain) })
    };
    let (root, mut faults) = yaml::read(text.as_bytes(), &shown, EMPTY).map_err(refused)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let cases = match Fields::open(&root, parse::file(), &mut faults) {
        Some(file) => cases(&file, directory, &mut faults)?,
        None => Vec::new(),
    };
    if faults.errors() > 0 {
        return Err(refused(faults));
    }
    Ok(RuleTestReport { tests: cases.iter().map(test).collect(), file: shown })
}

/// Validates the tests of a file; `directory` is that of the file.
fn cases(file: &Fields<'_>, directory: &Path, faults: &mut Faults) -> Result<Vec<Case>, Failure> {
    let head = script::head(file, faults);
    let usual = file.given("rules", string, faults);
    let mut known: BTreeMap<PathBuf, Arc<Policy>> = BTreeMap::new();
    let mut cases = Vec::new();
    for node in file.given("tests", list, faults).unwrap_or_default() {
        let Some(test) = Fields::open(node, parse::table("test"), faults) else { continue };
        let Some(rules) = test.given("rules", string, faults).or_else(|| usual.clone()) else {
            faults.push(Fault::error(&node.at, "it has no `rules`, and neither has the file"));
            continue;
        };
        let rules = directory.join(rules);
        let policy = match known.get(&rules) {
            Some(policy) => Arc::clone(policy),
            None => Arc::new(files::rules(&rules, head.start)?.policy),
        };
        cases.extend(script::case(&test, &head, &policy, faults));
        known.insert(rules, policy);
    }
    Ok(cases)
}

fn test(case: &Case) -> TestReport {
    let steps = play(case);
    let mut failures = Vec::new();
    for expected in &case.expect {
        let then: Vec<&Happened> = steps.iter().filter(|step| step.sample == expected.sample).collect();
        let matching: Vec<&Happened> = then.iter().copied().filter(|step| expected.what.is(step)).collect();
        let at = time_of(expected.sample, case.fixture.interval);
        let what = format!("{} at {at} (sample {})", expected.what, expected.sample);
        if matching.is_empty() {
            let got: Vec<String> = then.iter().map(ToString::to_string).collect();
            let got = if got.is_empty() { "no step at that sample".to_owned() } else { got.join("; ") };
            failures.push(Mismatch { expected: what, got });
        } else if let Some((message, got)) = expected.mismatch(&matching) {
            failures.push(Mismatch { expected: format!("{what} with {message}"), got });
        }
    }
    for never in &case.never {
        if let Some(step) = steps.iter().find(|step| never.is(step)) {
            let expected = format!("never: {never}");
            failures.push(Mismatch { expected, got: format!("{step} at {}", step.when()) });
        }
    }
    TestReport { name: case.name.clone(), failures, steps }
}

/// Runs a test and returns all steps that happened.
fn play(case: &Case) -> Vec<Happened> {
    let mut playback = Playback::new(Arc::clone(&case.policy));
    let mut playing = TimelineReader::new(&case.fixture);
    let mut happened = Vec::new();
    for sample in 0..case.samples {
        let Some(snapshot) = playing.next() else { continue };
        let view = playback.next(snapshot);
        // Synthetic snapshots are in order and on time, so none is skipped.
        let verdicts = playback.evaluate(&view).unwrap_or_default();
        let step = |verdict| Happened::of((verdict, &case.policy), (sample, case.fixture.interval), &view);
        happened.extend(verdicts.iter().map(step));
    }
    happened
}

impl Happened {
    fn of(
        (verdict, policy): (&Verdict, &Policy),
        (sample, interval): (usize, Duration),
        view: &View,
    ) -> Self {
        let subject = &verdict.subject;
        let (step, hold) = match &verdict.what {
            What::Flag(_) => ("flag", None),
            What::Clear(_) => ("clear", None),
            What::Notify(_) => ("notify", None),
            What::Due(_) => ("due", None),
            What::Act(_, action) => (action.name(), None),
            What::Withheld(_, hold) => ("withheld", Some(hold.name())),
            What::Reprieved(_) => ("reprieve", None),
        };
        let id = subject.id.to_string();
        let mut names: Vec<String> = subject.members.iter().map(|member| member.pid.to_string()).collect();
        // A target that no longer exists has no members.
        if let Some((_, process)) = id.split_once(':')
            && let Some((pid, _)) = process.split_once(['@', '#'])
        {
            names.push(pid.to_owned());
        }
        names.extend(id.split_once(':').map(|(_, name)| name.to_owned()));
        if subject.kind == bailiff_engine::Kind::Gpu {
            let gpus = view.snapshot.gpus.iter().filter(|gpu| gpu.uuid.as_ref() == subject.gpus.first());
            names.extend(gpus.map(|gpu| format!("gpu:{}", gpu.index)));
        }
        names.extend(subject.job.as_ref().map(|job| format!("slurm_job:{}", job.job)));
        names.push(id.clone());
        Self {
            sample,
            at: time_of(sample, interval),
            rule: verdict.rule.to_string(),
            step,
            target: id,
            hold,
            streak: verdict.evidence.streak,
            names,
            contents: contents(verdict, policy, view),
        }
    }

    fn when(&self) -> String {
        format!("{} (sample {})", self.at, self.sample)
    }
}

/// Returns what the channels of a notification send.
fn contents(verdict: &Verdict, policy: &Policy, view: &View) -> Contents {
    let What::Notify(channels) = &verdict.what else { return Contents::new() };
    let Some(rule) = policy.rules.iter().find(|rule| rule.name == verdict.rule) else {
        return Contents::new();
    };
    let wall = Duration::from_millis(view.snapshot.wall_ms);
    let notice = wording::of_match(verdict, rule, (NODE, view.interval(), wall));
    let named = channels.iter().filter_map(|name| Some((name, policy.channels.get(name)?)));
    named.map(|(name, channel)| (name.clone(), Content::of(channel, &notice))).collect()
}

impl fmt::Display for Happened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} by {} of {}", self.step, self.rule, layout::foreign(&self.target))?;
        self.hold.map_or(Ok(()), |hold| write!(out, " ({hold})"))
    }
}

impl Expected {
    /// Returns an expected message and what was sent instead, unless one of these steps sends all messages.
    fn mismatch(&self, steps: &[&Happened]) -> Option<(String, String)> {
        let first = |step: &&Happened| self.messages.iter().find_map(|it| it.mismatch(&step.contents));
        let mismatches: Vec<_> = steps.iter().map(first).collect();
        if mismatches.contains(&None) { None } else { mismatches.into_iter().next().flatten() }
    }
}

impl Pattern {
    fn is(&self, step: &Happened) -> bool {
        self.rule.as_ref().is_none_or(|rule| *rule == step.rule)
            && self.step.as_ref().is_none_or(|wanted| wanted == step.step)
            && self.target.as_ref().is_none_or(|target| step.names.contains(target))
            && self.hold.as_deref().is_none_or(|hold| step.hold == Some(hold))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.step.as_deref().unwrap_or("any step"))?;
        if let Some(rule) = &self.rule {
            write!(out, " by {rule}")?;
        }
        if let Some(target) = &self.target {
            write!(out, " of {}", layout::foreign(target))?;
        }
        self.hold.as_ref().map_or(Ok(()), |hold| write!(out, " ({hold})"))
    }
}

fn time_of(sample: usize, interval: Duration) -> String {
    let time = interval.saturating_mul(u32::try_from(sample).unwrap_or(u32::MAX));
    humantime::format_duration(time).to_string()
}

/// Returns the snapshots of a file's first test, for tests in other modules.
#[cfg(test)]
pub(in crate::commands) fn staged(
    text: &str,
    policy: &Arc<Policy>,
) -> Option<Vec<bailiff_snapshot::wire::Snapshot>> {
    let (root, mut faults) = yaml::read(text.as_bytes(), "", EMPTY).ok()?;
    let file = Fields::open(&root, parse::file(), &mut faults)?;
    let head = script::head(&file, &mut faults);
    let test = Fields::open(root.get("tests")?.items().first()?, parse::table("test"), &mut faults)?;
    let case = script::case(&test, &head, policy, &mut faults)?;
    assert!(faults.is_empty(), "{faults}");
    let mut playing = TimelineReader::new(&case.fixture);
    Some((0..case.samples).filter_map(|_| playing.next()).collect())
}

/// Maximum number of listed steps per test.
const SHOWN_STEPS: usize = 40;

/// Writes a report.
fn print(report: &RuleTestReport, out: &mut dyn Write) -> io::Result<()> {
    let mut layout = Layout::default();
    layout.say(0, &format!("Testing rules with {}", report.file));
    let failed = report.tests.iter().filter(|test| !test.failures.is_empty());
    for test in failed.clone() {
        layout.gap();
        failure(test, &mut layout);
    }
    let failed = failed.count();
    let all = count(report.tests.len() as u64, ("test", "tests"));
    if failed == 0 {
        layout.say(2, &format!("SUCCESS: {all}"));
    } else {
        layout.gap();
        layout.say(2, &format!("FAILED: {failed} of {all}"));
    }
    out.write_all(layout.text().as_bytes())
}

fn failure(test: &TestReport, layout: &mut Layout) {
    layout.say(
        2,
        &format!("FAILED: {}", test.name.split_whitespace().map(foreign).collect::<Vec<_>>().join(" ")),
    );
    for mismatch in &test.failures {
        layout.say(4, &format!("expected: {}", safe(&mismatch.expected)));
        layout.say(4, &format!("     got: {}", safe(&mismatch.got)));
    }
    if test.steps.is_empty() {
        return layout.say(4, "no steps were taken");
    }
    layout.say(4, "steps taken:");
    for step in test.steps.iter().take(SHOWN_STEPS) {
        layout.say(6, &format!("{}: {step}, streak {}", step.when(), step.streak));
    }
    if let Some(more) = test.steps.len().checked_sub(SHOWN_STEPS).filter(|more| *more > 0) {
        layout.say(6, &format!("and {more} more; --json shows all"));
    }
}
