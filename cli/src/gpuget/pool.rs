//! The actions that change a pool: creating it, releasing a GPU, and deleting it.

use bailiff_lease::compat::{Force, NumberedRelease};
use bailiff_lease::{Init, Pool};

use super::arguments::Arguments;
use super::environment::Environment;
use super::visible::visible;
use super::{Failure, print_line};
use crate::lease::offset;
use crate::python::int;

/// Returns the UUIDs of the GPUs that CUDA sees.
pub(super) fn gpus(environment: &Environment) -> Result<Vec<Option<String>>, String> {
    let uuids = bailiff_sampler::uuids(Some(&environment.library))
        .map_err(|why| format!("cannot list the GPUs ({why})"))?;
    visible(&uuids, environment.visible.as_deref())
}

/// Maximum number of GPUs of a machine; any client of the Redis server can write another number.
const MOST_GPUS: usize = 1024;

/// Creates a pool.
pub(super) fn manage(
    pool: &mut Pool,
    arguments: &Arguments,
    environment: &Environment,
) -> Result<(), Failure> {
    let gpus = match gpus(environment) {
        Ok(gpus) => gpus,
        // Without a driver, the recorded number of GPUs is used.
        Err(why) => match pool.view()?.count {
            Some(count) if count as usize <= MOST_GPUS => vec![None; count as usize],
            Some(count) => return Err(Failure::Other(format!("the pool's record names {count} GPUs"))),
            None => return Err(Failure::Other(why)),
        },
    };
    let numbers = select(arguments, gpus.len())?;
    let with_uuid = |number: u32| (number, gpus.get(number as usize).cloned().flatten());
    let selected: Vec<(u32, Option<String>)> = numbers.into_iter().map(with_uuid).collect();
    match pool.begin((&selected, gpus.len()), offset(), force(arguments, environment))? {
        Init::Done(count) => print_line(&count.to_string()),
        Init::Already(_) => print_line("Objects already initialized, add force to proceed."),
        Init::Held(count) => Err(held(count)),
    }
}

fn force(arguments: &Arguments, environment: &Environment) -> Force {
    match (arguments.has("--force"), environment.force_held) {
        (false, _) => Force::No,
        (true, false) => Force::Over,
        (true, true) => Force::Under,
    }
}

fn held(count: u64) -> Failure {
    let (leased, them) =
        if count == 1 { ("1 GPU is".to_owned(), "it") } else { (format!("{count} GPUs are"), "them") };
    Failure::Other(format!(
        "{leased} leased (see --active or bailiff lease list), and the next client would share {them} with the holder; \
         release {them} first, or set GPU_PY_FORCE=1"
    ))
}

/// Returns the indexes of the GPUs to manage, in the order in which they are pushed.
fn select(arguments: &Arguments, count: usize) -> Result<Vec<u32>, Failure> {
    let all = 0..u32::try_from(count).unwrap_or(u32::MAX);
    if arguments.has("--redis-manage-all") {
        return Ok(all.collect());
    }
    if let Some(list) = arguments.value("--redis-manage").filter(|list| !list.is_empty()) {
        let number = |text: &str| {
            int(text).ok_or_else(|| Failure::Other(format!("--redis-manage: {text:?} is not a number")))
        };
        let listed: Vec<String> = list.split(',').map(number).collect::<Result<_, _>>()?;
        return Ok(all.filter(|number| listed.contains(&number.to_string())).collect());
    }
    let requested = arguments.value("--redis-manage-count").unwrap_or_default();
    let last = requested.parse::<i128>().ok();
    match last.map(usize::try_from) {
        Some(Ok(last)) if last < count => Ok(all.rev().take(last).collect()),
        _ if requested.starts_with('-') => {
            Err(Failure::Other(format!("--redis-manage-count: there are no {requested} GPUs")))
        }
        _ => Err(Failure::Refused(format!(
            "Can not manage more GPUs than available but you requested {requested} out of {count} possible!"
        ))),
    }
}

/// Releases a GPU.
pub(super) fn release(pool: &mut Pool, id: &str) -> Result<(), Failure> {
    match pool.release_by_number(id, (offset(), super::parent()))? {
        NumberedRelease::Released => print_line(&format!("GPU {id} released.")),
        NumberedRelease::Idle => print_line(&format!("GPU {id} is already idle.")),
        NumberedRelease::Unmanaged => print_line(&format!("GPU {id} is not managed.")),
        NumberedRelease::Held(lease) => Err(Failure::Other(format!(
            "GPU {id} is held by the lease {lease}, which ends with its command or by bailiff lease release; it was not freed"
        ))),
        NumberedRelease::Quarantined(why) => {
            Err(Failure::Other(format!("GPU {id} is quarantined ({why}); it was not freed")))
        }
    }
}

/// Deletes the pool.
pub(super) fn delete(pool: &mut Pool, environment: &Environment) -> Result<(), Failure> {
    let force = if environment.force_held { Force::Under } else { Force::No };
    pool.forget(force)?.map_err(held)?;
    print_line("All Redis objects related to GPU management were deleted.")
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{Parsed, parse};
    use super::*;

    #[test]
    fn managed_gpus_are_selected_by_flags() {
        for (args, expected) in [
            ("--redis-manage-all", Ok(vec![0, 1, 2, 3])),
            ("--redis-manage 3,1,9,1,-2", Ok(vec![1, 3])),
            ("--redis-manage 9", Ok(vec![])),
            ("--redis-manage 1,,2", Err("\"\" is not a number")),
            ("--redis-manage 1,x", Err("\"x\" is not a number")),
            ("--redis-manage-count 2", Ok(vec![3, 2])),
            ("--redis-manage-count 4", Err("you requested 4 out of 4 possible!")),
            ("--redis-manage-count 99999999999999999999", Err("99999999999999999999 out of 4")),
            ("--redis-manage-count -1", Err("there are no -1 GPUs")),
        ] {
            let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
            let Ok(Parsed::Action(arguments)) = parse(&args) else { panic!("{args:?}") };
            match (select(&arguments, 4), expected) {
                (Ok(numbers), Ok(expected)) => assert_eq!(numbers, expected, "{args:?}"),
                (Err(Failure::Other(why) | Failure::Refused(why)), Err(expected)) => {
                    assert!(why.contains(expected), "{args:?}: {why}");
                }
                (outcome, expected) => panic!("{args:?}: {outcome:?}, not {expected:?}"),
            }
        }
    }
}
