//! Types that the exporter and the enforcer share. A **sample** is what the sources reported at one time; a
//! **snapshot** is a sample joined with the previous snapshot. Nothing here performs I/O.

#![cfg_attr(not(test), forbid(clippy::disallowed_methods))]

mod between;
pub mod dmem;
pub mod freezer;
pub mod gap;
pub mod gpu;
pub mod health;
mod holder;
pub mod identity;
mod label;
pub mod lease;
pub mod locks;
pub mod lost;
pub mod memory;
pub mod mps;
pub mod place;
pub mod process;
pub mod quota;
mod reading;
pub mod redact;
pub mod sample;
pub mod slurm;
pub mod snapshot;
pub mod source;
pub mod stat;
pub mod status;
pub mod streak;
pub mod stuck;
mod subordinate;
pub mod text_limit;
pub mod truth;
pub mod unlisted;
mod unprintable;
pub mod unreleased;
pub mod utilization;
pub mod wire;
pub mod workload;

pub use gap::{Gap, Gaps};
pub use gpu::{About, ComputeMode, Entry, GpuId, GpuSample, Kinds, MigIds, Telemetry};
pub use health::{ClockEvent, ErrorCounts, Health, MemoryHealth, RecoveryAction, XidClass};
pub use holder::{Holder, Process};
pub use identity::{BootId, Moment, PidNamespace, ProcessId, ProcessKey, millis};
pub use label::{Label, Word};
pub use lease::{Claim, GpuState, Held, Leases, PoolGpu};
pub use lost::{LastListed, LostGpu};
pub use memory::{Memory, MemoryUnknown, Parts};
pub use mps::{Mps, MpsAnswer, MpsDaemon, MpsFault, MpsFile, MpsLog, MpsRejection, MpsServer, MpsStatus};
pub use place::Place;
pub use process::{Facts, Io, Relative, Role, Seen, State};
pub use quota::{InvalidQuota, Quota, QuotaGpu, QuotaProcess};
pub use reading::{Answer, DeviceSampler, Engines, Reading, UtilSample};
pub use sample::{DeviceProcess, DeviceProcesses, Driver, Sample};
pub use slurm::{Allocation, AllocationState, SlurmNode, SlurmSample};
pub use snapshot::{Gpu, Snapshot, UserTotals, user_label};
pub use source::{Fault, Source, SourceState};
pub use status::Status;
pub use streak::Streak;
pub use stuck::Stuck;
pub use subordinate::{FIRST_USER, SUBORDINATE_UIDS, SubordinateUids};
pub use truth::Truth;
pub use unprintable::is_unprintable;
pub use unreleased::{UnknownReason, Unreleased};
pub use utilization::{Utilization, Why};
pub use workload::Workload;
