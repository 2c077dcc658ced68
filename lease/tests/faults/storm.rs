//! The server is killed under load, again and again, and is restarted on what it had written.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bailiff_lease::End;
use fastrand::Rng;

use crate::people::{Truth, acquire, assert_all_idle, begin, insist, open, release, renew, ticket, until};
use crate::server::Server;

const GPUS: u32 = 4;
const WORKERS: u32 = 8;
/// Renewals come every few milliseconds; on a busy machine that may be much later.
const BARRIER: Duration = Duration::from_millis(1500);

struct Storm {
    address: String,
    truth: Truth,
    over: AtomicBool,
    grants: AtomicU32,
}

impl Storm {
    /// Has GPUs, one time after the other.
    fn work(&self, number: u32) {
        let mut dice = Rng::with_seed(u64::from(number));
        let mut pool = open(&self.address);
        for turn in 0.. {
            if self.over.load(Relaxed) {
                return;
            }
            let ticket = ticket(&format!("{number}-{turn}"), dice.u32(1..=2));
            let grant = acquire(&mut pool, &ticket);
            self.truth.takes(&ticket.lease, &grant.gpus);
            for _ in 0..dice.u32(1..4) {
                renew(&mut pool, &ticket, &grant);
                std::thread::park_timeout(Duration::from_millis(dice.u64(0..5)));
            }
            self.grants.fetch_add(1, Relaxed);
            self.truth.leaves(&ticket.lease, &grant.gpus);
            release(&mut pool, &ticket, &grant);
        }
    }

    fn granted(&self, count: u32) {
        let before = self.grants.load(Relaxed);
        until("grants", || (self.grants.load(Relaxed) >= before + count).then_some(()));
    }
}

/// How many kills: a few, or as many as `make soak` asks for.
fn kills() -> u32 {
    std::env::var("BAILIFF_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

fn storm(settings: &[&str]) {
    let mut server = Server::start(settings);
    let address = server.address();
    begin(&address, GPUS, BARRIER);
    let (truth, over, grants) = (Truth::default(), AtomicBool::new(false), AtomicU32::new(0));
    let storm = Storm { address, truth, over, grants };
    let mut dice = Rng::with_seed(1);
    std::thread::scope(|scope| {
        let storm = &storm;
        let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(move || storm.work(number))).collect();
        for _ in 0..kills() {
            storm.granted(dice.u32(5..40));
            server.kill();
            server.start_again();
        }
        storm.granted(WORKERS);
        storm.over.store(true, Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    settle(&storm);
    println!("{settings:?}: {} kills, {} grants", kills(), storm.grants.load(Relaxed));
}

/// Whoever had released what a server then forgot has ended long ago, as his node would tell.
fn settle(storm: &Storm) {
    let mut pool = open(&storm.address);
    for lease in pool.audit().unwrap().leases {
        assert!(storm.truth.has_ended(&lease.lease), "{lease:?} is nobody's");
        println!("forgotten: {}", lease.lease);
        pool.end(&lease.lease, End::dead(&lease), &[]).unwrap();
    }
    until("the barrier to be over", || insist("an audit", || pool.audit()).barrier.is_none().then_some(()));
    assert_all_idle(&mut pool);
}

#[test]
fn killed_while_it_writes_everything_at_once() {
    storm(&["--appendonly", "yes", "--appendfsync", "always"]);
}

#[test]
fn killed_while_it_writes_every_second() {
    storm(&["--appendonly", "yes", "--appendfsync", "everysec"]);
}
