//! Entry point: runs the exporter, or the sampling worker or its launcher if the first argument names that
//! role.

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Context;
use bailiff_exporter::flags::Flags;
use bailiff_exporter::settings::Settings;
use bailiff_exporter::{kubelet, run};
use bailiff_lifecycle::capabilities::{self, Capability};
use bailiff_lifecycle::exit::{self, Stop};
use bailiff_lifecycle::user::User;
use bailiff_lifecycle::{logs, signals};
use bailiff_sampler::{Launcher, Supervisor, launcher, worker};
use clap::Parser;

const PROGRAM: &str = env!("CARGO_PKG_NAME");

fn main() -> ExitCode {
    match std::env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some(launcher::LAUNCHER_ROLE) => launcher::serve(),
        Some(launcher::WORKER_ROLE) => worker::serve(Some(kubelet::query)),
        _ => exit::report_outcome(PROGRAM, start()).into(),
    }
}

fn start() -> Result<(), Stop> {
    let settings = Settings::try_from(Flags::try_parse()?).map_err(Stop::Usage)?;
    let user = settings.web.user;
    if user.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Stop::Usage(
            "--web.user needs root: only root can start processes of two users".to_owned(),
        ));
    }
    logs::start(settings.logs);
    exit::end_on_panic();
    // The launcher keeps the capabilities that this process drops before it opens network sockets.
    let sampler = settings.sampler.clone();
    if sampler.kernel_log.is_none() {
        capabilities::drop_one(Capability::CAP_SYSLOG).context("cannot drop CAP_SYSLOG")?;
    }
    let launcher = Launcher::start(&sampler).context("cannot start the launcher of sampling workers")?;
    let kept: &[_] = if user.is_some() { &User::CAPABILITIES } else { &[] };
    capabilities::drop_all_but(kept).context("cannot drop capabilities")?;
    let source = Box::new(Supervisor::new(launcher, sampler));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(signals::until_signal(|shutdown| run(settings, source, shutdown)));
    // A hanging disk or client must not delay the exit.
    runtime.shutdown_background();
    let outcome = outcome.context("cannot listen to signals")?;
    Ok(outcome.unwrap_or_else(|| {
        Err(anyhow::anyhow!("interrupted by a second signal before the shutdown was complete"))
    })?)
}
