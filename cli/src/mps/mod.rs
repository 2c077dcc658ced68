//! Runs the `bailiff mps` commands for NVIDIA's MPS (Multi-Process Service). They control daemons through
//! `nvidia-cuda-mps-control` and never send a signal to a daemon, server or client.

mod compute_mode;
pub(crate) mod discover;
pub(crate) mod flags;
mod foreground;
mod lock;
mod node;
mod plan;
pub(crate) mod report;
mod stop;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bailiff_mps::Control;
use bailiff_mps::place::DEFAULT_PIPES;

use crate::exit::Failure;
use crate::output::{json, print_stdout};
use flags::{Common, Mps};

/// Runs an `mps` command.
pub(crate) fn mps(command: &Mps) -> Result<ExitCode, Failure> {
    let result = match command {
        Mps::Status(flags) => status(flags),
        Mps::Start(flags) => foreground::start(flags),
        Mps::Stop(flags) => stop::stop(flags),
    };
    // The message may contain a daemon's reply, and any user may run a daemon.
    result.map_err(Failure::sanitized)
}

fn status(flags: &flags::Status) -> Result<ExitCode, Failure> {
    // Rejects a relative pipe directory, as the other commands do.
    flags.common.pipes()?;
    let report = discover::collect(&flags.common);
    let text = if flags.json { json(&report)? } else { text::render(&report) };
    show(&text)?;
    Ok(if report.daemons.iter().all(report::Daemon::answers) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints to standard output. A closed pipe is not an error.
fn show(text: &str) -> Result<(), Failure> {
    print_stdout(text)?;
    Ok(())
}

impl Common {
    /// Returns the pipe directory: `--pipe-dir`, else `CUDA_MPS_PIPE_DIRECTORY`, else `/tmp/nvidia-mps`.
    fn pipes(&self) -> Result<PathBuf, Failure> {
        let configured = self.pipe_dir.as_deref().or(self.default_pipe_dir.as_deref());
        let pipes = configured.unwrap_or(Path::new(DEFAULT_PIPES));
        if !pipes.is_absolute() {
            return Err(Failure::usage(format!(
                "invalid pipe directory {}: the path must be absolute",
                pipes.display()
            )));
        }
        Ok(pipes.components().collect())
    }

    fn control(&self, pipes: &Path) -> Control {
        Control::new(&self.mps_control).at(pipes)
    }
}
