//! Who asks for GPUs, goes on whatever happens, and tells the truth about what he believes to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{End, Grant, Init, LeaseError, Leases, Pool, Released, Ticket, TicketStatus};

/// How long anything may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// No answer takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Whoever holds it is dead.
pub(crate) const NOBODY: End<'static> = End::Dead { pid: "", start: "", known: false };
/// A lease.
pub(crate) const TTL: Duration = Duration::from_mins(1);

/// Who believes to hold which GPU.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    holders: Mutex<BTreeMap<u32, String>>,
    ended: Mutex<BTreeSet<String>>,
}

impl Truth {
    pub(crate) fn takes(&self, lease: &str, gpus: &[u32]) {
        let mut holders = self.holders.lock().unwrap();
        for gpu in gpus {
            let before = holders.insert(*gpu, lease.to_owned());
            assert_eq!(before, None, "{gpu} has two holders, the second is {lease}");
        }
    }

    pub(crate) fn leaves(&self, lease: &str, gpus: &[u32]) {
        let mut holders = self.holders.lock().unwrap();
        for gpu in gpus {
            assert_eq!(holders.remove(gpu).as_deref(), Some(lease));
        }
        self.ended.lock().unwrap().insert(lease.to_owned());
    }

    /// Its holder has ended, and says so no more.
    pub(crate) fn has_ended(&self, lease: &str) -> bool {
        self.ended.lock().unwrap().contains(lease)
    }
}

/// Waits until there is an answer, and gives it.
pub(crate) fn until<T>(what: &str, mut request: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = request() {
            return answer;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} for: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Asks again as long as that may help.
pub(crate) fn insist<T>(what: &str, mut act: impl FnMut() -> Result<T, LeaseError>) -> T {
    until(what, || match act() {
        Ok(answer) => Some(answer),
        Err(error) if error.passes() => None,
        Err(error) => panic!("{what}: {error}"),
    })
}

pub(crate) fn open(address: &str) -> Pool {
    insist("a connection", || Pool::open(address, "GPU", PATIENCE))
}

/// A pool of so many GPUs, whose barrier after a restart is short.
pub(crate) fn begin(address: &str, gpus: u32, barrier: Duration) -> Pool {
    let mut pool = open(address);
    let ids: Vec<(u32, Option<String>)> = (0..gpus).map(|id| (id, None)).collect();
    tell::<u64>(address, &["HSETNX", "GPU_V2:META", "tok", "0"]);
    assert_eq!(pool.init(&ids, 0, false), Ok(Init::Done(u64::from(gpus))));
    let barrier = barrier.as_millis().to_string();
    tell::<u64>(address, &["HSET", "GPU_V2:META", "barrier_ms", &barrier]);
    pool
}

/// Says something to the server that no client of ours would.
pub(crate) fn tell<T: redis::FromRedisValue>(address: &str, words: &[&str]) -> T {
    let mut connection = redis::Client::open(address).unwrap().get_connection().unwrap();
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query(&mut connection).unwrap()
}

pub(crate) fn ticket(lease: &str, want: u32) -> Ticket {
    let mut about = LocalHost::read().holder(std::process::id());
    about.push(("legacy_pid", "0".to_owned()));
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: TTL, nonblock: false, about }
}

/// Asks until it is held.
pub(crate) fn acquire(pool: &mut Pool, ticket: &Ticket) -> Grant {
    let local_host = LocalHost::read();
    match insist("a lease", || pool.wait(ticket, (&local_host, None), |_| {})) {
        TicketStatus::Held(grant) => grant,
        other => panic!("{}: {other:?}", ticket.lease),
    }
}

/// Says that it is still held, and that by nobody else.
pub(crate) fn renew(pool: &mut Pool, ticket: &Ticket, grant: &Grant) {
    let status = insist("a renewal", || pool.renew(ticket, grant, TTL));
    assert_eq!(status, TicketStatus::Held(grant.clone()), "{}", ticket.lease);
}

pub(crate) fn release(pool: &mut Pool, ticket: &Ticket, grant: &Grant) {
    let how = insist("an end", || pool.release(&ticket.lease, Some(grant.token), (0, 1)));
    assert_ne!(how, Released::Lost, "{}", ticket.lease);
}

/// Every GPU is idle, once, and nothing else is left.
pub(crate) fn assert_all_idle(pool: &mut Pool) {
    let audit = pool.audit().unwrap();
    for gpu in &audit.gpus {
        let places = (gpu.idle, gpu.pot, gpu.bar, gpu.owner.as_ref(), gpu.quarantine.as_ref());
        assert_eq!(places, (1, 0, 0, None, None), "{gpu:?}");
    }
    assert_eq!((audit.leases.len(), audit.queue.len()), (0, 0), "{audit:?}");
}
