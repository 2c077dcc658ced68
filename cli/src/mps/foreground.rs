//! A daemon in the foreground, for services and containers: we stay until it ends, ask it to quit when we are told to end, and
//! give its GPUs back.

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

use super::gpus::Changed;
use super::start::Plan;
use super::{alone, show};
use crate::command::Event;
use crate::command::signals::Signals;
use crate::exit::Failure;
use crate::output::print_message;

/// Starts the daemon and stays until it has ended. Others come after it answers, and before its GPUs are given back.
pub(super) fn serve(plan: &Plan<'_>, held: Option<File>) -> Result<ExitCode, Failure> {
    let signals = Signals::block()?;
    let (tell, told) = channel();
    signals.listen(tell)?;
    let changed = Changed::exclusive(&plan.flags.nvidia_smi, &plan.gpus)?;
    let outcome = run(plan, (&signals, &told), held);
    let _alone = alone::lock();
    plan.give_back(changed);
    match outcome? {
        Ended::Well => Ok(ExitCode::SUCCESS),
        Ended::Badly(why) => Err(Failure::unavailable(format!("the daemon has ended: {why}"))),
        Ended::LivesOn => Err(Failure::unavailable("the daemon does not quit, and is left as it is")),
    }
}

enum Ended {
    Well,
    Badly(String),
    LivesOn,
}

fn run(
    plan: &Plan<'_>,
    (signals, told): (&Signals, &Receiver<Event>),
    held: Option<File>,
) -> Result<Ended, Failure> {
    show(&plan.line())?;
    let mut child = spawn(plan, signals)?;
    if let Err(failure) = plan.answers() {
        return match child.try_wait()? {
            Some(status) => Ok(Ended::Badly(status.to_string())),
            None => Err(failure),
        };
    }
    drop(held);
    show("the daemon answers\n")?;
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            // NVIDIA's daemon exits with 1 if a server failed to start, also where it was asked to quit.
            let well = status.success() || (asked && status.code().is_some());
            return Ok(if well { Ended::Well } else { Ended::Badly(status.to_string()) });
        }
        match told.recv() {
            Ok(Event::Signal(signal)) if !told.is_for_command() => {
                asked = true;
                if let Err(error) = plan.control.query(Question::Quit(None))
                    && child.try_wait()?.is_none()
                {
                    print_message(format_args!("the daemon was asked to quit: {}", line(&error.to_string())));
                }
            }
            Ok(_) => {}
            Err(_) => return Ok(Ended::LivesOn),
        }
    }
}

/// In a process group of its own: a key of the terminal is for us, who ask it to quit.
fn spawn(plan: &Plan<'_>, signals: &Signals) -> io::Result<Child> {
    let mut command = Command::new(plan.control.program());
    command.arg(Form::Foreground.flag()).envs(plan.variables.iter().map(|(name, value)| (*name, value)));
    command.stdin(Stdio::null()).process_group(0).current_dir("/");
    // A child inherits what is blocked.
    let ours = signals.mask().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let child = command.spawn();
    ours.thread_set_mask()?;
    child
}
