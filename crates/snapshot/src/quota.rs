//! Shared quota files. Their contents are unverified, because users write them. The driver's memory figures for
//! the same processes are added here.

use serde::{Deserialize, Serialize};

use crate::{ProcessKey, Truth};

crate::label_values! {
/// Why a quota file cannot be used.
pub enum InvalidQuota {
    /// The file cannot be opened or read.
    Unreadable = "unreadable",
    /// Not a regular file: a FIFO, a link, a device.
    NoFile = "no_file",
    /// The file is truncated.
    Short = "short",
    /// The file does not have the contents of a quota file.
    NoQuota = "no_quota",
    /// The file has an unknown version.
    Version = "version",
}
}

/// A shared quota file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Path relative to the quota directory.
    pub name: String,
    /// Why the file cannot be used; `None` if it is valid.
    pub invalid: Option<InvalidQuota>,
    /// GPUs with a row in the file, each once.
    pub gpus: Vec<QuotaGpu>,
    /// Processes with a slot in the file.
    pub processes: Vec<QuotaProcess>,
    /// Number of times that the library could not share the quota or record an allocation.
    pub faults: u64,
    /// Number of calls that were passed through without counting their bytes.
    pub uncounted: u64,
    /// Number of driver functions that the library should intercept and cannot.
    pub hooks_missing: u64,
}

/// A GPU in a quota file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaGpu {
    /// UUID without `GPU-` or `MIG-`.
    pub uuid: String,
    /// Limit in bytes for all processes together; `None` if there is no limit.
    pub limit: Option<u64>,
    /// Bytes in use by all processes together.
    pub used: u64,
    /// Largest number of bytes ever in use by all processes together.
    pub peak: u64,
    /// Number of refused requests.
    pub denied: u64,
    /// Bytes requested by the refused requests.
    pub denied_bytes: u64,
    /// Bytes that the quota's processes hold according to the driver; `None` if not all are reported.
    pub held: Option<u64>,
    /// Bytes that these processes and all others in their containers hold.
    pub held_around: Option<u64>,
}

/// A process in a quota file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaProcess {
    /// Pid and start time on this node, if the process has the file mapped: any user can write a pid into it.
    pub process: Option<ProcessKey>,
    /// Whether the process that the file names is alive.
    pub alive: Truth,
    /// Pid, start tick and PID namespace (inode), as the file names them.
    pub claim: (u32, u64, u64),
    /// Bytes on each GPU, in the order of [`Quota::gpus`].
    pub used: Vec<u64>,
    /// Number of refused requests.
    pub denied: u64,
    /// Number of requests refused since the previous snapshot.
    pub denied_since: Option<u64>,
}

impl QuotaGpu {
    /// Returns whether the row is for the GPU or MIG instance with this UUID.
    pub fn is(&self, id: &str) -> bool {
        id.split_once('-').is_some_and(|(_, uuid)| uuid.eq_ignore_ascii_case(&self.uuid))
    }

    /// Returns the memory that the processes hold according to the driver, as a fraction of the limit.
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    pub fn ratio(&self) -> Option<f64> {
        let limit = self.limit.filter(|limit| *limit > 0)?;
        Some(self.held? as f64 / limit as f64)
    }
}

impl Quota {
    /// Returns the slot of a process.
    pub fn place(&self, key: ProcessKey) -> Option<&QuotaProcess> {
        self.processes.iter().find(|process| process.process == Some(key))
    }

    /// Returns the processes that use the file and hold memory.
    pub fn users(&self) -> impl Iterator<Item = ProcessKey> {
        self.processes.iter().filter_map(|process| process.process)
    }

    /// Returns the bytes of a GPU in use by all processes, except those known to have exited.
    pub fn used_by_the_living(&self, gpu: usize) -> u64 {
        let living = self.processes.iter().filter(|process| process.alive != Truth::False);
        living.filter_map(|process| process.used.get(gpu)).fold(0, |sum, used| sum.saturating_add(*used))
    }
}
