//! The words both sides speak. A **sample** is what the sources said once; a **snapshot** is a sample
//! joined with the snapshot before. Everything here is pure: text and values in, values out.

pub mod freezer;
pub mod gap;
pub mod gpu;
pub mod identity;
mod label;
pub mod lease;
pub mod memory;
pub mod mps;
pub mod openers;
pub mod place;
pub mod process;
pub mod quota;
pub mod redact;
pub mod sample;
pub mod snapshot;
pub mod source;
pub mod stat;
mod still;
pub mod streak;
pub mod stuck;
pub mod truth;
pub mod unreturned;
pub mod users;
pub mod utilization;
pub mod wire;
pub mod workload;

pub use gap::{Gap, Gaps};
pub use gpu::{About, ComputeMode, Entry, GpuId, GpuSample, Kinds, MigIds, Telemetry};
pub use identity::{BootId, Moment, PidNamespace, ProcessId, ProcessKey};
pub use lease::{Claim, Held, Leases, PoolGpu, Spot};
pub use memory::{Memory, Parts};
pub use mps::{Mps, MpsAnswer, MpsDaemon, MpsFault, MpsFile, MpsLog, MpsServer, MpsStatus};
pub use place::Place;
pub use process::{Facts, Io, Relative, Role, Seen, State};
pub use quota::{Invalid, Quota, QuotaGpu, QuotaProcess};
pub use sample::{Driver, Opener, Openers, Sample};
pub use snapshot::{Gpu, Holder, Process, Snapshot};
pub use source::{Fault, Source, SourceState};
pub use streak::Streak;
pub use stuck::Stuck;
pub use truth::Truth;
pub use unreturned::{Unreturned, Untold};
pub use users::UserTotals;
pub use utilization::{Answer, DeviceSampler, Engines, Reading, UtilSample, Utilization, Why};
pub use workload::Workload;
