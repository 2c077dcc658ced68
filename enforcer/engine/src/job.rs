//! Decides from what `squeue` prints whether a Slurm job may be cancelled, and under which name. Pure.

use std::time::Duration;

use bailiff_snapshot::Moment;
use bailiff_snapshot::slurm::{JobId, JobRecord};

use crate::guard::Refusal;
use crate::policy::JobNodes;
use crate::verdict::Outcome;

/// Format of `squeue` for [`decide`] and [`state`].
pub const FORMAT: &str = "%A|%i|%F|%K|%U|%T|%S|%D|%N";

/// A job, as the node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Job id in the path of its cgroup, or in its record.
    pub id: JobId,
    /// Owner of its processes, or of the job in its record.
    pub uid: u32,
    /// Slurm's name of this node.
    pub node: String,
    /// Start of its first process, or of its prolog, since the Unix epoch. A run of the job that started later is another
    /// one.
    pub began: Duration,
}

impl Job {
    /// Returns the job of a record. Each run of a job has a record of its own.
    pub fn of_record(record: &JobRecord, now: Moment) -> Self {
        let age = now.boot.saturating_sub(Duration::from_millis(record.boot_ms));
        let began = now.wall.saturating_sub(age);
        Self { id: record.job.clone(), uid: record.uid, node: record.node.clone(), began }
    }
}

/// A job that may be cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancellable {
    /// Name for `scancel`: `7`, `7_1` for an array task, and the leader's id for a heterogeneous job.
    pub name: String,
    /// Its state, as Slurm names it.
    pub state: String,
}

/// What `squeue` prints about one job.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    id: &'a str,
    name: &'a str,
    array: &'a str,
    task: &'a str,
    uid: &'a str,
    state: &'a str,
    start: &'a str,
    count: &'a str,
    nodes: &'a str,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let words: Vec<&str> = text.split('|').map(str::trim).collect();
        let [id, name, array, task, uid, state, start, count, nodes] = words.try_into().ok()?;
        Some(Self { id, name, array, task, uid, state, start, count, nodes })
    }

    /// Returns the lines about a job. Slurm also lists the other tasks of an array, whose ids differ. A SLUID names one
    /// job, but is not in the line.
    fn about(output: &'a str, id: &JobId) -> Vec<Self> {
        let lines = output.lines().filter_map(Self::parse);
        let is_sluid = !is_number(id.as_ref());
        lines.filter(|line| is_sluid || line.id == id.as_ref()).collect()
    }
}

/// Decides whether a job may be cancelled. `output` is what `squeue` printed about it in [`FORMAT`], with times in
/// seconds since the Unix epoch.
///
/// # Errors
/// If Slurm does not show the job, or if its line differs from what the node knows.
pub fn decide(output: &str, job: &Job, nodes: JobNodes) -> Result<Cancellable, Refusal> {
    let line = match Line::about(output, &job.id).as_slice() {
        [line] => *line,
        [] => {
            let why = format!("Slurm does not show job {}, but it has not ended on this node", job.id);
            return Err(refusal(Outcome::NotVisible, &why));
        }
        _ => return Err(changed(&format!("Slurm shows several jobs with id {}", job.id))),
    };
    let about = format!("job {} ({})", line.name, line.state);
    if line.uid.parse() != Ok(job.uid) {
        return Err(changed(&format!("{about} belongs to uid {}, not {}", line.uid, job.uid)));
    }
    if line.state != "RUNNING" {
        return Err(changed(&format!("{about} is not running")));
    }
    // Slurm cuts times to seconds.
    if line.start.parse::<u64>().ok().is_none_or(|start| start > job.began.as_secs()) {
        return Err(changed(&format!("{about} started after it was seen on this node, so it was requeued")));
    }
    let one_node = line.count == "1" && line.nodes == job.node;
    if line.count == "1" && !one_node || nodes == JobNodes::Any && !includes(line.nodes, &job.node) {
        return Err(changed(&format!("{about} runs on {}, not on {}", line.nodes, job.node)));
    }
    let name = name(&line).ok_or_else(|| changed(&format!("{about} is not a single job")))?;
    if nodes == JobNodes::One && (!one_node || line.name.contains('+')) {
        let what = if one_node { "is heterogeneous".to_owned() } else { format!("runs on {}", line.nodes) };
        return Err(refusal(Outcome::SpansNodes, &format!("{about} {what}, and the step has `nodes: one`")));
    }
    Ok(Cancellable { name, state: line.state.to_owned() })
}

