//! Takes three samples, one per interval, and prints each snapshot as a line of the stream. Arguments:
//! `[LIBRARY] [INTERVAL_MS]`.
#![expect(clippy::disallowed_methods, reason = "an example has no settings but its arguments")]

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use bailiff_sampler::{Launcher, SamplerSettings, Supervisor, launcher, worker};
use bailiff_snapshot::{Snapshot, wire};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(launcher::LAUNCHER_ROLE) => return Ok(launcher::serve()),
        Some(launcher::WORKER_ROLE) => return Ok(worker::serve(None)),
        _ => {}
    }
    let interval = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let settings = SamplerSettings {
        nvml_library: arguments.first().map(Into::into),
        interval: Duration::from_millis(interval),
        ..SamplerSettings::default()
    };
    let mut supervisor = Supervisor::new(Launcher::start(&settings)?, settings.clone());
    let mut last = None;
    for seq in 1..=3 {
        let snapshot =
            Snapshot::between(last.as_ref(), supervisor.sample(seq).ok_or("the launcher has ended")?);
        io::stdout().write_all(&wire::write(&snapshot)?)?;
        last = Some(snapshot);
        std::thread::sleep(settings.interval);
    }
    Ok(ExitCode::SUCCESS)
}
