//! Compares what GPU Bailiff assumes about NVIDIA's driver with a real driver. Starts its own CUDA work, runs the
//! exporter and the enforcer on it, and writes `report.md` and `report.json`. Needs a GPU, the driver, and the
//! programs in the same directory. Does not change the GPU's settings. See `docs/hardware.md` for details.
#![expect(
    clippy::disallowed_methods,
    reason = "a program for one run on one machine: it reads flags, files and clocks, and starts programs"
)]

mod activity;
mod cuda;
mod driver;
mod energy;
mod faults;
mod parts;
mod programs;
mod published;
mod report;
mod rows;
mod run;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::driver::Driver;
use crate::programs::Setting;
use crate::run::Run;

const USAGE: &str =
    "usage: hardware [--out DIR] [--nvml-library FILE] [--devices PREFIX] [--kernel-log FILE] [--interval TIME] [--look-back TIME] [--observe TIME]
                [--rows ID,...]

Compare NVIDIA's driver with what GPU Bailiff assumes about it, on one GPU. Writes DIR/report.md
and DIR/report.json (default: ./hardware-report). --rows tries only these rows.

Exit codes: 0 all rows that were tried agree, 1 one disagrees or the run failed, 64 invalid
flags, 69 no GPU that can be used.";

/// Why there is no report: the exit code and the error.
type Stop = (u8, String);

const FAILED: u8 = 1;
const USAGE_ERROR: u8 = 64;
/// There is no GPU, or no driver for it (`EX_UNAVAILABLE`).
const NO_GPU: u8 = 69;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", work, comm] => return worker::serve(work, comm),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    match flags(&arguments).and_then(run) {
        Ok(disagreements) => u8::from(disagreements > 0).into(),
        Err((code, why)) => {
            eprintln!("hardware: {why}");
            code.into()
        }
    }
}

/// The settings, the directory of the report, and the ids of the rows to try; all if there is none.
type Flags = (Setting, PathBuf, Vec<String>);

fn flags(arguments: &[String]) -> Result<Flags, Stop> {
    let local_host = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let (mut out, mut rows) = (PathBuf::from("hardware-report"), Vec::new());
    let mut setting = Setting {
        programs: local_host.unwrap_or_default(),
        directory: PathBuf::new(),
        nvml: None,
        devices: "/dev/nvidia".to_owned(),
        kernel_log: "/dev/kmsg".into(),
        interval: Duration::from_secs(1),
        look_back: Duration::from_secs(10),
        observe: Duration::from_secs(8),
        uuid: String::new(),
        shares_pid_namespace: false,
    };
    let usage = |why: String| (USAGE_ERROR, format!("{why}\n{USAGE}"));
    for flag in arguments.chunks(2) {
        let [name, value] = flag else { return Err(usage(format!("{} needs a value", flag[0]))) };
        let time = || humantime::parse_duration(value).map_err(|error| usage(format!("{name}: {error}")));
        match name.as_str() {
            "--out" => out = value.into(),
            "--nvml-library" => setting.nvml = Some(value.into()),
            "--kernel-log" => setting.kernel_log = value.into(),
            "--devices" => setting.devices.clone_from(value),
            "--interval" => setting.interval = time()?,
            "--look-back" => setting.look_back = time()?,
            "--observe" => setting.observe = time()?,
            "--rows" => rows = value.split(',').map(str::to_owned).collect(),
            _ => return Err(usage(format!("unknown flag {name}"))),
        }
    }
    if let Some(row) = rows.iter().find(|row| !rows::ROWS.iter().any(|known| known.id == row.as_str())) {
        return Err(usage(format!("no row {row}")));
    }
    Ok((setting, out, rows))
}

/// Writes the report, and returns the number of disagreements.
fn run((mut setting, out, rows): Flags) -> Result<usize, Stop> {
    let no_gpu = |why: &str| (NO_GPU, format!("no NVIDIA GPU: {why}"));
    let driver = Driver::open(setting.nvml.as_deref())
        .map_err(|error| no_gpu(&format!("the driver's library (NVML) cannot be used: {error}")))?;
    let cards = driver.cards();
    let card = cards.iter().min_by_key(|card| (card.mig, card.others)).cloned();
    let card = card.ok_or_else(|| no_gpu("the driver lists none"))?;
    for name in ["bailiff-exporter", "bailiff-enforcer"] {
        if !setting.programs.join(name).exists() {
            return Err((FAILED, format!("{name} is not in {}", setting.programs.display())));
        }
    }
    let directory = tempfile::tempdir().map_err(|error| (FAILED, error.to_string()))?;
    directory.path().clone_into(&mut setting.directory);
    setting.uuid.clone_from(&card.uuid);
    let report = Run::new(setting, driver, card).report(&rows, &out)?;
    print!("{}", report.markdown());
    Ok(report.disagreements())
}
