//! The thread that is notified when `GPU.py` writes a record, and examines the writer while it still runs.

use std::collections::HashMap;
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::legacy::{Changes, Found, WriterEvidence};
use bailiff_lease::{LeaseError, Pool};

use super::mailbox::{Orders, Shared};
use super::reconcile;

/// Interval at which the orders are checked.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time between two attempts to subscribe.
const AGAIN: Duration = Duration::from_secs(2);
/// Number of GPUs whose records are kept.
const MOST_FRESH: usize = 1024;
/// Number of intervals without input after which the connection is reopened, because it may be dead.
const SILENCE: u32 = 120;

/// Runs until shutdown.
pub(super) fn run(shared: &Shared) {
    let local_host = LocalHost::read();
    let mut reported: Option<LeaseError> = None;
    while !shared.stopped() {
        let orders = shared.orders();
        let watched = match &orders.leases {
            None => Ok(()),
            Some(leases) => {
                reconcile::open(leases).and_then(|pool| watch(pool, (shared, &orders), &local_host))
            }
        };
        if let Err(error) = watched {
            if reported.as_ref() != Some(&error) {
                tracing::debug!(%error, "cannot watch the records for changes; they are examined later");
                reported = Some(error);
            }
            shared.wait_for_orders(&orders, AGAIN);
        } else if orders.leases.is_none() {
            shared.wait_for_orders(&orders, Duration::from_secs(u64::from(u32::MAX)));
        }
    }
}

/// Handles notifications until the orders change or the connection fails.
fn watch(
    mut pool: Pool,
    (shared, orders): (&Shared, &Orders),
    local_host: &LocalHost,
) -> Result<(), LeaseError> {
    let mut changes = pool.changes()?;
    let all: Vec<String> = pool.audit()?.gpus.into_iter().map(|gpu| gpu.id).collect();
    let mut fresh = HashMap::new();
    let mut silent = 0;
    while silent < SILENCE && !shared.stopped() && shared.orders() == *orders {
        match changes.next(INTERVAL, &all)? {
            None => silent += 1,
            Some(gpus) => {
                silent = 0;
                for gpu in gpus {
                    examine(&gpu, (&mut changes, &mut fresh), (shared, orders.acts), local_host)?;
                }
            }
        }
    }
    Ok(())
}

fn examine(
    gpu: &str,
    (changes, fresh): (&mut Changes, &mut HashMap<String, WriterEvidence>),
    (shared, keeps): (&Shared, bool),
    local_host: &LocalHost,
) -> Result<(), LeaseError> {
    let Some(record) = changes.read(gpu)? else {
        fresh.remove(gpu);
        return Ok(());
    };
    let mut witness = WriterEvidence::collect(local_host, &record, Found::Written);
    // A client can write records of any number of GPUs.
    if fresh.len() >= MOST_FRESH {
        fresh.clear();
    }
    // A record is written in two parts, and its process may exit in between.
    if let Some(earlier) = fresh.get(gpu) {
        witness.join(earlier);
    }
    fresh.insert(gpu.to_owned(), witness.clone());
    if keeps {
        changes.pool().store(gpu, &witness)?;
    }
    shared.mailbox().witnesses.insert(gpu.to_owned(), witness);
    Ok(())
}
