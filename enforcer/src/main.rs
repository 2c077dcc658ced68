//! Entry point of `bailiff-enforcer`: parses the flags, runs the command and returns the exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use bailiff_enforcer::clock::now;
use bailiff_enforcer::commands;
use bailiff_enforcer::daemon;
use bailiff_enforcer::flags::{Command, Flags, Run};
use bailiff_enforcer::privileged;
use bailiff_enforcer::settings::Settings;
use bailiff_engine::policy;
use bailiff_exposition::terminal::Colors;
use bailiff_lifecycle::exit::{self, Exit, Stop, parse};
use bailiff_lifecycle::{logs, signals};

const PROGRAM: &str = env!("CARGO_PKG_NAME");

fn main() -> ExitCode {
    let outcome = parse::<Flags>(std::env::args_os()).and_then(|flags| start(flags.command));
    match outcome {
        Ok(exit) => exit.into(),
        Err(stop) => exit::report_outcome(PROGRAM, Err(stop)).into(),
    }
}

fn start(command: Command) -> Result<Exit, Stop> {
    let (colors, out) = (Colors::of_stdout(), &mut io::stdout().lock());
    match command {
        Command::Run(flags) => run(*flags)?,
        Command::Check(flags) => return Ok(commands::check::run(&flags, colors, out)?),
        Command::Explain(flags) => commands::explain::run(&flags, colors, out)?,
        Command::Status(flags) => commands::status::run(&flags, now(), (colors, commands::columns()), out)?,
        Command::Pause(flags) => commands::pause::pause(&flags, out)?,
        Command::Resume(flags) => commands::pause::resume(&flags.control, out)?,
        Command::Reload(flags) => return Ok(commands::pause::reload(&flags.control, colors, out)?),
        Command::Test(flags) => return commands::report(commands::test::run(&flags, out)),
        Command::Replay(flags) => {
            return commands::report(commands::replay::run(&flags, now().wall, out));
        }
        Command::Backtest(flags) => {
            return commands::report(commands::backtest::run(&flags, now().wall, out));
        }
        Command::PrivilegedProcess { procfs, devices } => {
            privileged::run(&procfs, devices).context("the privileged process failed")?;
        }
        Command::Schema => writeln!(out, "{:#}", policy::schema()).context("cannot print")?,
    }
    Ok(Exit::Done)
}

fn run(flags: Run) -> Result<(), Stop> {
    let settings = Settings::try_from(flags).map_err(Stop::Usage)?;
    logs::start(settings.logs);
    exit::end_on_panic();
    privileged::separate(&settings.executor)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(signals::until_signal(|shutdown| daemon::run(settings, shutdown)));
    runtime.shutdown_background();
    let outcome = outcome.context("cannot listen to signals")?;
    outcome.unwrap_or_else(|| {
        Err(anyhow::anyhow!("interrupted by a second signal before the shutdown was complete").into())
    })
}
