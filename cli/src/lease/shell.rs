//! Finds the shell or script that runs this command, as opposed to a short-lived subshell.

use bailiff_proc::Proc;

use crate::process_tree::command_line;

/// Returns the process that runs this one. Shells fork subshells for `$(…)` and pipes, which exit with their command;
/// for these, the shell that forked them is returned.
pub(super) fn runner() -> Option<u32> {
    let proc = Proc::own().ok()?;
    let mut runner = parent(&proc, std::process::id())?;
    while let Some(parent) = parent(&proc, runner).filter(|parent| is_subshell(&proc, *parent, runner)) {
        runner = parent;
    }
    Some(runner)
}

/// Returns the command line of a process as text.
pub(super) fn command(pid: u32) -> String {
    command_line(pid).trim_end().to_owned()
}

fn parent(proc: &Proc, pid: u32) -> Option<u32> {
    Some(proc.stat(pid).ok()?.ppid).filter(|parent| *parent > 1)
}

/// Whether `pid` was forked from `parent` without a later `exec`: both have the same arguments and the same stack
/// start, which the kernel randomizes at each `exec`.
fn is_subshell(proc: &Proc, parent: u32, pid: u32) -> bool {
    let args = |pid| proc.bytes(&format!("{pid}/cmdline")).ok().filter(|args| !args.is_empty());
    let same = |first: Option<Vec<u8>>, other| first.is_some() && first == other;
    same(args(pid), args(parent)) && stack(proc, pid).is_some() && stack(proc, pid) == stack(proc, parent)
}

/// Returns `startstack`, field 28 of `/proc/PID/stat`; the kernel reports 0 without the permission to read it.
fn stack(proc: &Proc, pid: u32) -> Option<u64> {
    let line = proc.text(&format!("{pid}/stat")).ok()?;
    let after = line.rsplit_once(')')?.1;
    after.split_ascii_whitespace().nth(28 - 3)?.parse().ok().filter(|start| *start != 0)
}
