//! Limit of descriptors, of which each process that the driver lists takes two.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum number of processes whose files are held open. Further processes are read by path.
const MOST_HELD: usize = 8192;
/// Number of descriptors in the table at the start: enough for two files of 1,000 processes.
const RESERVED: i32 = 2048;

/// Raises the descriptor limit, and returns how many processes' two files fit into half of it.
pub(super) fn room() -> usize {
    raise_limit().map_or(MOST_HELD, |most| usize::try_from(most).unwrap_or(MOST_HELD) / 4).min(MOST_HELD)
}

/// Raises the descriptor limit to its maximum, and returns it; `None` if it is unlimited.
fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current }
}

/// Makes the kernel allocate a table for many descriptors. If the process has several threads, each growth of
/// the table waits for all CPUs, about 10 ms; so call this before the driver starts threads.
pub(crate) fn reserve_descriptors() {
    let most = raise_limit().map_or(RESERVED, |most| RESERVED.min(i32::try_from(most).unwrap_or(RESERVED)));
    // The table does not shrink when this descriptor is closed. On failure, the table grows later.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), most - 1));
}
