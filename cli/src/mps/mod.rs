//! `bailiff mps`: NVIDIA's MPS on this machine. No daemon, server or client is ever sent a signal: the daemon is asked.

mod alone;
pub(crate) mod flags;
mod foreground;
mod gpus;
pub(crate) mod look;
mod node;
pub(crate) mod report;
mod start;
mod stop;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bailiff_mps::Control;
use bailiff_mps::place::DEFAULT_PIPES;

use crate::exit::Failure;
use flags::{Common, Mps};

/// Does what is said.
pub(crate) fn mps(command: &Mps) -> Result<ExitCode, Failure> {
    let done = match command {
        Mps::Status(flags) => status(flags),
        Mps::Start(flags) => start::start(flags),
        Mps::Stop(flags) => stop::stop(flags),
    };
    // What a daemon says is in it, and anybody's daemon may say anything.
    done.map_err(Failure::harmless)
}

fn status(flags: &flags::Status) -> Result<ExitCode, Failure> {
    // Checked like the other two, but all daemons are shown where none is named.
    flags.common.pipes()?;
    let report = look::look(&flags.common);
    let text = if flags.json {
        let json = serde_json::to_string(&report).map_err(io::Error::from)?;
        format!("{json}\n")
    } else {
        text::text(&report)
    };
    show(&text)?;
    Ok(if report.daemons.iter().all(report::Daemon::answers) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A reader that has gone is no failure.
fn show(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

impl Common {
    /// The one pipe directory that is meant.
    fn pipes(&self) -> Result<PathBuf, Failure> {
        let told = self.pipe_dir.as_deref().or(self.usual_pipe_dir.as_deref());
        let pipes = told.unwrap_or(Path::new(DEFAULT_PIPES));
        if !pipes.is_absolute() {
            return Err(Failure::usage(format!(
                "{} is no pipe directory: it begins with a slash, since others look for it from elsewhere",
                pipes.display()
            )));
        }
        Ok(pipes.components().collect())
    }

    fn control(&self, pipes: &Path) -> Control {
        Control::new(&self.mps_control).at(pipes)
    }
}
