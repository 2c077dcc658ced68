//! Leases of GPU.py's clients. Their records contain only a pid and a time, and the pid is often that of a subshell
//! that has exited since. The node's agent therefore stores evidence about the writing process while that process is
//! still running.

mod changes;
mod evidence;
mod judgement;

pub use changes::Changes;
pub use evidence::{Found, WriterEvidence};
pub use judgement::{Case, Judgement, Limits, Taker, Use, evaluate};
