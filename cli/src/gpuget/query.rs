//! The read-only actions, with the output texts of GPU.py.

use bailiff_lease::Pool;

use super::environment::Environment;
use super::pool::gpus;
use super::{Failure, print_line};

/// Runs `--managed-gpu-count`, `--log`, `--idle`, `--managed`, `--info` or `--active`.
pub(super) fn query(pool: &mut Pool, flag: &str, environment: &Environment) -> Result<(), Failure> {
    if flag == "--log" {
        return pool.lines()?.iter().try_for_each(|line| print_line(line));
    }
    let view = pool.view()?;
    match flag {
        "--managed-gpu-count" => print_line(&view.managed.len().to_string()),
        // The original has this spelling.
        "--idle" => print_line(&id_list("IDDLE", &sorted(view.idle))),
        "--managed" => print_line(&id_list("MANAGED", &sorted(view.managed))),
        "--info" => {
            let count = gpus(environment).map(|gpus| gpus.len());
            let count = count.or_else(|why| view.count.map(|count| count as usize).ok_or(why));
            let count = count.map_err(Failure::Other)?;
            match view.managed.len() {
                0 => print_line(&format!("GPU total:{count} no managed")),
                managed => {
                    print_line(&format!("GPU total:{count} managed:{managed} idle:{}", view.idle.len()))
                }
            }
        }
        _ => {
            let mut ids: Vec<String> =
                view.managed.into_iter().filter(|id| !view.idle.contains(id)).collect();
            // Ids that are not numbers come last.
            ids.sort_by_key(|id| (id.parse().unwrap_or(u64::MAX), id.clone()));
            active(pool, &ids)
        }
    }
}

fn active(pool: &mut Pool, ids: &[String]) -> Result<(), Failure> {
    if ids.is_empty() {
        return print_line("There are no active GPUs.");
    }
    print_line(&id_list("ACTIVE", ids))?;
    for (id, record) in ids.iter().zip(pool.records(ids)?) {
        print_line(&match record {
            (Some(pid), Some(time)) => format!("GPU {id} acquired by PID {pid} at {time}"),
            _ => format!("GPU {id} acquired by unknown process."),
        })?;
    }
    Ok(())
}

fn id_list(kind: &str, ids: &[String]) -> String {
    format!("There is {} {kind} GPUs, IDs: {}", ids.len(), ids.join(","))
}

/// Sorts as text, as the original does: 10 comes before 2.
fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}
