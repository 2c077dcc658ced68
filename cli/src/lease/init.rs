//! `bailiff lease init`: which GPUs are handed out.

use std::process::ExitCode;

use bailiff_lease::Init;

use super::{gpus, gpus_are, offset, open, redis};
use crate::exit::Failure;
use crate::flags::{self, Place};
use crate::say::{print, say};

/// Begins a pool.
pub(crate) fn init(flags: &flags::Init) -> Result<ExitCode, Failure> {
    let known = bailiff_sampler::uuids(flags.nvml_library.as_deref());
    let chosen: Vec<(u32, Option<String>)> = match (&flags.gpus, known) {
        (None, Ok(uuids)) => (0..).zip(uuids).collect(),
        (None, Err(why)) => {
            return Err(Failure::unavailable(format!(
                "the driver does not tell its GPUs ({why}); name them with --gpus"
            )));
        }
        (Some(list), known) => {
            let numbers = numbers(list)?;
            // Without a driver, programs are told numbers.
            let uuids = known.unwrap_or_default();
            let beyond = numbers.iter().find(|number| !uuids.is_empty() && **number as usize >= uuids.len());
            if let Some(number) = beyond {
                return Err(Failure::usage(format!(
                    "there is no GPU {number}: the driver has {}",
                    uuids.len()
                )));
            }
            let uuid = |number: u32| uuids.get(number as usize).cloned().flatten();
            numbers.into_iter().map(|number| (number, uuid(number))).collect()
        }
    };
    if let Place::Redis(_) = flags.pool.place() {
        for warning in redis(&flags.pool, "has no server")?.health()?.warnings() {
            say(warning);
        }
    }
    let mut pool = open(&flags.pool)?;
    match pool.init(&chosen, offset(), flags.force)? {
        Init::Done(count) => {
            print(&format!("{} handed out\n", gpus_are(count)))?;
        }
        Init::Already(count) => {
            return Err(Failure::usage(format!(
                "it was begun before, with {}; --force begins it again",
                gpus(count)
            )));
        }
        Init::Held(count) => {
            return Err(Failure::busy(format!(
                "{} leased; it is not begun again under their holders",
                gpus_are(count)
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `0,1,4-7`.
fn numbers(list: &str) -> Result<Vec<u32>, Failure> {
    let wrong = || Failure::usage(format!("--gpus: {list:?} is no list of numbers such as 0,1,4-7"));
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let mut numbers = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first || last - first > 1024 {
                    return Err(wrong());
                }
                numbers.extend(first..=last);
            }
            None => numbers.push(number(part)?),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}
