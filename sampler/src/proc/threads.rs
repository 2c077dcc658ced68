//! A leader that has exited is a zombie; whether its process has ended, its other threads tell.

use bailiff_snapshot::State;
use bailiff_snapshot::stat::{self, Stat};

use super::files::Folder;

/// The state of a process.
pub(crate) fn state(root: &Folder, stat: &Stat, buffer: &mut Vec<u8>) -> State {
    match stat.state {
        State::Zombie if has_live_threads(root, stat.key.pid, buffer) => State::ZombieLeader,
        state => state,
    }
}

fn has_live_threads(root: &Folder, pid: u32, buffer: &mut Vec<u8>) -> bool {
    let Ok(threads) = root.folder(&format!("{pid}/task")).and_then(|tasks| tasks.numbers()) else {
        return false;
    };
    threads.into_iter().filter(|thread| *thread != pid).any(|thread| {
        let line = root.read(&format!("{pid}/task/{thread}/stat"), buffer);
        let state = line.ok().and_then(stat::parse).map(|stat| stat.state);
        state.is_some_and(|state| !matches!(state, State::Zombie | State::Dead))
    })
}
