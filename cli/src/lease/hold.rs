//! `bailiff lease hold`: the background process of `acquire` for a local pool. It owns the locks of the lease until the
//! holder exits; its own exit releases them.

#![expect(
    clippy::disallowed_methods,
    reason = "starts a copy of itself, which closes descriptors and waits for a process"
)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bailiff_lease::Leases;
use bailiff_lease::holder::LocalHost;
use bailiff_proc::{Directory, Pidfd};
use bailiff_snapshot::ProcessKey;

use super::flags;
use crate::exit::Failure;
use crate::output::joined;

/// The recorded fields of a holder.
pub(super) type HolderFields = Vec<(&'static str, String)>;

/// Starts a process that owns the locks of a lease, if the pool needs one, and adds it to the holder's fields.
pub(super) fn spawn_holder(
    pool: &mut dyn Leases,
    lease: &str,
    (holder, duration): (&mut HolderFields, Option<Duration>),
) -> Result<Option<Child>, Failure> {
    let locks = pool.make_inheritable(lease)?;
    if locks.is_empty() {
        return Ok(None);
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bailiff").args(["lease", "hold", lease, "--keep", &joined(locks, ",")]);
    if let Some(duration) = duration {
        command.arg("--duration").arg(humantime::format_duration(duration).to_string());
        holder.push(("expires", (jiff::Timestamp::now().as_millisecond() + millis(duration)).to_string()));
    } else {
        let field = |name| holder.iter().find(|(field, _)| *field == name);
        let get = |name| field(name).map_or("", |(_, value)| value.as_str());
        command.args(["--for", get("pid"), "--start", get("start")]);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = command.spawn().map_err(|error| Failure::start("bailiff", &error))?;
    for (field, value) in LocalHost::read().holder(process.id()) {
        match field {
            "pid" => holder.push(("lock_holder", value)),
            "start" => holder.push(("lock_holder_start", value)),
            _ => {}
        }
    }
    Ok(Some(process))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Holds a lease until its end. A signal ends this process and thereby the lease.
pub(crate) fn hold(flags: &flags::Hold) -> Result<ExitCode, Failure> {
    // A new session does not receive signals from the terminal.
    let _ = rustix::process::setsid();
    close_all_but(&flags.keep)?;
    match (flags.holder, flags.start, flags.duration) {
        (Some(pid), Some(start), _) => wait_for_exit(pid, start)?,
        (_, _, Some(duration)) => sleep_for(duration),
        _ => return Err(Failure::usage("`bailiff lease hold` is internal; use `bailiff lease acquire`")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Closes inherited descriptors, because another process may be waiting for a pipe to close or for a lock.
fn close_all_but(keep: &[i32]) -> std::io::Result<()> {
    let numbers = Directory::open(Path::new("/proc/self/fd"))?.numbers()?;
    let numbers = numbers.into_iter().filter_map(|number| i32::try_from(number).ok());
    for number in numbers.filter(|number| *number > 2 && !keep.contains(number)) {
        // The descriptor of the directory is already closed.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Waits until a process has exited; returns immediately if its pid belongs to another process now.
fn wait_for_exit(pid: u32, start: u64) -> std::io::Result<()> {
    if let Some(process) = Pidfd::of(ProcessKey { pid, start_ticks: start })? {
        process.exited_by(None)?;
    }
    Ok(())
}

fn sleep_for(duration: Duration) {
    let began = Instant::now();
    while let Some(left) = duration.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
