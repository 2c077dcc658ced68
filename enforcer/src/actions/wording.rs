//! Texts of notifications: what was found, what happens next, and when.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::message::{Notice, Part, plain};
use bailiff_engine::Kind;
use bailiff_engine::engine::number;
use bailiff_engine::policy::{Action, Mode, Rule, Step};
use bailiff_engine::value::Unit;
use bailiff_engine::verdict::{ActionReport, Outcome, Subject, Verdict, What};

/// Maximum length of a notebook's path in characters.
const MOST_OF_NOTEBOOK: usize = 200;

/// Returns the notification of a match, on this node, at this sampling interval, and at this time since the Unix epoch.
pub(crate) fn of_match(
    verdict: &Verdict,
    rule: &Rule,
    (node, interval, wall): (&str, Duration, Duration),
) -> Notice {
    let coming = coming(rule, verdict, interval);
    let hold = hold_command(rule, verdict);
    let keep = hold.as_ref().map(|hold| format!(" To keep it longer, run {hold}.")).unwrap_or_default();
    let text = format!("{}{}{keep}", found(verdict), next(coming.as_ref(), verdict.mode));
    let part = part(verdict, (coming.as_ref(), hold), (interval, wall));
    notice(verdict, ("notify", text, part), (node, wall))
}

/// Returns the notification of the result of an action; `None` if nothing was done.
pub(crate) fn of_result(
    (verdict, step): (&Verdict, &str),
    report: &ActionReport,
    (node, wall): (&str, Duration),
) -> Option<Notice> {
    let words = ended(report, (verdict.subject.kind, step))?;
    let text = format!("{} {words} (rule {}).", named_in_full(&verdict.subject), verdict.rule);
    let part = Part {
        short: words.clone(),
        next: sentence(&words),
        ..part(verdict, (None, None), (Duration::ZERO, wall))
    };
    let notice = notice(verdict, (step, text, part), (node, wall));
    Some(Notice { outcome: Some(report.outcome), ..notice })
}

fn notice(
    verdict: &Verdict,
    (step, text, part): (&str, String, Part),
    (node, wall): (&str, Duration),
) -> Notice {
    let subject = &verdict.subject;
    Notice {
        text,
        node: node.to_owned(),
        rule: verdict.rule.to_string(),
        step: step.to_owned(),
        target: subject.id.to_string(),
        user: subject.user.clone(),
        uid: subject.uid,
        gpus: subject.gpus.clone(),
        members: subject.members.clone(),
        evidence: Some(verdict.evidence.clone()),
        when: UNIX_EPOCH + wall,
        part,
        outcome: None,
        about: (Arc::clone(subject), verdict.mode),
    }
}

/// Returns a name of the subject for its owner.
fn named(subject: &Subject) -> String {
    named_with(subject, "")
}

/// The same, with the notebook.
fn named_in_full(subject: &Subject) -> String {
    let notebook = notebook(subject).map(|path| format!("; notebook {path}"));
    named_with(subject, &notebook.unwrap_or_default())
}

/// Returns the notebook of the process that [`named`] names, shortened to its end.
fn notebook(subject: &Subject) -> Option<String> {
    let path = subject.members.iter().find(|member| member.holds)?.notebook.as_deref()?;
    let omitted = path.chars().count().saturating_sub(MOST_OF_NOTEBOOK);
    let end: String = path.chars().skip(omitted).collect();
    Some(if omitted > 0 { format!("…{end}") } else { end })
}

fn named_with(subject: &Subject, more: &str) -> String {
    let first = subject.members.iter().find(|member| member.holds);
    let comm =
        first.map(|member| format!(" ({}, pid {}{more})", member.comm, member.pid)).unwrap_or_default();
    let what = match subject.kind {
        Kind::Process => "your process",
        Kind::Workload => "your workload",
        Kind::Gpu => "the GPU",
        Kind::Lease => "your lease",
        Kind::MpsServer => "the MPS server",
        Kind::SlurmJob => "your job",
        Kind::Pod => "your pod",
    };
    let job = subject.job.as_ref().map(|job| format!(" {}", job.job)).unwrap_or_default();
    let pod = subject.pod.as_ref().map(|pod| format!(" {pod}")).unwrap_or_default();
    format!("{what}{job}{pod}{comm}")
}

