//! `info --mine --brief`: the GPU memory that this user holds, in one line, or nothing. For login scripts, so it is read
//! only from the exporter and the enforcer, within a short time, and no failure is reported.

use std::time::Duration;

use bailiff_snapshot::wire::{Gpu, Snapshot};
use jiff::Zoned;
use rustix::process::geteuid;

use super::collect::{age, is_stale};
use super::figures::{Units, span};
use super::flags::Info;
use crate::owner::next_end;
use crate::stream::Stream;

/// Timeout of the exporter.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of the enforcer.
const ENFORCER_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of GPUs that are named.
const MOST_GPUS: usize = 4;

/// Returns the line for a user, by default the current one; `None` if the user holds nothing, or that is unknown.
pub(super) fn line(flags: &Info, node: &str) -> Option<String> {
    let own = geteuid().as_raw().to_string();
    let user = flags.user.as_deref().unwrap_or(&own);
    let mut stream = Stream::open(&flags.source.exporter.stream, TIMEOUT).ok()?;
    let snapshot = stream.next(TIMEOUT).ok()?;
    let interval = Duration::from_millis(snapshot.interval_ms);
    let line = (!is_stale(age(&snapshot), interval)).then(|| of_user(&snapshot, user, node)).flatten()?;
    // The enforcer tells root about all users.
    let theirs = flags.user.as_deref().or((own == "0").then_some("root"));
    let end = next_end(&flags.enforcer, theirs, ENFORCER_TIMEOUT).map(at).unwrap_or_default();
    Some(line + &end)
}

/// Returns a sentence about a termination after this time.
fn at(left: Duration) -> String {
    let Ok(at) = Zoned::now().checked_add(left) else { return String::new() };
    let format = if left < Duration::from_hours(12) { "%H:%M" } else { "%a %H:%M" };
    format!(
        " To be terminated at {} or later, unless it is used again; see bailiff why.",
        at.strftime(format)
    )
}

/// `user` is a name or a uid.
fn of_user(snapshot: &Snapshot, user: &str, node: &str) -> Option<String> {
    let uid = user.parse::<u32>().ok();
    let is_own = |pid: u32| {
        let process = snapshot.processes.iter().find(|process| process.pid == pid);
        let facts = process.and_then(|process| process.facts.as_ref());
        facts.is_some_and(|facts| match uid {
            Some(uid) => facts.uid == Some(uid),
            None => facts.user.as_deref() == Some(user),
        })
    };
    let held: Vec<(&Gpu, Held)> = snapshot
        .gpus
        .iter()
        .filter_map(|gpu| {
            let own = gpu.holders.iter().filter(|holder| is_own(holder.pid));
            let each = own.map(|holder| Held { memory: holder.memory, idle_ms: holder.idle_ms });
            Some((gpu, each.reduce(Held::with)?))
        })
        .collect();
    let all = held.iter().map(|(_, held)| *held).reduce(Held::with)?;
    let size = |memory: Option<u64>| {
        memory.map_or_else(|| "GPU memory".to_owned(), |bytes| Units::Binary.size(bytes))
    };
    let named = held.iter().take(MOST_GPUS).map(|(gpu, held)| {
        let memory =
            if held.memory == all.memory { String::new() } else { format!(" {}", size(held.memory)) };
        let idle = Duration::from_millis(held.idle_ms);
        let idle = if idle.is_zero() { String::new() } else { format!(", idle {}", span(idle)) };
        format!("GPU {}{memory}{idle}", gpu.index)
    });
    let mut named: Vec<String> = named.collect();
    if held.len() > MOST_GPUS {
        named.push(format!("and {} more", held.len() - MOST_GPUS));
    }
    Some(format!("You hold {} on {node}: {}.", size(all.memory), named.join("; ")))
}

/// What one or several processes hold.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Bytes; `None` if that of one is unknown.
    memory: Option<u64>,
    /// Milliseconds for which all are known to be idle.
    idle_ms: u64,
}

impl Held {
    fn with(self, other: Self) -> Self {
        let memory = self.memory.zip(other.memory).map(|(one, other)| one.saturating_add(other));
        Self { memory, idle_ms: self.idle_ms.min(other.idle_ms) }
    }
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::wire::{Facts, Holder, Process};

    use super::*;

    fn snapshot(held: &[(u32, Option<u64>, u64)]) -> Snapshot {
        let gpus = held.iter().enumerate().map(|(index, (pid, memory, idle_ms))| Gpu {
            index: index.to_string(),
            holders: vec![Holder { pid: *pid, memory: *memory, idle_ms: *idle_ms, ..Holder::default() }],
            ..Gpu::default()
        });
        let process = |pid, uid| Process {
            pid,
            facts: Some(Facts {
                uid: Some(uid),
                user: Some(if uid == 1000 { "alice" } else { "bob" }.to_owned()),
                ..Facts::default()
            }),
            ..Process::default()
        };
        let processes = vec![process(7, 1000), process(8, 1001), Process { pid: 9, ..Process::default() }];
        Snapshot { gpus: gpus.collect(), processes, ..Snapshot::default() }
    }

    #[test]
    fn own_memory_is_one_line_and_that_of_others_nothing() {
        let gib = |count: u64| Some(count << 30);
        for (held, expected) in [
            (vec![], None),
            (vec![(8, gib(40), 0), (9, gib(1), 0)], None),
            (vec![(7, gib(40), 10_800_000)], Some("You hold 40.0GiB on n1: GPU 0, idle 3h0m.")),
            (
                vec![(7, gib(40), 0), (8, gib(9), 9), (7, gib(2), 60_000)],
                Some("You hold 42.0GiB on n1: GPU 0 40.0GiB; GPU 2 2.0GiB, idle 1m0s."),
            ),
            (vec![(7, None, 0)], Some("You hold GPU memory on n1: GPU 0.")),
            (
                vec![(7, gib(1), 0); 6],
                Some(
                    "You hold 6.0GiB on n1: GPU 0 1.0GiB; GPU 1 1.0GiB; GPU 2 1.0GiB; GPU 3 1.0GiB; and 2 more.",
                ),
            ),
        ] {
            assert_eq!(of_user(&snapshot(&held), "1000", "n1").as_deref(), expected);
            assert_eq!(of_user(&snapshot(&held), "alice", "n1").as_deref(), expected);
        }
    }
}
