//! The agent of a node: it looks after a pool of leases in threads of its own, each answer of Redis with a deadline, so
//! that a slow one delays neither a beat nor a decision. It frees what the dead of this host held, or withholds it while
//! somebody is on the GPU, and judges what clients of GPU.py have left behind. Nobody is signalled.

mod acts;
mod desk;
mod evidence;
mod memory;
mod records;
mod round;
mod standing;

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::audit::Audit;
use crate::view::View;

pub use acts::{Act, Result};
pub use desk::Orders;
use desk::{Desk, Shared};
pub(crate) use evidence::busy;
pub(crate) use round::open;
pub use standing::{Judged, News, Standing};

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
    /// Where no thread can be had.
    pub fn start(
        log: Audit,
        host_namespace: bool,
        devices: &str,
    ) -> std::io::Result<(Self, UnboundedReceiver<News>)> {
        let (tell, news) = unbounded_channel();
        let shared = Arc::new(Shared::new()?);
        let (rounds, records, devices) = (Arc::clone(&shared), Arc::clone(&shared), devices.to_owned());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let rounds =
            thread("leases").spawn(move || round::run(&rounds, &log, (&tell, (host_namespace, &devices))))?;
        let mut agent = Self { shared, threads: vec![rounds] };
        agent.threads.push(thread("records").spawn(move || records::run(&records))?);
        Ok((agent, news))
    }

    /// What it is to do from now on.
    pub fn order(&self, orders: Orders) {
        self.desk(|desk| desk.orders = orders);
    }

    /// Each new snapshot: it tells who is on which GPU.
    pub fn seen(&self, view: Arc<View>) {
        self.desk(|desk| desk.view = Some(view));
    }

    /// Ends it: what it has done is written when this returns.
    pub fn finish(&mut self) {
        self.desk(|desk| desk.stop = true);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }

    fn desk(&self, change: impl FnOnce(&mut Desk)) {
        self.shared.change(change);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.finish();
    }
}
