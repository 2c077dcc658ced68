//! For whom a command is run: the shell or script that runs it, and not a copy of it that ends at once.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;

use bailiff_snapshot::stat;

/// The process that runs this one. A shell forks copies of itself for `$(…)` and pipes, which end with what they run:
/// of these the process that they are copies of is meant.
pub(super) fn runner() -> Option<u32> {
    let mut runner = parent(std::process::id())?;
    while let Some(above) = parent(runner).filter(|above| copied(*above, runner)) {
        runner = above;
    }
    Some(runner)
}

/// The command line of a process, for people.
pub(super) fn command(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    Some(stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?.ppid).filter(|parent| *parent > 1)
}

/// Whether one was forked from the other and has run no other program since: they have the same words, and their stacks
/// begin at the same place, which the kernel draws again for each program.
fn copied(from: u32, pid: u32) -> bool {
    let words = |pid| fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|words| !words.is_empty());
    let same = |one: Option<Vec<u8>>, other| one.is_some() && one == other;
    same(words(pid), words(from)) && stack(pid).is_some() && stack(pid) == stack(from)
}

/// `startstack`, field 28 of `/proc/PID/stat`; 0 where we may not know it.
fn stack(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = line.rsplit_once(')')?.1;
    after.split_ascii_whitespace().nth(28 - 3)?.parse().ok().filter(|start| *start != 0)
}
