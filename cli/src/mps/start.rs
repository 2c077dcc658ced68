//! `bailiff mps start`: sets the compute modes, starts the daemon, and waits for its answer.

use std::process::ExitCode;

use super::compute_mode::ChangedModes;
use super::flags::Start;
use super::plan::plan;
use super::{foreground, lock, show};
use crate::command::signals;
use crate::exit::Failure;

/// Runs `bailiff mps start`.
pub(super) fn start(flags: &Start) -> Result<ExitCode, Failure> {
    if flags.dry_run {
        return plan(flags)?.print().map(|()| ExitCode::SUCCESS);
    }
    let lock = lock::acquire();
    let plan = plan(flags)?;
    if flags.foreground {
        return foreground::serve(&plan, lock);
    }
    // Defers signals: one that ends this process now would leave the compute modes changed.
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
