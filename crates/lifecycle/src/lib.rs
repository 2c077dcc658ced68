//! Common parts of all programs: logs, signals, exit codes, file reads with deadlines, and Unix sockets.

pub mod capabilities;
pub mod control;
pub mod exit;
pub mod file;
pub mod heap;
pub mod logs;
pub mod node;
pub mod permissions;
pub mod signals;
pub mod socket;
pub mod systemd;
pub mod user;
