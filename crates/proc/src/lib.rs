//! Reads `/proc`, holds processes by pidfd and reads the clocks. Every read is bounded, returns bytes because names may
//! be invalid UTF-8, and distinguishes a process that is gone from one that cannot be read.

mod below;
pub mod channel;
pub mod clock;
pub mod denied;
mod directory;
mod files;
mod own_thread;
mod patient;
mod pidfd;
mod poll;
mod process;
mod reader;
mod status_reads;
mod subordinate;

pub use below::{is_in_foreign_mount, is_sticky, open_below};
pub use denied::{Attributes, Files, read_through};
pub use directory::{Directory, HeldFile, LATE, ReadError, unless_gone};
pub use patient::{Reads, user_of, with_terminals_of};
pub use pidfd::Pidfd;
pub use poll::{readable, wait};
pub use process::{Descriptor, NO_OWNER, Proc, Process, lives, may_live, namespace_inode, start};
pub use reader::Reader;
pub use status_reads::StatusReads;
pub use subordinate::subordinate_uids;
