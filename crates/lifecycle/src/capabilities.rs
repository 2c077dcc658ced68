//! Capabilities of this program. They are per thread, so they are dropped before other threads are started.

pub use caps::Capability;
use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

/// Drops all capabilities, and prevents programs that this program starts from regaining them.
///
/// # Errors
/// If the kernel refuses. The program then still has capabilities that it should not have.
pub fn drop_all() -> Result<(), CapsError> {
    drop_all_but(&[])
}

/// Like [`drop_all`], but keeps these capabilities.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_all_but(kept: &[Capability]) -> Result<(), CapsError> {
    drop_unless_needed(kept, || false)
}

/// Drops a capability, also for the programs that this program starts.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_one(capability: Capability) -> Result<(), CapsError> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::drop(None, set, capability)?;
    }
    Ok(())
}

/// Like [`drop_all`], but keeps these capabilities if the program does not work without them.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_unless_needed(needed: &[Capability], works: impl FnOnce() -> bool) -> Result<(), CapsError> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    caps::clear(None, CapSet::Ambient)?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    caps::clear(None, CapSet::Inheritable)?;
    caps::clear(None, CapSet::Effective)?;
    let mut kept = CapsHashSet::new();
    if !works() {
        kept = caps::read(None, CapSet::Permitted)?;
        kept.retain(|capability| needed.contains(capability));
    }
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::set(None, CapSet::Effective, &kept)
}
