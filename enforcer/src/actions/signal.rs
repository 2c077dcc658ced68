//! Step `signal`: sends a signal to every process of a target, after the same checks as `terminate`.

use super::ActionResult;
use super::client::LetGo;
use super::context::{ActionContext, done};
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::Signal;
use bailiff_engine::verdict::Outcome;

pub(super) fn send(context: &ActionContext<'_>, signal: Signal) -> Result<ActionResult, Refusal> {
    let number = rustix::process::Signal::from_named_raw(signal.number)
        .ok_or_else(|| Refusal::refused(format!("{} cannot be sent", signal.name)))?;
    let mut group = context.gather()?;
    Ok(context.carry_out(|permit| {
        if let Err(refusal) = group.renew_after_a_while() {
            context.note_if_late(&refusal);
            return refusal.into();
        }
        let pids = group.pids().into_iter().filter(|pid| ends(context, *pid, number)).collect();
        match LetGo::default().those_of(context, (&group, pids)) {
            Ok(notes) => group.notes.extend(notes),
            Err(refusal) => return refusal.into(),
        }
        if let Err(refusal) = context.confirm() {
            return refusal.into();
        }
        let sent =
            context.inbox.unless_called_off(context.request.id, || group.send(number, signal.name, permit));
        if let Err(why) = sent {
            return done(Outcome::Cancelled, why, group);
        }
        match group.denied.take() {
            Some(error) => done(Outcome::Failed, format!("not every signal was sent: {error}"), group),
            None if group.sent.iter().all(|sent| sent.result != "sent") => {
                done(Outcome::Gone, "all processes had exited", group)
            }
            None => done(Outcome::Done, "", group),
        }
    }))
}

/// Returns whether a signal may end a process. SIGCONT and signals that only stop do not, nor do SIGUSR1 and
/// SIGUSR2 if the process catches or ignores them.
fn ends(context: &ActionContext<'_>, pid: u32, signal: rustix::process::Signal) -> bool {
    use rustix::process::Signal;
    match signal {
        Signal::CONT | Signal::STOP | Signal::TSTP => false,
        Signal::USR1 | Signal::USR2 => context.proc_table.heeds(pid, signal.as_raw()) != Some(true),
        _ => true,
    }
}
