//! `bailiff idle-timeout`, and the program where it is called `gpu_idle_timeout`: a command is ended when it leaves its
//! GPUs idle, with the flags, log and exit codes of `gpu_idle_timeout.py`.

mod end;
mod flags;
mod log;
mod session;
mod settings;
pub(crate) mod visible;
pub(crate) mod watch;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use flags::Stop;
pub(crate) use flags::{EXAMPLES, Flags, HELP};
use session::{Ended, Failure};
use settings::Settings;

use crate::command::signals;
use crate::exit;
use crate::output::print_message;

/// What it is called in its own words.
const NAME: &str = "gpu_idle_timeout";

/// Whether a program that is called by this name is the original's stand-in.
pub(crate) fn is_called(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(".py").unwrap_or(name) == NAME
}

/// Under which name it runs, which says whose exit codes and messages scripts expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `gpu_idle_timeout`: those of the original script.
    Script,
    /// `bailiff idle-timeout`: one line for an error, and a code for each kind.
    Command,
}

/// Does what the words behind the name say.
pub(crate) fn main(name: Name, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    flags::parse(words).map_or_else(|stop| tell(name, stop), |flags| run(name, flags))
}

/// Does what the flags say.
pub(crate) fn run(name: Name, flags: Flags) -> ExitCode {
    let settings = match Settings::try_from(flags) {
        Ok(settings) => settings,
        Err(stop) => return tell(name, stop),
    };
    match session::run(&settings) {
        Ok(Ended::Code(code)) => code.into(),
        Ok(Ended::Signal(number)) => {
            signals::terminate_by(number);
            u8::try_from(128 + number).unwrap_or(1).into()
        }
        Err(Failure::Stop(stop)) => tell(name, stop),
        Err(Failure::Start(failure)) if name == Name::Command => failure.tell(),
        Err(Failure::Start(failure)) => fail(failure),
        Err(Failure::Words(words)) => fail(words),
    }
}

fn fail(why: impl Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{NAME}: {why}");
    ExitCode::FAILURE
}

/// Says why nothing is begun: as the original does, or in one line.
fn tell(name: Name, stop: Stop) -> ExitCode {
    // A reader that has gone (`--help | head`) is no reason to fail otherwise.
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match (name, stop) {
        (_, Stop::Help) => {
            let _ = write!(out, "{HELP}");
            ExitCode::SUCCESS
        }
        (Name::Command, Stop::NoDriver(why)) => exit::Failure::unavailable(why).tell(),
        (Name::Command, Stop::Usage(why) | Stop::Refused(why)) => {
            print_message(format_args!("{}; bailiff idle-timeout --help tells more", why.trim_end_matches('.')));
            ExitCode::from(2)
        }
        (Name::Script, Stop::Usage(why)) => {
            let _ = writeln!(err, "{}\n{NAME}: error: {why}", flags::usage());
            ExitCode::from(2)
        }
        (Name::Script, Stop::Refused(why) | Stop::NoDriver(why)) => {
            let _ = write!(out, "{HELP}").and_then(|()| out.flush());
            let _ = writeln!(err, "\nERROR: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_by_the_originals_name() {
        for (name, called) in [
            ("gpu_idle_timeout", true),
            ("/opt/bin/gpu_idle_timeout.py", true),
            ("./gpu_idle_timeout.py", true),
            ("bailiff", false),
            ("my_gpu_idle_timeout", false),
            ("gpu_idle_timeout/bailiff", false),
        ] {
            assert_eq!(is_called(OsStr::new(name)), called, "{name}");
        }
    }
}
