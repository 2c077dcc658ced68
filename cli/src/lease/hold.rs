//! `bailiff lease hold`: what `acquire` leaves behind where this machine keeps the pool. It has the locks and waits; its end
//! frees them.

#![expect(
    clippy::disallowed_methods,
    reason = "starts a copy of itself, which closes descriptors and waits for a process"
)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bailiff_lease::Leases;
use bailiff_lease::holder::LocalHost;
use bailiff_snapshot::stat;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::Failure;
use crate::flags;

/// What is known of a holder.
pub(super) type Whose = Vec<(&'static str, String)>;

/// Leaves somebody behind who keeps a lease, where that is needed, and says so in what is known of the holder.
pub(super) fn leave(
    pool: &mut dyn Leases,
    lease: &str,
    (whose, duration): (&mut Whose, Option<Duration>),
) -> Result<Option<Child>, Failure> {
    let locks = pool.make_inheritable(lease)?;
    if locks.is_empty() {
        return Ok(None);
    }
    let locks: Vec<String> = locks.iter().map(i32::to_string).collect();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bailiff").args(["lease", "hold", lease, "--keep", &locks.join(",")]);
    if let Some(duration) = duration {
        command.arg("--duration").arg(humantime::format_duration(duration).to_string());
        whose.push(("expires", (jiff::Timestamp::now().as_millisecond() + millis(duration)).to_string()));
    } else {
        let field = |wanted| whose.iter().find(|(field, _)| *field == wanted);
        let get = |wanted| field(wanted).map_or("", |(_, value)| value.as_str());
        command.args(["--for", get("pid"), "--start", get("start")]);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let keeper = command.spawn().map_err(|error| Failure::start("bailiff", &error))?;
    for (field, value) in LocalHost::read().holder(keeper.id()) {
        match field {
            "pid" => whose.push(("keeper", value)),
            "start" => whose.push(("keeper_start", value)),
            _ => {}
        }
    }
    Ok(Some(keeper))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Keeps a lease. A signal ends it, and with it the lease.
pub(crate) fn hold(flags: &flags::Hold) -> Result<ExitCode, Failure> {
    // The terminal's signals are for others.
    let _ = rustix::process::setsid();
    close_all_but(&flags.keep)?;
    match (flags.holder, flags.start, flags.duration) {
        (Some(pid), Some(start), _) => until_gone(pid, start)?,
        (_, _, Some(duration)) => until_over(duration),
        _ => return Err(Failure::usage("hold is for acquire to call")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever ran the command that ran us may wait for the end of a pipe, or for a lock.
fn close_all_but(keep: &[i32]) -> std::io::Result<()> {
    let descriptors = fs::read_dir("/proc/self/fd")?.filter_map(Result::ok);
    let numbers = descriptors.filter_map(|descriptor| descriptor.file_name().to_str()?.parse::<i32>().ok());
    let others: Vec<i32> = numbers.filter(|number| *number > 2 && !keep.contains(number)).collect();
    for number in others {
        // The one by which they were listed is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Back when a process has ended; at once where it is another by now.
fn until_gone(pid: u32, start: u64) -> std::io::Result<()> {
    let wanted = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(process) = wanted.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return Ok(());
    };
    let found = fs::read(format!("/proc/{pid}/stat")).ok().and_then(|text| stat::parse(&text));
    if found.is_none_or(|found| found.key.start_ticks != start) {
        return Ok(());
    }
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

fn until_over(duration: Duration) {
    let began = Instant::now();
    while let Some(left) = duration.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
