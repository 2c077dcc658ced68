//! Drops privileges. A process that is exposed to the network keeps none of them.

use caps::{CapSet, Capability};

/// Drops all capabilities of this thread, and prevents programs that it starts from regaining them. Call it
/// before starting other threads, because capabilities are per thread.
///
/// # Errors
/// If the kernel refuses. The process then still has capabilities that it should not have.
pub fn drop_all() -> Result<(), caps::errors::CapsError> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    let may_bound = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)?;
    if may_bound {
        caps::clear(None, CapSet::Bounding)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::clear(None, set)?;
    }
    Ok(())
}
