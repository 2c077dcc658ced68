//! Start of the library: reads the environment and registers the handler for forked children.

use std::ffi::{c_char, c_int};

use crate::{environment, hooks, shared, state};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *const *const c_char, variables: *const *const c_char) {
    // A panic prints nothing and is reported only by the fault counter.
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
    register_fork_handler();
    shared::count_missing_hooks_by(hooks::unknown);
    // SAFETY: the loader passes the environment of the process.
    unsafe { environment::load(variables) };
}

/// Registers the handler for children of `fork` while the library is loaded. If it were registered later,
/// another thread could fork first, and the child would keep its parent's accounts and locks.
fn register_fork_handler() {
    // SAFETY: the handler does only what is permitted in the forked child of a multithreaded process.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// Resets the state in a forked child. The old state is leaked, because another thread may have been
/// writing to it.
extern "C" fn forked() {
    state::forked();
    environment::forked();
    shared::forked();
}
