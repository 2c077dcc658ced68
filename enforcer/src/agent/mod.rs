//! A node's lease agent: it maintains a lease pool in threads of its own, each query of Redis with a deadline, so
//! that a slow Redis delays neither a sample nor a decision. It frees the leases of ended processes of this host, quarantines
//! GPUs still in use, and evaluates records left by clients of GPU.py. It signals no process.

mod actions;
mod evidence;
mod mailbox;
mod memory;
mod reconcile;
mod records;
mod status;

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::audit::Audit;
use bailiff_engine::view::View;

pub use actions::{AgentEvent, LeaseAction, Result};
pub(crate) use evidence::busy;
pub use mailbox::Orders;
use mailbox::{Mailbox, Shared};
pub(crate) use reconcile::open;
pub use status::{AgentStatus, Judged};

/// The agent. Once dropped it ends after the answer that it waits for.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts it, with nothing to do yet. `host_namespace` says that the processes of the whole host are to be seen; paths
    /// of device files begin with `devices`, and go on with the minor number.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        log: Audit,
        host_namespace: bool,
        devices: &str,
    ) -> std::io::Result<(Self, UnboundedReceiver<AgentEvent>)> {
        let (sender, events) = unbounded_channel();
        let shared = Arc::new(Shared::new()?);
        let (reconciler, records, devices) = (Arc::clone(&shared), Arc::clone(&shared), devices.to_owned());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let reconciler = thread("leases")
            .spawn(move || reconcile::run(&reconciler, &log, (&sender, (host_namespace, &devices))))?;
        let mut agent = Self { shared, threads: vec![reconciler] };
        agent.threads.push(thread("records").spawn(move || records::run(&records))?);
        Ok((agent, events))
    }

    /// What it is to do from now on.
    pub fn order(&self, orders: Orders) {
        self.mailbox(|mailbox| mailbox.orders = orders);
    }

    /// Passes on each new snapshot, which shows the use of each GPU.
    pub fn seen(&self, view: Arc<View>) {
        self.mailbox(|mailbox| mailbox.view = Some(view));
    }

    /// Ends it: what it has done is written when this returns.
    pub fn finish(&mut self) {
        self.mailbox(|mailbox| mailbox.stop = true);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }

    fn mailbox(&self, change: impl FnOnce(&mut Mailbox)) {
        self.shared.change(change);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.finish();
    }
}
