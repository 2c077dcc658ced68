//! Benchmarks many waiters for one GPU: the cost of waiting in Redis, and of a GPU that is handed from
//! waiter to waiter.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Init, Leases, Pool, Ticket, TicketStatus};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::usage::Usage;
use crate::redis::Redis;
use crate::wait::until;

const PATIENCE: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_mins(1);
/// Twice the interval after which a ticket is renewed.
const OBSERVATION: Duration = Duration::from_secs(20);

/// Measured values.
#[derive(Debug)]
pub struct Crowd {
    /// Redis memory per waiter, in bytes.
    pub bytes_each: u32,
    /// Redis CPU time while all waiters are waiting, as a share of one core.
    pub idle: f64,
    /// Average time from one holder to the next.
    pub handover: Duration,
    /// Redis CPU per handover.
    pub cpu_each: Duration,
    /// Number of waiters that were served before their turn.
    pub out_of_order: usize,
}

/// Starts this many waiters and then serves them.
///
/// # Panics
/// If Redis is not responding.
pub fn crowd(count: usize) -> Crowd {
    raise_limit();
    let redis = Redis::start();
    let mut pool = open(&redis);
    assert_eq!(pool.init(&[(0, None)], 0, false), Ok(Init::Done(1)));
    let holder = ticket(count);
    let Ok(TicketStatus::Held(grant)) = pool.request(&holder) else { panic!("the GPU is idle") };
    // A grant that is not acknowledged passes to the next waiter.
    pool.renew(&holder, &grant, TTL).expect("Redis responds");
    let before = memory(&redis);
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for number in 0..count {
            let (redis, sender) = (&redis, sender.clone());
            let (waits, waiting) = channel();
            scope.spawn(move || wait(redis, number, &waits, &sender));
            waiting.recv().expect("the client is waiting");
        }
        drop(sender);
        let each = u32::try_from(count).expect("a crowd");
        let blocked = format!("blocked_clients:{}\r", 2 * count);
        until("all to stand in the line", || redis.query("INFO clients").contains(&blocked).then_some(()));
        let bytes_each = u32::try_from(memory(&redis) - before).expect("little memory") / each;
        let cpu = Usage::of(&[redis.pid()]).cpu;
        std::thread::park_timeout(OBSERVATION);
        let idle =
            Usage::of(&[redis.pid()]).cpu.saturating_sub(cpu).as_secs_f64() / OBSERVATION.as_secs_f64();
        let (began, cpu) = (Instant::now(), Usage::of(&[redis.pid()]).cpu);
        pool.release(&holder.lease, None, (0, 1)).expect("Redis responds");
        let served: Vec<usize> = receiver.iter().collect();
        Crowd {
            bytes_each,
            idle,
            handover: began.elapsed() / each,
            cpu_each: Usage::of(&[redis.pid()]).cpu.saturating_sub(cpu) / each,
            out_of_order: served.iter().enumerate().filter(|(turn, number)| turn != *number).count(),
        }
    })
}

/// Waits for the GPU, holds it for a moment, and releases it.
fn wait(redis: &Redis, number: usize, waits: &Sender<()>, sender: &Sender<usize>) {
    let (mut pool, ticket, local_host) = (open(redis), ticket(number), LocalHost::read());
    let receiver = |_| {
        let _ = waits.send(());
    };
    let status = pool.wait(&ticket, (&local_host, None), receiver).expect("Redis responds");
    let TicketStatus::Held(grant) = status else { panic!("{status:?}") };
    pool.renew(&ticket, &grant, TTL).expect("Redis responds");
    sender.send(number).expect("a receiver");
    pool.release(&ticket.lease, Some(grant.token), (0, 1)).expect("Redis responds");
}

fn open(redis: &Redis) -> Pool {
    Pool::open(&redis.address(), "GPU", PATIENCE).expect("Redis listens")
}

fn ticket(number: usize) -> Ticket {
    let mut about = LocalHost::read().holder(std::process::id());
    about.push(("legacy_pid", "0".to_owned()));
    Ticket { lease: format!("{number:032x}"), want: 1, priority: 0, ttl: TTL, nonblock: false, about }
}

fn memory(redis: &Redis) -> u64 {
    let receiver = redis.query("INFO memory");
    let used = receiver.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|bytes| bytes.trim().parse().ok()).expect("Redis reports its memory")
}

/// Raises the limit on open files, because each waiter needs two descriptors.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
