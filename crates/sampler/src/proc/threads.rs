//! Determines the state of a process whose thread-group leader is a zombie from its other threads.

use bailiff_proc::{Proc, Process, ReadError};
use bailiff_snapshot::State;
use bailiff_snapshot::stat::Stat;

/// Returns the state of a process.
pub(crate) fn state(proc: &Proc, stat: &Stat) -> State {
    state_by(proc, stat, |process| process.patiently(Process::thread_states))
}

/// Like [`state`]. The process can make that hang.
pub(crate) fn state_blocking(proc: &Proc, stat: &Stat) -> State {
    state_by(proc, stat, Process::thread_states)
}

fn state_by(
    proc: &Proc,
    stat: &Stat,
    states: impl FnOnce(&Process) -> Result<Vec<State>, ReadError>,
) -> State {
    if stat.state != State::Zombie {
        return stat.state;
    }
    match proc.process(stat.key.pid).and_then(|process| states(&process)) {
        Ok(states) => of_zombie(states),
        Err(ReadError::Gone) => State::Zombie,
        Err(_) => State::Unknown,
    }
}

/// Returns `Zombie` if no other thread runs, and `DiskSleep` if all running threads are uninterruptible,
/// because SIGKILL waits for them.
fn of_zombie(mut threads: Vec<State>) -> State {
    threads.retain(|state| !state.ended());
    match threads.as_slice() {
        [] => State::Zombie,
        running if running.iter().all(|state| *state == State::DiskSleep) => State::DiskSleep,
        _ => State::ZombieLeader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_has_ended_is_what_its_threads_are() {
        let cases: [(&[char], State); 6] = [
            (&[], State::Zombie),
            (&['Z', 'X'], State::Zombie),
            (&['S'], State::ZombieLeader),
            (&['D', 'Z', 'S'], State::ZombieLeader),
            (&['D', 'D'], State::DiskSleep),
            (&['Z', 'D'], State::DiskSleep),
        ];
        for (threads, expected) in cases {
            let states = std::iter::once('Z').chain(threads.iter().copied());
            let states = states.map(|letter| State::of_letter(&letter.to_string())).collect();
            assert_eq!(of_zombie(states), expected, "{threads:?}");
        }
    }
}