/// Checks that a name that is not the job's id names this job only. `output` is what `squeue` printed about the name. The
/// id of an array or of a heterogeneous job may belong to another job once the record that had it is gone.
///
/// # Errors
/// If Slurm shows another job, or another user's, under this name.
pub fn confirm(output: &str, job: &Job, name: &str) -> Result<(), Refusal> {
    let lines: Vec<Line<'_>> = output.lines().filter_map(Line::parse).collect();
    let leads = |line: &Line<'_>| line.name.split_once('+').is_some_and(|(leader, _)| leader == name);
    let own = |line: &Line<'_>| line.uid.parse() == Ok(job.uid) && (line.name == name || leads(line));
    let is_task = name.contains('_');
    let same_task = |line: &Line<'_>| line.id == job.id.as_ref() || !is_number(job.id.as_ref());
    let found = match lines.as_slice() {
        [line] if is_task => own(line) && same_task(line),
        _ => !is_task && lines.iter().all(own) && lines.iter().any(|line| line.id == name),
    };
    if found { Ok(()) } else { Err(changed(&format!("{name} names another job than {} in Slurm", job.id))) }
}

/// Returns the state of a job; `CANCELLED` if Slurm has forgotten the job.
///
/// # Errors
/// If Slurm shows several jobs with this id.
pub fn state<'a>(output: &'a str, id: &JobId) -> Result<&'a str, String> {
    match Line::about(output, id).as_slice() {
        [] => Ok("CANCELLED"),
        [line] => Ok(line.state),
        _ => Err(format!("Slurm shows several jobs with id {id}")),
    }
}

/// Returns whether a job in this state has ended or is ending.
pub fn has_ended(state: &str) -> bool {
    const ENDED: [&str; 10] = [
        "CANCELLED",
        "COMPLETING",
        "COMPLETED",
        "FAILED",
        "TIMEOUT",
        "DEADLINE",
        "NODE_FAIL",
        "BOOT_FAIL",
        "PREEMPTED",
        "OUT_OF_MEMORY",
    ];
    ENDED.contains(&state)
}

/// Returns the name that `scancel` needs. The id of an array's last task is also the id of the array, so a task is named
/// by array and index.
fn name(line: &Line<'_>) -> Option<String> {
    if let Some((leader, component)) = line.name.split_once('+') {
        return (is_number(leader) && is_number(component)).then(|| leader.to_owned());
    }
    let expected = match line.task {
        "N/A" => line.id.to_owned(),
        task if is_number(task) && is_number(line.array) => format!("{}_{task}", line.array),
        _ => return None,
    };
    (is_number(line.id) && line.name == expected).then_some(expected)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit())
}

fn refusal(outcome: Outcome, why: &str) -> Refusal {
    Refusal { outcome, why: why.to_owned() }
}

fn changed(why: &str) -> Refusal {
    refusal(Outcome::IdentityChanged, &format!("changed: {why}"))
}

/// Returns whether Slurm's list of nodes, such as `a[01-03,7],b2`, contains a node.
fn includes(list: &str, node: &str) -> bool {
    let mut depth = 0_u32;
    let outside = |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    list.split(outside).any(|pattern| matches(pattern, node))
}

/// Returns whether a name matches a pattern with numbers in brackets.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else { return pattern == name };
    let (Some((ranges, after)), Some(name)) = (rest.split_once(']'), name.strip_prefix(before)) else {
        return false;
    };
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    (1..=digits).any(|length| {
        let (number, end) = name.split_at(length);
        ranges.split(',').any(|range| in_range(range, number)) && matches(after, end)
    })
}

