//! Runs an MPS daemon in the foreground, for services and containers. On a termination signal the daemon is
//! asked to quit. After its exit the compute modes are restored.

#![expect(clippy::disallowed_methods, reason = "starts the daemon")]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};

use bailiff_exposition::terminal::line;
use bailiff_mps::Form;
use bailiff_mps::control::Question;
use nix::sys::signal::SigmaskHow;

use super::compute_mode::ChangedModes;
use super::flags::Start;
use super::plan::{Plan, plan};
use super::{lock, show};
use crate::command::Event;
use crate::command::signals::{self, Signals};
use crate::exit::Failure;
use crate::output::print_message;

/// Starts the daemon and waits for its exit. Releases the lock once the daemon responds, and takes it again to
/// restore the compute modes.
pub(super) fn serve(plan: &Plan<'_>, lock_file: Option<File>) -> Result<ExitCode, Failure> {
    let signals = Signals::block()?;
    let (sender, events) = channel();
    signals.listen(sender)?;
    let changed = ChangedModes::set_exclusive(&plan.flags.nvidia_smi, &plan.gpus)?;
    let outcome = run(plan, (&signals, &events), lock_file);
    let _lock = lock::acquire();
    plan.restore_modes(changed);
    match outcome? {
        DaemonExit::Success => Ok(ExitCode::SUCCESS),
        DaemonExit::Failure(why) => Err(Failure::unavailable(format!("the daemon has exited: {why}"))),
        DaemonExit::StillRunning => Err(Failure::unavailable("the daemon did not quit and is still running")),
    }
}

/// Outcome of running the daemon in the foreground.
enum DaemonExit {
    Success,
    Failure(String),
    StillRunning,
}

fn run(
    plan: &Plan<'_>,
    (signals, events): (&Signals, &Receiver<Event>),
    lock_file: Option<File>,
) -> Result<DaemonExit, Failure> {
    show(&plan.command_line())?;
    let mut child = spawn(plan, signals)?;
    if let Err(failure) = plan.wait_for_answer() {
        return match child.try_wait()? {
            Some(status) => Ok(DaemonExit::Failure(status.to_string())),
            None => Err(failure),
        };
    }
    drop(lock_file);
    show("the daemon is ready\n")?;
    let mut quit_requested = false;
    loop {
        if let Some(status) = child.try_wait()? {
            // NVIDIA's daemon exits with 1 after a server failed to start, even if it was asked to quit.
            let success = status.success() || (quit_requested && status.code().is_some());
            return Ok(if success { DaemonExit::Success } else { DaemonExit::Failure(status.to_string()) });
        }
        match events.recv() {
            Ok(Event::Signal(signal)) if !signal.is_for_command() => {
                quit_requested = true;
                if let Err(error) = plan.control.query(Question::Quit(None))
                    && child.try_wait()?.is_none()
                {
                    print_message(format_args!("cannot stop the daemon: {}", line(&error.to_string())));
                }
            }
            Ok(_) => {}
            Err(_) => return Ok(DaemonExit::StillRunning),
        }
    }
}

/// Starts the daemon in its own process group, so that Ctrl-C reaches only this process.
fn spawn(plan: &Plan<'_>, signals: &Signals) -> io::Result<Child> {
    let mut command = Command::new(plan.control.program());
    command.arg(Form::Foreground.flag()).envs(plan.variables.iter().map(|(name, value)| (*name, value)));
    command.stdin(Stdio::null()).process_group(0).current_dir("/");
    // The daemon inherits the signal mask, so it is spawned with the original one.
    let own_mask = signals.mask().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let child = command.spawn();
    own_mask.thread_set_mask()?;
    child
}

/// Runs `bailiff mps start`.
pub(super) fn start(flags: &Start) -> Result<ExitCode, Failure> {
    if flags.dry_run {
        return plan(flags)?.print().map(|()| ExitCode::SUCCESS);
    }
    let lock = lock::acquire();
    let plan = plan(flags)?;
    if flags.foreground {
        return serve(&plan, lock);
    }
    // Defers signals, because a signal that ends this process now would leave the compute modes changed.
    signals::defer()?;
    let changed = ChangedModes::set_exclusive(&flags.nvidia_smi, &plan.gpus)?;
    let check_signal = || signals::deferred().map_or(Ok(()), |number| Err(Failure::signalled(number)));
    if let Err(failure) = check_signal().and_then(|()| plan.start()) {
        plan.restore_modes(changed);
        return Err(failure);
    }
    show("the daemon is ready; do not set CUDA_VISIBLE_DEVICES for its clients\n")?;
    check_signal().map(|()| ExitCode::SUCCESS)
}
