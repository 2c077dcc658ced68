//! Clients that retry after faults, and a model of the GPUs that they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{End, Grant, Init, LeaseError, Leases, Pool, Released, Ticket, TicketStatus};

/// Time limit for any operation on a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// The timeout of a call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The end of a lease whose holder has exited.
pub(crate) const DEAD: End<'static> = End::Dead { pid: "", start: "", known: false };
/// The time to live of a lease.
pub(crate) const TTL: Duration = Duration::from_mins(1);

/// The holder of each GPU, as the clients see it.
#[derive(Debug, Default)]
pub(crate) struct HolderModel {
    holders: Mutex<BTreeMap<u32, String>>,
    ended: Mutex<BTreeSet<String>>,
}

impl HolderModel {
    pub(crate) fn add(&self, lease: &str, gpus: &[u32]) {
        let mut holders = self.holders.lock().unwrap();
        for gpu in gpus {
            let before = holders.insert(*gpu, lease.to_owned());
            assert_eq!(before, None, "{gpu} has two holders, the second is {lease}");
        }
    }

    pub(crate) fn remove(&self, lease: &str, gpus: &[u32]) {
        let mut holders = self.holders.lock().unwrap();
        for gpu in gpus {
            assert_eq!(holders.remove(gpu).as_deref(), Some(lease));
        }
        self.ended.lock().unwrap().insert(lease.to_owned());
    }

    /// Returns whether the lease's holder has finished with the lease.
    pub(crate) fn has_ended(&self, lease: &str) -> bool {
        self.ended.lock().unwrap().contains(lease)
    }
}

/// Repeats a check until it returns a value.
pub(crate) fn wait_until<T>(what: &str, mut request: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = request() {
            return answer;
        }
        assert!(started.elapsed() < LONG, "waited {LONG:?} for: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Repeats a call as long as its error is temporary.
pub(crate) fn retry<T>(what: &str, mut act: impl FnMut() -> Result<T, LeaseError>) -> T {
    wait_until(what, || match act() {
        Ok(answer) => Some(answer),
        Err(error) if error.passes() => None,
        Err(error) => panic!("{what}: {error}"),
    })
}

pub(crate) fn open(address: &str) -> Pool {
    retry("a connection", || Pool::open(address, "GPU", PATIENCE))
}

/// Creates a pool with this restart barrier.
pub(crate) fn create_pool(address: &str, gpus: u32, barrier: Duration) -> Pool {
    let mut pool = open(address);
    let ids: Vec<(u32, Option<String>)> = (0..gpus).map(|id| (id, None)).collect();
    run_command::<u64>(address, &["HSETNX", "GPU_V2:META", "tok", "0"]);
    assert_eq!(pool.init(&ids, 0, false), Ok(Init::Done(u64::from(gpus))));
    let barrier = barrier.as_millis().to_string();
    run_command::<u64>(address, &["HSET", "GPU_V2:META", "barrier_ms", &barrier]);
    pool
}

/// Sends a command directly to the server, not through a [`Pool`].
pub(crate) fn run_command<T: redis::FromRedisValue>(address: &str, args: &[&str]) -> T {
    let mut connection = redis::Client::open(address).unwrap().get_connection().unwrap();
    let mut command = redis::cmd(args[0]);
    for argument in &args[1..] {
        command.arg(argument);
    }
    command.query(&mut connection).unwrap()
}

pub(crate) fn ticket(lease: &str, want: u32) -> Ticket {
    let mut about = LocalHost::read().holder(std::process::id());
    about.push(("legacy_pid", "0".to_owned()));
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: TTL, nonblock: false, about }
}

/// Requests a lease and waits until it is held.
pub(crate) fn acquire(pool: &mut Pool, ticket: &Ticket) -> Grant {
    let local_host = LocalHost::read();
    match retry("a lease", || pool.wait(ticket, (&local_host, None), |_| {})) {
        TicketStatus::Held(grant) => grant,
        other => panic!("{}: {other:?}", ticket.lease),
    }
}

/// Renews a lease, and checks that it is still held with the same grant.
pub(crate) fn renew(pool: &mut Pool, ticket: &Ticket, grant: &Grant) {
    let status = retry("a renewal", || pool.renew(ticket, grant, TTL));
    assert_eq!(status, TicketStatus::Held(grant.clone()), "{}", ticket.lease);
}

pub(crate) fn release(pool: &mut Pool, ticket: &Ticket, grant: &Grant) {
    let how = retry("an end", || pool.release(&ticket.lease, Some(grant.token), (0, 1)));
    assert_ne!(how, Released::Lost, "{}", ticket.lease);
}

/// Checks that every GPU is idle exactly once, and that there are no leases.
pub(crate) fn assert_all_idle(pool: &mut Pool) {
    let audit = pool.audit().unwrap();
    for gpu in &audit.gpus {
        let places = (gpu.idle, gpu.pot, gpu.bar, gpu.owner.as_ref(), gpu.quarantine.as_ref());
        assert_eq!(places, (1, 0, 0, None, None), "{gpu:?}");
    }
    assert_eq!((audit.leases.len(), audit.queue.len()), (0, 0), "{audit:?}");
}
