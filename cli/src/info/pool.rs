//! The pool of leases beside a look of our own, or of an exporter that was not told of it.

#![expect(clippy::disallowed_methods, reason = "a pool is asked at some time since boot")]

use std::path::Path;
use std::time::Duration;

use bailiff_lease::report::Node;
use bailiff_lease::{LeaseError, Leases, Local, Pool};
use bailiff_snapshot::{Leases as Told, PidNamespace};
use rustix::time::{ClockId, clock_gettime};

use crate::flags::{self, Place};

/// A report does not wait longer for Redis.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pool that may be asked again and again.
pub(super) struct Asked {
    pool: Option<Box<dyn Leases>>,
    node: Node,
    /// Why it does not tell, unless there simply is none.
    pub(super) error: Option<String>,
}

impl Asked {
    /// The pool that the flags and the environment name.
    pub(super) fn open(flags: &flags::Pool, procfs: &Path) -> Self {
        let opened: Result<Box<dyn Leases>, LeaseError> = match flags.place() {
            Place::Redis(address) => {
                Pool::open(address, &flags.prefix, PATIENCE).map(|pool| Box::new(pool) as Box<dyn Leases>)
            }
            Place::LocalHost(directory) => Ok(Box::new(Local::at(directory))),
        };
        let mut asked = Self { pool: None, node: Node::read(procfs, PidNamespace::Unknown), error: None };
        match opened {
            Ok(pool) => asked.pool = Some(pool),
            Err(error) => asked.error = Some(error.to_string()),
        }
        asked
    }

    /// What it tells now.
    pub(super) fn tell(&mut self) -> Option<Told> {
        let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
        match self.pool.as_mut()?.audit() {
            Ok(audit) => {
                self.error = None;
                Some(audit.leases(&self.node, now)).filter(|told| !told.gpus.is_empty())
            }
            Err(LeaseError::Absent(_)) => None,
            Err(error) => {
                self.error = Some(error.to_string());
                None
            }
        }
    }
}
