//! Input of the agent's threads, and how they wait: for events, for the exit of a holder, and for a deadline.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::legacy::WriterEvidence;
use bailiff_proc::{Pidfd, readable};
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::Deadline;
use bailiff_engine::policy::Leases;
use bailiff_engine::view::View;

/// What the agent is to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// The pool; `None` if the policy has none.
    pub leases: Option<Arc<Leases>>,
    /// SHA-256 of the policy, for the audit log.
    pub policy: Arc<str>,
    /// Whether it may act; otherwise it only reports.
    pub acts: bool,
}

/// Input of the threads.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) orders: Orders,
    pub(super) view: Option<Arc<View>>,
    pub(super) stop: bool,
    /// Evidence about clients of `GPU.py`, by GPU.
    pub(super) witnesses: HashMap<String, WriterEvidence>,
}

/// Shared by senders and threads.
#[derive(Debug)]
pub(super) struct Shared {
    mailbox: Mutex<Mailbox>,
    changed: Condvar,
    /// An eventfd that is readable when there is input.
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
        // Fails only if the counter is full, when the eventfd is readable anyway.
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

    /// Waits for input, for the exit of a holder, or for the timeout.
    pub(super) fn wait(&self, holders: &[Pidfd], at_most: Duration) {
        let mut files = vec![self.bell.as_fd()];
        files.extend(holders.iter().map(AsFd::as_fd));
        if readable(&files, Some(Deadline::after(at_most))).is_err() {
            // Out of descriptors or memory: only waits for the timeout.
            drop(readable(&[], Some(Deadline::after(at_most))));
        }
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    /// Waits for other orders or the timeout, without consuming the notification.
    pub(super) fn wait_for_orders(&self, known: &Orders, at_most: Duration) {
        let same = |mailbox: &mut Mailbox| !mailbox.stop && mailbox.orders == *known;
        let waited = self.changed.wait_timeout_while(self.mailbox(), at_most, same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
