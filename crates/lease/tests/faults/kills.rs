//! Tests a server that is killed repeatedly under load and restarted with the data that it had written.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bailiff_lease::End;
use bailiff_lease::Leases as _;
use fastrand::Rng;

use crate::clients::{
    HolderModel, acquire, assert_all_idle, create_pool, open, release, renew, retry, ticket, wait_until,
};
use crate::server::Server;

const GPUS: u32 = 4;
const WORKERS: u32 = 8;
/// Holders renew every few milliseconds, but much less often on a busy machine.
const BARRIER: Duration = Duration::from_millis(1500);

struct Load {
    address: String,
    model: HolderModel,
    over: AtomicBool,
    grants: AtomicU32,
}

impl Load {
    /// Acquires and releases leases one after another.
    fn work(&self, number: u32) {
        let mut rng = Rng::with_seed(u64::from(number));
        let mut pool = open(&self.address);
        for turn in 0.. {
            if self.over.load(Relaxed) {
                return;
            }
            let ticket = ticket(&format!("{number}-{turn}"), rng.u32(1..=2));
            let grant = acquire(&mut pool, &ticket);
            self.model.add(&ticket.lease, &grant.gpus);
            for _ in 0..rng.u32(1..4) {
                renew(&mut pool, &ticket, &grant);
                std::thread::park_timeout(Duration::from_millis(rng.u64(0..5)));
            }
            self.grants.fetch_add(1, Relaxed);
            self.model.remove(&ticket.lease, &grant.gpus);
            release(&mut pool, &ticket, &grant);
        }
    }

    fn wait_for_grants(&self, count: u32) {
        let before = self.grants.load(Relaxed);
        wait_until("grants", || (self.grants.load(Relaxed) >= before + count).then_some(()));
    }
}

/// Returns the number of kills: a few, or as many as `make soak` requests.
fn kills() -> u32 {
    std::env::var("BAILIFF_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

fn kill_under_load(settings: &[&str]) {
    let mut server = Server::start(settings);
    let address = server.address();
    create_pool(&address, GPUS, BARRIER);
    let (model, over, grants) = (HolderModel::default(), AtomicBool::new(false), AtomicU32::new(0));
    let load = Load { address, model, over, grants };
    let mut rng = Rng::with_seed(1);
    std::thread::scope(|scope| {
        let load = &load;
        let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(move || load.work(number))).collect();
        for _ in 0..kills() {
            load.wait_for_grants(rng.u32(5..40));
            server.kill();
            server.start_again();
        }
        load.wait_for_grants(WORKERS);
        load.over.store(true, Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    end_lost_releases(&load);
    println!("{settings:?}: {} kills, {} grants", kills(), load.grants.load(Relaxed));
}

/// Ends the leases whose release the server has lost. Their holders have exited, as the node's agent would
/// find.
fn end_lost_releases(load: &Load) {
    let mut pool = open(&load.address);
    for lease in pool.audit().unwrap().leases {
        assert!(load.model.has_ended(&lease.lease), "{lease:?} has no holder");
        println!("forgotten: {}", lease.lease);
        pool.end(&lease.lease, End::dead(&lease), &[]).unwrap();
    }
    wait_until("the barrier to be over", || {
        retry("an audit", || pool.audit()).barrier.is_none().then_some(())
    });
    assert_all_idle(&mut pool);
}

#[test]
fn kills_with_fsync_always_lose_no_gpu() {
    kill_under_load(&["--appendonly", "yes", "--appendfsync", "always"]);
}

#[test]
fn kills_with_fsync_every_second_lose_no_gpu() {
    kill_under_load(&["--appendonly", "yes", "--appendfsync", "everysec"]);
}
