//! What the agent's threads receive, and how they wait: for events, for the end of a holder, and for a deadline.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::legacy::WriterEvidence;
use rustix::event::{EventfdFlags, eventfd};

use crate::actions::pidfd::{Handle, readable};
use crate::clock::Deadline;
use bailiff_engine::policy::Leases;
use bailiff_engine::view::View;

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// The pool; none if the policy names none.
    pub leases: Option<Arc<Leases>>,
    /// SHA-256 of the policy, for the audit log.
    pub policy: Arc<str>,
    /// It may act; otherwise it only reports.
    pub acts: bool,
}

/// Everything that the threads receive.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) orders: Orders,
    pub(super) view: Option<Arc<View>>,
    pub(super) stop: bool,
    /// What was seen of clients of GPU.py's, by GPU.
    pub(super) witnesses: HashMap<String, WriterEvidence>,
}

/// Shared by the senders and the threads.
#[derive(Debug)]
pub(super) struct Shared {
    mailbox: Mutex<Mailbox>,
    changed: Condvar,
    /// Readable when there is news.
    bell: OwnedFd,
}

impl Shared {
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { mailbox: Mutex::default(), changed: Condvar::new(), bell })
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Mailbox)) {
        change(&mut self.mailbox());
        self.changed.notify_all();
        // A bell that rings already cannot ring more.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn orders(&self) -> Orders {
        self.mailbox().orders.clone()
    }

    pub(super) fn stopped(&self) -> bool {
        self.mailbox().stop
    }

    /// Waits for news, for the end of one of them, or until the time is up.
    pub(super) fn wait(&self, holders: &[Handle], at_most: Duration) {
        let mut files = vec![self.bell.as_fd()];
        files.extend(holders.iter().map(AsFd::as_fd));
        if readable(&files, Some(Deadline::after(at_most))).is_err() {
            // Too many files, or no memory: the time alone.
            drop(readable(&[], Some(Deadline::after(at_most))));
        }
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    /// Waits until there are other orders or the time is up, without taking the bell from anybody.
    pub(super) fn wait_for_orders(&self, known: &Orders, at_most: Duration) {
        let same = |mailbox: &mut Mailbox| !mailbox.stop && mailbox.orders == *known;
        let waited = self.changed.wait_timeout_while(self.mailbox(), at_most, same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
