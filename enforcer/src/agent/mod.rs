//! The node's lease agent. It maintains a lease pool in threads of its own, and every Redis query has a
//! deadline, so that a slow Redis server delays neither samples nor decisions. It releases the leases of exited
//! processes of this host, quarantines GPUs that are still in use, and evaluates records left by clients of
//! `GPU.py`. It does not signal processes.

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

pub use actions::{AgentEvent, LeaseAction, LeaseOutcome};
pub(crate) use evidence::busy;
pub use mailbox::Orders;
use mailbox::Shared;
pub(crate) use reconcile::open;
pub use status::{AgentStatus, Judged};

/// The agent. Dropping it waits for the current Redis query.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts the agent without orders. `host_namespace` says whether all processes of the host are visible;
    /// the paths of device files are `devices` followed by the minor number.
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

    /// Replaces its orders.
    pub fn order(&self, orders: Orders) {
        self.shared.change(|mailbox| mailbox.orders = orders);
    }

    /// Passes on a new snapshot, which shows the use of each GPU.
    pub fn seen(&self, view: Arc<View>) {
        self.shared.change(|mailbox| mailbox.view = Some(view));
    }

    /// Ends the agent; its actions are recorded when this returns.
    pub fn finish(&mut self) {
        self.shared.change(|mailbox| mailbox.stop = true);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.finish();
    }
}
