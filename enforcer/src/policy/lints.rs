//! What is good grammar and bad policy: windows too short to harm anybody on, and habits that end in regret.

use std::time::Duration;

use super::asks::leaves;
use super::fault::{Fault, Faults};
use super::fields::Fields;
use super::steps::Placed;
use super::{Action, Ask, Kind, Rule, Span};
use crate::value::Test;

/// Fewer samples are chance.
const LEAST_SAMPLES: u32 = 3;

/// A shorter time is chance.
const LEAST_TIME: Duration = Duration::from_secs(30);

/// Where the parts of a rule stand.
pub(super) struct Places<'a> {
    /// The rule's keys.
    pub(super) fields: Fields<'a>,
    /// Its steps.
    pub(super) placed: Vec<Placed<'a>>,
}

/// Looks at a rule that can be understood.
pub(super) fn check(rule: &Rule, places: &Places<'_>, interval: Option<Duration>, faults: &mut Faults) {
    let Some(first) = places.placed.iter().find(|placed| placed.step.action.destructive()) else { return };
    if !long_enough(rule.span, first.step.after, interval) {
        too_short(places, "for", "a destructive step needs a longer window", faults);
    }
    if let Some(pick) = &rule.pick
        && !long_enough(pick.idle_for, Span::Samples(0), interval)
    {
        too_short(places, "pick", "a destructive step needs a longer `idle_for`", faults);
    }
    tell_first(places, faults);
    idle_by_gpu_alone(rule, places, faults);
}

fn too_short(places: &Places<'_>, key: &str, message: &str, faults: &mut Faults) {
    let Some(entry) = places.fields.entry(key) else { return };
    let help = "what was seen less than 3 times, or for less than 30s, may be chance: a pause, a checkpoint, a slow read";
    faults.push(Fault::error(&entry.at, message).help(help));
}

/// Enough of samples or of time; of samples in any case, where the beat is known.
fn long_enough(span: Span, after: Span, interval: Option<Duration>) -> bool {
    let (mut samples, mut time) = (0_u32, Duration::ZERO);
    for span in [span, after] {
        match span {
            Span::Samples(more) => samples = samples.saturating_add(more),
            Span::Time(more) => time = time.saturating_add(more),
        }
    }
    let beats = interval.map(|interval| span.samples(interval).saturating_add(after.samples(interval)));
    (samples >= LEAST_SAMPLES || time >= LEAST_TIME) && beats.is_none_or(|beats| beats >= LEAST_SAMPLES)
}

/// Whoever is to lose work should have heard of it.
fn tell_first(places: &Places<'_>, faults: &mut Faults) {
    for placed in &places.placed {
        match placed.step.action {
            Action::Notify(_) => return,
            Action::Signal(_) | Action::Terminate { .. } => {
                let message = format!("nobody is told before this `{}`", placed.step.action.name());
                let help = "tell the owner first: `{notify: [owner]}`, and `after: 20m` for this step";
                faults.push(Fault::warning(&placed.entry.at, message).help(help));
                return;
            }
            _ => {}
        }
    }
}

/// Data loading, checkpoints and compilation leave the GPU idle and the CPU busy.
fn idle_by_gpu_alone(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    let (key, ask) = match (&rule.pick, rule.of) {
        (Some(pick), _) => ("pick", &pick.from),
        (None, Kind::Process | Kind::Workload) => ("when", &rule.when),
        _ => return,
    };
    let compares = |name: &str| leaves(ask).any(|leaf| leaf.attribute.name == name);
    if !wants_idle_gpu(ask) || compares("cpu_util") {
        return;
    }
    if let Some(entry) = places.fields.entry(key) {
        let fault = Fault::warning(&entry.at, "an idle GPU alone is a bad reason to end something");
        faults.push(fault.help(
            "it may load data, compile or write a checkpoint: add `cpu_util: {max: 5%}`, and `io_rate` where it can be read",
        ));
    }
}

fn wants_idle_gpu(ask: &Ask) -> bool {
    match ask {
        Ask::Leaf(leaf) => {
            let upper = matches!(leaf.test, Test::Within(bounds) if bounds.max.or(bounds.below).is_some());
            leaf.attribute.name == "gpu_util" && upper
        }
        Ask::Select(_) => false,
        Ask::All(asks) | Ask::Any(asks) => asks.iter().any(wants_idle_gpu),
        Ask::Not(ask) => leaves(ask).any(|leaf| leaf.attribute.name == "gpu_util"),
    }
}
