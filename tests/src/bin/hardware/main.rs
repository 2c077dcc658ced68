//! Holds what GPU Bailiff takes for granted of NVIDIA's driver against a real one: starts CUDA work of its own, runs the
//! exporter and the enforcer (dry run) over it, and writes `report.md` and `report.json`. It needs a GPU, the driver and the
//! programs beside it, and changes no setting of the GPU. `docs/hardware.md` has the details.
#![expect(
    clippy::disallowed_methods,
    reason = "a program for one run on one machine: it reads flags, files and clocks, and starts programs"
)]

mod cuda;
mod driver;
mod parts;
mod programs;
mod report;
mod rows;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::driver::Driver;
use crate::programs::Setting;
use crate::report::Report;
use crate::rows::Trial;

const USAGE: &str =
    "usage: hardware [--out DIR] [--nvml-library FILE] [--interval TIME] [--look-back TIME] [--observe TIME]

Runs CUDA work on one GPU, the exporter and the enforcer (dry run) over it, and writes
DIR/report.md and DIR/report.json; DIR is ./hardware-report unless told otherwise.

Exit codes: 0 all rows that were tried agree, 1 one disagrees or the run failed, 64 invalid
flags, 69 no GPU that can be used.";

/// No GPU, or no driver for it (`EX_UNAVAILABLE`).
const NO_GPU: u8 = 69;

/// Why there is no report.
enum Stop {
    Usage(String),
    NoGpu(String),
    Failed(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", work] => return worker::serve(work),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    match flags(&arguments).and_then(|(setting, out)| run(setting, &out)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(Stop::Usage(why)) => fail(&format!("{why}\n{USAGE}"), 64),
        Err(Stop::NoGpu(why)) => fail(&why, NO_GPU),
        Err(Stop::Failed(why)) => fail(&why, 1),
    }
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("hardware: {why}");
    code.into()
}

fn flags(arguments: &[String]) -> Result<(Setting, PathBuf), Stop> {
    let here = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let mut out = PathBuf::from("hardware-report");
    let mut setting = Setting {
        programs: here.unwrap_or_default(),
        folder: PathBuf::new(),
        nvml: None,
        interval: Duration::from_secs(1),
        look_back: Duration::from_secs(10),
        observe: Duration::from_secs(8),
        pids_are_ours: false,
    };
    let mut words = arguments.iter();
    while let Some(name) = words.next() {
        let value = words.next().ok_or_else(|| Stop::Usage(format!("{name} needs a value")))?;
        let time =
            || humantime::parse_duration(value).map_err(|error| Stop::Usage(format!("{name}: {error}")));
        match name.as_str() {
            "--out" => out = value.into(),
            "--nvml-library" => setting.nvml = Some(value.into()),
            "--interval" => setting.interval = time()?,
            "--look-back" => setting.look_back = time()?,
            "--observe" => setting.observe = time()?,
            _ => return Err(Stop::Usage(format!("unknown flag {name}"))),
        }
    }
    Ok((setting, out))
}

/// Writes the report, and gives the number of disagreements.
fn run(mut setting: Setting, out: &Path) -> Result<usize, Stop> {
    let missing = |error| Stop::NoGpu(format!("no NVIDIA GPU: the driver's library (NVML) says: {error}"));
    let driver = Driver::open(setting.nvml.as_deref()).map_err(missing)?;
    let cards = driver.cards();
    let best = cards.iter().min_by_key(|card| (card.mig, card.others));
    let card = best.ok_or_else(|| Stop::NoGpu("no NVIDIA GPU: the driver lists none".to_owned()))?.clone();
    for name in ["bailiff-exporter", "bailiff-enforcer"] {
        if !setting.programs.join(name).exists() {
            return Err(Stop::Failed(format!("{name} is not in {}", setting.programs.display())));
        }
    }
    let folder = tempfile::tempdir().map_err(|error| Stop::Failed(error.to_string()))?;
    folder.path().clone_into(&mut setting.folder);
    let mut report =
        Report { driver: driver.version(), gpu: card.name.clone(), notes: Vec::new(), rows: Vec::new() };
    Trial { setting, driver, card, report: &mut report }.run()?;
    write(&report, out).map_err(|error| Stop::Failed(format!("{}: {error}", out.display())))?;
    print!("{}", report.markdown());
    Ok(report.disagreements())
}

fn write(report: &Report, out: &Path) -> std::io::Result<()> {
    fs::create_dir_all(out)?;
    fs::write(out.join("report.md"), format!("# Hardware report\n\n{}", report.markdown()))?;
    fs::write(out.join("report.json"), format!("{:#}\n", report.json()))
}
