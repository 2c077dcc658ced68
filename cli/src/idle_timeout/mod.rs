//! `bailiff idle-timeout`, also started under the name `gpu_idle_timeout`: stops a command whose GPUs stay
//! idle, with the flags, log and exit codes of `gpu_idle_timeout.py`.

pub(crate) mod detector;
mod end;
mod flags;
mod log;
mod session;
mod settings;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use flags::Stop;
pub(crate) use flags::{EXAMPLES, Flags, HELP};
use session::{Failure, SessionEnd};
use settings::IdleTimeoutSettings;

use crate::command::signals;
use crate::exit;
use crate::output::print_message;
use crate::python::usage;

/// The program name in usage and messages.
const NAME: &str = "gpu_idle_timeout";

/// Returns whether the program was started under the name `gpu_idle_timeout`.
pub(crate) fn is_called(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(".py").unwrap_or(name) == NAME
}

/// The name under which the program runs, which selects exit codes and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `gpu_idle_timeout`: exit codes and messages of `gpu_idle_timeout.py`.
    Script,
    /// `bailiff idle-timeout`: one-line errors with an exit code per kind.
    Command,
}

/// Parses the arguments and runs the command.
pub(crate) fn main(name: Name, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    flags::parse(args).map_or_else(|stop| report(name, stop), |flags| run(name, flags))
}

pub(crate) fn run(name: Name, flags: Flags) -> ExitCode {
    let settings = match IdleTimeoutSettings::try_from(flags) {
        Ok(settings) => settings,
        Err(stop) => return report(name, stop),
    };
    match session::run(&settings) {
        Ok(SessionEnd::Code(code)) => code.into(),
        Ok(SessionEnd::Signal(number)) => {
            signals::terminate_by(number);
            u8::try_from(128 + number).unwrap_or(1).into()
        }
        Err(Failure::Stop(stop)) => report(name, stop),
        Err(Failure::Start(failure)) if name == Name::Command => failure.report(),
        Err(Failure::Start(failure)) => fail(failure),
        Err(Failure::Message(message)) => fail(message),
    }
}

fn fail(why: impl Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{NAME}: {why}");
    ExitCode::FAILURE
}

/// Reports why no command is started: with the messages of `gpu_idle_timeout.py`, or in one line.
fn report(name: Name, stop: Stop) -> ExitCode {
    // Write errors such as a closed pipe (`--help | head`) do not change the exit code.
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match (name, stop) {
        (_, Stop::Help) => {
            let _ = write!(out, "{HELP}");
            ExitCode::SUCCESS
        }
        (Name::Command, Stop::NoDriver(why)) => exit::Failure::unavailable(why).report(),
        (Name::Command, Stop::Usage(why) | Stop::Refused(why)) => {
            print_message(format_args!("{}; see bailiff idle-timeout --help", why.trim_end_matches('.')));
            ExitCode::from(2)
        }
        (Name::Script, Stop::Usage(why)) => {
            let _ = writeln!(err, "{}\n{NAME}: error: {why}", usage(HELP));
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
    fn original_name_is_recognized() {
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
