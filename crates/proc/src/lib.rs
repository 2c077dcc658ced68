//! Reads `/proc`, holds processes by pidfd and reads the clocks. Every read is bounded, returns bytes because names may
//! be invalid UTF-8, and distinguishes a process that is gone from one that cannot be read.

pub mod clock;
mod directory;
pub mod helper;
mod pidfd;
mod process;

pub use directory::{Attributes, Directory, HeldFile, ReadError, unless_gone};
pub use pidfd::{Pidfd, readable, wait};
pub use process::{Descriptor, Proc, Process, lives, may_live, namespace_inode, start};
