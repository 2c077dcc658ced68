//! Determines the state of a process whose thread-group leader is a zombie from its other threads.

use bailiff_snapshot::State;
use bailiff_snapshot::stat::{self, Stat};

use super::files::Directory;

/// Returns the state of a process.
pub(crate) fn state(root: &Directory, stat: &Stat, buffer: &mut Vec<u8>) -> State {
    match stat.state {
        State::Zombie => of_zombie(root, stat.key.pid, buffer),
        state => state,
    }
}

/// Returns `Zombie` if no other thread runs, and `DiskSleep` if all running threads are uninterruptible,
/// because SIGKILL waits for them.
fn of_zombie(root: &Directory, pid: u32, buffer: &mut Vec<u8>) -> State {
    let Ok(threads) = root.directory(&format!("{pid}/task")).and_then(|tasks| tasks.numbers()) else {
        return State::Zombie;
    };
    let mut state = State::Zombie;
    for thread in threads.into_iter().filter(|thread| *thread != pid) {
        let line = root.read(&format!("{pid}/task/{thread}/stat"), buffer);
        match line.ok().and_then(stat::parse).map(|stat| stat.state) {
            None | Some(State::Zombie | State::Dead) => {}
            Some(State::DiskSleep) => state = State::DiskSleep,
            Some(_) => return State::ZombieLeader,
        }
    }
    state
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a made-up /proc is written")]
mod tests {
    use super::*;
    use std::fs;

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
            let home = tempfile::tempdir().unwrap();
            let line = |id, state| format!("{id} (x) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7");
            for (thread, state) in (7..).zip(std::iter::once(&'Z').chain(threads)) {
                fs::create_dir_all(home.path().join(format!("7/task/{thread}"))).unwrap();
                fs::write(home.path().join(format!("7/task/{thread}/stat")), line(thread, state)).unwrap();
            }
            let stat = stat::parse(line(7, &'Z').as_bytes()).unwrap();
            let root = Directory::open(home.path()).unwrap();
            assert_eq!(state(&root, &stat, &mut Vec::new()), expected, "{threads:?}");
        }
    }
}
