//! Finds the shell or script that runs this command, as opposed to a short-lived subshell.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;

use bailiff_snapshot::stat;

/// Returns the process that runs this one. Shells fork subshells for `$(…)` and pipes, which exit with their command;
/// for these, the shell that forked them is returned.
pub(super) fn runner() -> Option<u32> {
    let mut runner = parent(std::process::id())?;
    while let Some(parent) = parent(runner).filter(|parent| is_subshell(*parent, runner)) {
        runner = parent;
    }
    Some(runner)
}

/// Returns the command line of a process as text.
pub(super) fn command(pid: u32) -> String {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let args: Vec<_> = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    args.join(" ").trim_end().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    Some(stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?.ppid).filter(|parent| *parent > 1)
}

/// Whether `pid` was forked from `parent` without a later `exec`: both have the same arguments and the same stack
/// start, which the kernel randomizes at each `exec`.
fn is_subshell(parent: u32, pid: u32) -> bool {
    let args = |pid| fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|args| !args.is_empty());
    let same = |first: Option<Vec<u8>>, other| first.is_some() && first == other;
    same(args(pid), args(parent)) && stack(pid).is_some() && stack(pid) == stack(parent)
}

/// Returns `startstack`, field 28 of `/proc/PID/stat`; the kernel reports 0 without the permission to read it.
fn stack(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = line.rsplit_once(')')?.1;
    after.split_ascii_whitespace().nth(28 - 3)?.parse().ok().filter(|start| *start != 0)
}