/// Returns a phrase about the subject's GPU memory; empty if a part of it is unknown.
fn holding(subject: &Subject) -> String {
    let held = subject.members.iter().map(|member| member.vram).sum::<Option<u64>>();
    held.filter(|bytes| *bytes > 0)
        .map(memory)
        .map(|memory| format!(", which holds {memory} of GPU memory"))
        .unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn memory(bytes: u64) -> String {
    number(bytes as f64, Unit::Bytes)
}

fn found(verdict: &Verdict) -> String {
    let subject = &verdict.subject;
    let mut text = format!("rule {}: {}{}", verdict.rule, named_in_full(subject), holding(subject));
    let leaves: Vec<String> = verdict
        .evidence
        .leaves
        .iter()
        .map(|leaf| format!("{} is {} ({})", leaf.name, leaf.value, leaf.comparison))
        .collect();
    if !leaves.is_empty() {
        let _ = write!(text, ": {} for {} samples", leaves.join(", "), verdict.evidence.streak);
    }
    text
}

/// Returns the rule's next action, and in what time it is due.
fn coming(rule: &Rule, verdict: &Verdict, interval: Duration) -> Option<(String, Duration)> {
    let step = rule.then.iter().find(|step| step.action.destructive())?;
    let notify_step =
        |step: &&Step| matches!(&verdict.what, What::Notify(to) if step.action == Action::Notify(to.clone()));
    let since = match rule.then.iter().find(notify_step) {
        // With `pick`, the streak includes the idle time before the target was picked.
        Some(notify_step) if rule.pick.is_some() => notify_step.after.samples(interval),
        _ => verdict.evidence.streak.saturating_sub(verdict.evidence.needed),
    };
    let left = step.after.samples(interval).saturating_sub(since);
    let what = match &step.action {
        Action::Terminate { .. } => "it will be terminated".to_owned(),
        Action::CancelJob { .. } if rule.target == Kind::SlurmJob => "it will be cancelled".to_owned(),
        Action::CancelJob { .. } => "its Slurm job will be cancelled".to_owned(),
        Action::EvictPod { .. } => "it will be evicted".to_owned(),
        Action::StopOwner { .. } => "its owner will be stopped".to_owned(),
        Action::Signal(signal) => format!("it will be sent {}", signal.name),
        Action::ReleaseLease => "it will be released".to_owned(),
        Action::ShutdownMps => "it will be shut down".to_owned(),
        Action::Exec(_) | Action::Flag(_) | Action::Notify(_) => "an action will follow".to_owned(),
    };
    Some((what, Duration::from_secs((interval * left).as_secs().max(1))))
}

/// Returns the command with which the owner can hold the target; `None` if the rule does not permit it, or takes no action.
fn hold_command(rule: &Rule, verdict: &Verdict) -> Option<String> {
    let limits = rule.hold.filter(|_| verdict.mode == Mode::Enforce)?;
    let what = match &verdict.subject.job {
        Some(job) => format!("--job {}", job.job),
        None => verdict.subject.members.iter().find(|member| member.holds)?.pid.to_string(),
    };
    let max = humantime::format_duration(limits.max).to_string().replace(' ', "");
    Some(format!("bailiff hold {max} {what}"))
}

/// Returns a phrase about the rule's next action and its time.
fn next(coming: Option<&(String, Duration)>, mode: Mode) -> String {
    match (coming, mode) {
        (None, _) => ".".to_owned(),
        (Some((what, left)), Mode::Enforce) => {
            format!("; {what} in about {}, unless this changes.", humantime::format_duration(*left))
        }
        (Some(_), Mode::DryRun) => {
            "; no action will be taken, because the rule is in dry-run mode.".to_owned()
        }
    }
}

/// Returns the parts of the text, for templates. Each is one line: processes choose names, and notebooks have any.
fn part(
    verdict: &Verdict,
    (coming, hold): (Option<&(String, Duration)>, Option<String>),
    (interval, wall): (Duration, Duration),
) -> Part {
    let time = |at: Duration| humantime::format_rfc3339_seconds(UNIX_EPOCH + at).to_string();
    let observed = Duration::from_secs((interval * verdict.evidence.streak).as_secs());
    let next = match (coming, verdict.mode) {
        (Some((what, left)), Mode::Enforce) => {
            format!("{} at about {}", sentence(what).trim_end_matches('.'), time(wall + *left))
        }
        (Some(_), Mode::DryRun) => "Nothing: the rule is in dry-run mode.".to_owned(),
        (None, _) => "Nothing: this is only a notice.".to_owned(),
    };
    let short = match (coming, verdict.mode) {
        (Some((what, left)), Mode::Enforce) => {
            let what = what.strip_prefix("it ").unwrap_or(what);
            format!("{what} in about {}", humantime::format_duration(*left))
        }
        _ => "notice".to_owned(),
    };
    let keep = (coming.is_some() && verdict.mode == Mode::Enforce).then(|| match hold {
        Some(hold) => format!("Use it again, so that what was observed changes, or run `{hold}`."),
        None => "Use it again, so that what was observed changes.".to_owned(),
    });
    let since = (!observed.is_zero()).then(|| {
        let seconds = humantime::format_duration(observed);
        format!("{} ({seconds})", time(wall.saturating_sub(observed)))
    });
    let leaves = verdict.evidence.leaves.iter();
    let leaves: Vec<String> =
        leaves.map(|leaf| format!("{} is {} ({})", leaf.name, leaf.value, leaf.comparison)).collect();
    let memory = holding(&verdict.subject);
    let memory = memory.strip_prefix(", which holds ").map(|held| format!("it holds {held}"));
    Part {
        what: plain(&named(&verdict.subject)),
        short,
        found: plain(&memory.into_iter().chain(leaves).collect::<Vec<_>>().join("; ")),
        since,
        next,
        keep,
        rule: verdict.rule.to_string(),
        gpus: verdict.subject.gpus.clone(),
        notebook: notebook(&verdict.subject).as_deref().map(plain),
    }
}

/// Returns a phrase as a sentence.
fn sentence(phrase: &str) -> String {
    let mut letters = phrase.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    format!("{}{}.", first.into_iter().collect::<String>(), letters.as_str())
}

/// Returns a phrase about the result of an action, for the owner; `None` if nothing was done.
fn ended(report: &ActionReport, (kind, step): (Kind, &str)) -> Option<String> {
    Some(match report.outcome {
        Outcome::Released | Outcome::Undetermined if step == "stop_owner" => {
            "was deleted, because its owner was stopped".to_owned()
        }
        Outcome::NotTerminated if step == "stop_owner" => {
            "still has processes, although its owner was stopped".to_owned()
        }
        Outcome::BlockedByPdb => "is not evicted yet: a disruption budget does not permit it".to_owned(),
        Outcome::Released if kind == Kind::SlurmJob => "was cancelled".to_owned(),
        Outcome::Released if kind == Kind::Pod => "was evicted".to_owned(),
        Outcome::Released => match report.released.map(memory) {
            Some(memory) => format!("was terminated; {memory} of GPU memory was released"),
            None => "was terminated, and its memory was released".to_owned(),
        },
        Outcome::GoneNotReleased => "was terminated, but its memory was not released".to_owned(),
        Outcome::Undetermined => "was terminated".to_owned(),
        Outcome::NotTerminated => "was evicted, but its processes still run".to_owned(),
        Outcome::Unkillable => "could not be terminated".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_engine::policy::{Policy, load};
    use bailiff_engine::verdict::{Asked, Evidence, Member};
    use bailiff_engine::view::TargetId;
    use bailiff_snapshot::Truth;

    /// Returns the policy of a rule with `pick`, and a verdict of it.
    fn of_pick() -> (Arc<Policy>, Verdict) {
        let text = "version: 1\nnotify: {owner: {tty: true}}\nrules:\n  - name: room\n    target: gpu\n    mode: enforce\n    \
            when: {vram_free: {below: 1GiB}}\n    for: {samples: 2}\n    pick: {from: {gpu_util: {max: 1%}}, idle_for: 10m}\n    \
            then: [{notify: [owner]}, {after: 40s, terminate: {}}]\n";
        let policy = load(text.as_bytes(), "rules.yaml", crate::policy_file::context(Duration::ZERO))
            .expect("it is valid")
            .policy;
        let subject = Subject {
            id: TargetId("workload:tree:41@7".into()),
            kind: Kind::Workload,
            uid: None,
            user: None,
            gpus: Vec::new(),
            job: None,
            pod: None,
            members: Vec::new(),
        };
        let verdict = Verdict {
            rule: "room".into(),
            mode: Mode::Enforce,
            subject: Arc::new(subject),
            what: What::Notify(vec!["owner".into()]),
            // Idle for an hour before the GPU was short of memory.
            evidence: Evidence { seq: 1, streak: 720, needed: 2, leaves: Vec::new() },
        };
        (policy.into(), verdict)
    }

    #[test]
    fn notice_of_a_pick_has_the_time_since_it_was_picked() {
        let (policy, verdict) = of_pick();
        let coming = coming(&policy.rules[0], &verdict, Duration::from_secs(5));
        let text = next(coming.as_ref(), Mode::Enforce);
        assert_eq!(text, "; it will be terminated in about 40s, unless this changes.");
    }

    #[test]
    fn names_and_values_add_no_lines() {
        let (_, mut verdict) = of_pick();
        let line = "a\nRule: b";
        let member = Member {
            key: None,
            pid: 41,
            uid: None,
            comm: line.into(),
            exe: None,
            cgroup: String::new(),
            confinement: String::new(),
            notebook: Some(line.into()),
            vram: None,
            holds: true,
        };
        verdict.subject = Arc::new(Subject { members: vec![member], ..Subject::clone(&verdict.subject) });
        verdict.evidence.leaves.push(Asked {
            name: "comm".into(),
            value: line.into(),
            comparison: "a*".into(),
            outcome: Truth::True,
            source: "proc".into(),
        });
        let part = part(&verdict, (None, None), (Duration::from_secs(5), Duration::ZERO));
        let texts = [part.what, part.found, part.notebook.unwrap_or_default()];
        assert!(texts.iter().all(|text| text.contains("a\\nRule: b")), "{texts:?}");
    }
}
