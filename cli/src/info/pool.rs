//! Reads the lease pool, for direct samples and for an exporter that does not read it.

use std::path::Path;
use std::time::Duration;

use bailiff_lease::report::Node;
use bailiff_lease::{LeaseError, Leases};
use bailiff_proc::clock::since_boot;
use bailiff_snapshot::{Leases as LeaseSample, PidNamespace};

/// Timeout of a Redis query.
const REDIS_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a lease pool repeatedly.
pub(super) struct PoolReader {
    pool: Option<Box<dyn Leases>>,
    node: Node,
    /// Why the last read failed; `None` if there is no pool.
    pub(super) error: Option<String>,
}

impl PoolReader {
    /// Opens the pool selected by flags and environment.
    pub(super) fn open(flags: &crate::args::Pool, procfs: &Path) -> Self {
        let (pool, error) = match flags.open(REDIS_TIMEOUT) {
            Ok(pool) => (Some(pool), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { pool, node: Node::read(procfs, PidNamespace::Unknown), error }
    }

    /// Reads the current leases; `None` if there is no pool or it cannot be read.
    pub(super) fn read(&mut self) -> Option<LeaseSample> {
        match self.pool.as_mut()?.audit() {
            Ok(audit) => {
                self.error = None;
                return Some(audit.leases(&self.node, since_boot())).filter(|leases| !leases.gpus.is_empty());
            }
            Err(LeaseError::Absent(_)) => {}
            Err(error) => self.error = Some(error.to_string()),
        }
        None
    }
}
