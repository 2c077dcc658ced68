//! The actions that only look, in GPU.py's words.

use bailiff_lease::Pool;

use super::place::Environment;
use super::pool::gpus;
use super::{Failure, say};

/// Does one of `--managed-gpu-count`, `--log`, `--idle`, `--managed`, `--info` and `--active`.
pub(super) fn look(pool: &mut Pool, what: &str, environment: &Environment) -> Result<(), Failure> {
    if what == "--log" {
        return pool.lines()?.iter().try_for_each(|line| say(line));
    }
    let view = pool.view()?;
    match what {
        "--managed-gpu-count" => say(&view.managed.len().to_string()),
        // Spelled so by the original.
        "--idle" => say(&listed("IDDLE", &sorted(view.idle))),
        "--managed" => say(&listed("MANAGED", &sorted(view.managed))),
        "--info" => {
            let count = gpus(environment).map(|gpus| gpus.len());
            let count = count.or_else(|why| view.count.map(|count| count as usize).ok_or(why));
            let count = count.map_err(Failure::Other)?;
            match view.managed.len() {
                0 => say(&format!("GPU total:{count} no managed")),
                managed => say(&format!("GPU total:{count} managed:{managed} idle:{}", view.idle.len())),
            }
        }
        _ => {
            let mut ids: Vec<String> =
                view.managed.into_iter().filter(|id| !view.idle.contains(id)).collect();
            // What is no number comes last.
            ids.sort_by_key(|id| (id.parse().unwrap_or(u64::MAX), id.clone()));
            active(pool, &ids)
        }
    }
}

fn active(pool: &mut Pool, ids: &[String]) -> Result<(), Failure> {
    if ids.is_empty() {
        return say("There are no active GPUs.");
    }
    say(&listed("ACTIVE", ids))?;
    for (id, record) in ids.iter().zip(pool.records(ids)?) {
        say(&match record {
            (Some(pid), Some(time)) => format!("GPU {id} acquired by PID {pid} at {time}"),
            _ => format!("GPU {id} acquired by unknown process."),
        })?;
    }
    Ok(())
}

fn listed(kind: &str, ids: &[String]) -> String {
    format!("There is {} {kind} GPUs, IDs: {}", ids.len(), ids.join(","))
}

/// As texts: 10 comes before 2.
fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}
