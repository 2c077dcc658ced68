//! Capabilities of this program. They are per thread, so they are dropped before other threads are started.

pub use caps::Capability;
use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

/// Drops all capabilities, and prevents programs that this program starts from regaining them.
///
/// # Errors
/// If the kernel refuses. The program then still has capabilities that it should not have.
pub fn drop_all() -> Result<(), CapsError> {
    keep(&CapsHashSet::new())
}

/// Like [`drop_all`], but root keeps the capabilities other than these, because root's files need some of them.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_all_or_of_root(dropped: &[Capability]) -> Result<(), CapsError> {
    let mut kept = CapsHashSet::new();
    if rustix::process::geteuid().is_root() {
        kept = caps::read(None, CapSet::Permitted)?;
        kept.retain(|capability| !dropped.contains(capability));
    }
    keep(&kept)
}

fn keep(kept: &CapsHashSet) -> Result<(), CapsError> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    caps::clear(None, CapSet::Ambient)?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::read(None, CapSet::Bounding)?.difference(kept) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        let left: CapsHashSet = caps::read(None, set)?.intersection(kept).copied().collect();
        caps::set(None, set, &left)?;
    }
    Ok(())
}