/// Returns whether a number is in a range such as `01-12`, in which numbers have at least two digits.
fn in_range(range: &str, number: &str) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let width = first.len();
    let parse = |text: &str| text.parse::<u64>().ok();
    let (Some(first), Some(last), Some(value)) = (parse(first), parse(last), parse(number)) else {
        return false;
    };
    (first..=last).contains(&value) && format!("{value:0width$}") == number
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobNodes::{Any, One};

    const RUNNING: &str = "7|7|7|N/A|1000|RUNNING|1700000000|1|n1";

    /// Output of `squeue`, setting of the step, and the name for `scancel`, or the outcome with a part of its reason.
    /// There is one row for each row of the table in docs/slurm.md that the decision is responsible for.
    #[rustfmt::skip]
    const CASES: [(&str, JobNodes, &str, &str); 25] = [
        (RUNNING, One, "7", ""),
        (RUNNING, Any, "7", ""),
        ("7|7|7|N/A|1001|RUNNING|1700000000|1|n1", One, "identity_changed", "belongs to uid 1001, not 1000"),
        ("7|7|7|N/A|nobody|RUNNING|1700000000|1|n1", One, "identity_changed", "belongs to uid nobody"),
        ("7|7|7|N/A|1000|RUNNING|1700000000|1|n2", One, "identity_changed", "runs on n2, not on n1"),
        ("7|7|7|N/A|1000|RUNNING|1700000001|1|n1", One, "identity_changed", "so it was requeued"),
        ("7|7|7|N/A|1000|RUNNING|N/A|1|n1", One, "identity_changed", "so it was requeued"),
        ("7|7|7|N/A|1000|SUSPENDED|1700000000|1|n1", One, "identity_changed", "(SUSPENDED) is not running"),
        ("7|7|7|N/A|1000|COMPLETING|1700000000|1|n1", One, "identity_changed", "(COMPLETING) is not running"),
        ("7|7|7|N/A|1000|CANCELLED|1700000000|1|n1", Any, "identity_changed", "(CANCELLED) is not running"),
        ("7|7|7|N/A|1000|PENDING|N/A|1|", One, "identity_changed", "(PENDING) is not running"),
        ("7|7|7|N/A|1000|RUNNING|1700000000|2|n[1-2]", One, "spans_nodes", "runs on n[1-2]"),
        ("7|7|7|N/A|1000|RUNNING|1700000000|2|n[1-2]", Any, "7", ""),
        ("7|7|7|N/A|1000|RUNNING|1700000000|2|n[2-3]", Any, "identity_changed", "runs on n[2-3], not on n1"),
        ("8|7+1|8|N/A|1000|RUNNING|1700000000|1|n1", One, "spans_nodes", "is heterogeneous"),
        ("8|7+1|8|N/A|1000|RUNNING|1700000000|1|n1", Any, "7", ""),
        ("9|7_1|7|1|1000|RUNNING|1700000000|1|n1", One, "7_1", ""),
        ("7|7_3|7|3|1000|RUNNING|1700000000|1|n1", One, "7_3", ""),
        ("7|7|7|3|1000|RUNNING|1700000000|1|n1", One, "identity_changed", "is not a single job"),
        ("7|7_[3-9]|7|3-9|1000|RUNNING|1700000000|1|n1", One, "identity_changed", "is not a single job"),
        ("7|8|7|N/A|1000|RUNNING|1700000000|1|n1", One, "identity_changed", "is not a single job"),
        ("7|7_3|7|3|1000|RUNNING|1700000000|1|n1\n8|7_1|7|1|1000|RUNNING|1|1|n1", One, "7_3", ""),
        ("7|7|7|N/A|1000|RUNNING|1|1|n1\n7|7|7|N/A|1000|RUNNING|1|1|n1", One, "identity_changed", "several"),
        ("", One, "not_visible", "Slurm does not show job 7"),
        ("7|7|7|N/A|1000|RUNNING|1700000000|1", One, "not_visible", "Slurm does not show job 7"),
    ];

    #[test]
    fn job_is_cancelled_only_if_slurm_shows_what_the_node_knows() {
        for (output, nodes, expected, part) in CASES {
            let id = output.split('|').next().filter(|id| !id.is_empty()).unwrap_or("7");
            let began = Duration::from_millis(1_700_000_000_250);
            let job = Job { id: id.parse().unwrap(), uid: 1000, node: "n1".to_owned(), began };
            let (found, why) = match decide(output, &job, nodes) {
                Ok(job) => (job.name, String::new()),
                Err(refusal) => (refusal.outcome.name().to_owned(), refusal.why),
            };
            assert_eq!(found, expected, "{output}: {why}");
            assert!(why.contains(part), "{output}: {why}");
            assert_eq!(why.starts_with("changed: "), found == "identity_changed", "{why}");
        }
    }

    #[test]
    fn name_must_name_the_job_alone() {
        let (leader, component) = ("7|7+0|7|N/A|1000|RUNNING|1|1|n1", "8|7+1|8|N/A|1000|RUNNING|1|1|n1");
        let cases: [(&str, &str, String, bool); 8] = [
            ("9", "7_1", "9|7_1|7|1|1000|RUNNING|1|1|n1".into(), true),
            ("9", "7_1", "12|7_1|7|1|1000|RUNNING|1|1|n1".into(), false),
            ("9", "7_1", "9|7_1|7|1|1000|RUNNING|1|1|n1\n12|7_1|7|1|1000|RUNNING|1|1|n1".into(), false),
            ("9", "7_1", String::new(), false),
            ("8", "7", format!("{leader}\n{component}"), true),
            ("8", "7", component.into(), false),
            ("8", "7", "7|7|7|N/A|1000|RUNNING|1|1|n1\n8|7+1|8|N/A|1001|RUNNING|1|1|n1".into(), false),
            ("8", "7", "7|7_2|7|2|1000|RUNNING|1|1|n1".into(), false),
        ];
        for (id, name, output, expected) in cases {
            let job = Job { id: id.parse().unwrap(), uid: 1000, node: "n1".into(), began: Duration::ZERO };
            assert_eq!(confirm(&output, &job, name).is_ok(), expected, "{name}: {output}");
        }
    }

    #[test]
    fn sluid_names_one_job() {
        let id: JobId = "s5K1KKYAYG5D00".parse().unwrap();
        let job =
            Job { id: id.clone(), uid: 1000, node: "n1".into(), began: Duration::from_secs(1_700_000_000) };
        assert_eq!(decide(RUNNING, &job, JobNodes::One).map(|job| job.name), Ok("7".to_owned()));
        assert_eq!(state(RUNNING, &id), Ok("RUNNING"));
        assert_eq!(state("", &id), Ok("CANCELLED"));
        let two = format!("{RUNNING}\n8|7_1|7|1|1000|RUNNING|1|1|n1");
        assert!(decide(&two, &job, JobNodes::One).is_err());
        assert!(state(&two, &id).is_err());
    }

    #[test]
    fn lists_of_nodes() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            ("n1", &["n1"], &["n", "n11", "1"]),
            ("n[1-12]", &["n1", "n9", "n12"], &["n0", "n13", "n01", "n", "n1x"]),
            ("n[001-010,12]", &["n001", "n010", "n12"], &["n1", "n10", "n011", "n0001"]),
            ("a1,b[2-3],c", &["a1", "b2", "b3", "c"], &["a2", "b1", "b", ""]),
            ("r[1-2]n[3-4]", &["r1n3", "r2n4"], &["r3n3", "r1n5", "r1"]),
            ("n[1-", &[], &["n1", "n"]),
        ];
        for (list, inside, outside) in cases {
            assert!(inside.iter().all(|node| includes(list, node)), "{list} includes {inside:?}");
            assert!(!outside.iter().any(|node| includes(list, node)), "{list} does not include {outside:?}");
        }
    }
}
