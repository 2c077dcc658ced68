//! `bailiff lease init`: creates the pool of GPUs to lease.

use std::process::ExitCode;

use bailiff_lease::Init;

use super::flags;
use super::{gpus, gpus_are, offset, open, redis};
use crate::args::Backend;
use crate::exit::{Failure, succeed};
use crate::output::print_message;

/// Creates a pool.
pub(crate) fn init(flags: &flags::Init) -> Result<ExitCode, Failure> {
    let known = bailiff_sampler::uuids(flags.nvml_library.as_deref());
    let chosen: Vec<(u32, Option<String>)> = match (&flags.gpus, known) {
        (None, Ok(uuids)) => (0..).zip(uuids).collect(),
        (None, Err(why)) => {
            return Err(Failure::unavailable(format!(
                "cannot list the driver's GPUs: {why}; specify them with --gpus"
            )));
        }
        (Some(list), known) => {
            let numbers = numbers(list)?;
            // Without a driver, the pool has only indexes.
            let uuids = known.unwrap_or_default();
            let beyond = numbers.iter().find(|number| !uuids.is_empty() && **number as usize >= uuids.len());
            if let Some(number) = beyond {
                return Err(Failure::usage(format!(
                    "there is no GPU {number}; the driver lists {}",
                    uuids.len()
                )));
            }
            let uuid = |number: u32| uuids.get(number as usize).cloned().flatten();
            numbers.into_iter().map(|number| (number, uuid(number))).collect()
        }
    };
    if let Backend::Redis(_) = flags.pool.backend() {
        for warning in redis(&flags.pool, "has no server")?.health()?.warnings() {
            print_message(warning);
        }
    }
    let mut pool = open(&flags.pool)?;
    match pool.init(&chosen, offset(), flags.force)? {
        Init::Done(count) => succeed(&format!("pool created: {}\n", gpus(count))),
        Init::Already(count) => Err(Failure::usage(format!(
            "the pool already exists and has {}; use --force to recreate it",
            gpus(count)
        ))),
        Init::Held(count) => {
            Err(Failure::busy(format!("{} leased; release them before recreating the pool", gpus_are(count))))
        }
    }
}

/// Parses a list such as `0,1,4-7`.
fn numbers(list: &str) -> Result<Vec<u32>, Failure> {
    let invalid =
        || Failure::usage(format!("--gpus: invalid list {list:?}, expected indexes such as 0,1,4-7"));
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| invalid());
    let mut numbers = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first || last - first > 1024 {
                    return Err(invalid());
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
