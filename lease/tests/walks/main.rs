//! Random walks: clients of ours and of GPU.py on one real Redis, one command a step, killed at any step. After each
//! step it must be true that no GPU has two holders and that none is lost.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test starts a server, waits for it and fails loudly"
)]

mod agent;
mod compat;
mod law;
mod legacy;
mod ours;
mod past;
#[path = "../server/mod.rs"]
mod server;
mod wire;
mod world;

use std::collections::{BTreeMap, VecDeque};

use bailiff_lease::Op;

use compat::Compat;
use law::Law;
use legacy::Legacy;
use ours::Ours;
use past::Past;
use server::Server;
use wire::Link;
use world::{PREFIX, TTL, Who, World, call};

/// Who takes part, and how badly it goes.
#[derive(Debug, Clone, Copy)]
struct Cast {
    ours: u32,
    legacy: u32,
    /// Ours that play by GPU.py's rules.
    compat: u32,
    /// The chance that whoever goes next is killed instead.
    deaths: f64,
    misuse: f64,
    /// So many GPUs one of ours wants at most.
    most: u32,
    /// The server comes back with an older state now and then.
    goes_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Legacy,
    Compat,
}

enum Client {
    Legacy(Legacy),
    Ours(Ours),
    Compat(Compat),
}

/// Somebody whose death the node's agent has yet to notice.
enum Dead {
    Lease(String),
    Legacy(String),
}

struct Walk {
    world: World,
    /// The agent's own connection.
    agent: Link,
    clients: BTreeMap<u32, Client>,
    dead: VecDeque<Dead>,
    law: Law,
    /// The script that audits, and without what it settles before.
    audits: (String, String),
    born: u32,
    quiet: u32,
    past: Past,
}

impl Client {
    fn runnable(&mut self) -> bool {
        match self {
            Self::Legacy(client) => client.runnable(),
            Self::Ours(client) => client.runnable(),
            Self::Compat(client) => client.runnable(),
        }
    }
}

impl Walk {
    fn new(seed: u64, cast: Cast, server: &Server) -> Self {
        let world = World::new(seed, server.socket(), (cast.misuse, cast.most));
        let mut agent = world.link();
        agent.request(&["FLUSHALL"]);
        let mut arguments = vec!["3600", "0"];
        arguments.extend(world.ids.iter().flat_map(|id| [id.as_str(), ""]));
        agent.request(&call(Op::Init, &arguments));
        agent.request(&["HSET", "GPU_V2:META", "barrier_ms", "1"]);
        let law = Law::new(cast.misuse > 0.0, cast.legacy == 0);
        let (clients, dead) = (BTreeMap::new(), VecDeque::new());
        let audit = Op::Audit.text();
        assert_eq!(audit.matches("\nsettle()\n").count(), 1, "it settles once");
        let audits = (audit.to_owned(), audit.replace("\nsettle()\n", "\n"));
        let past = Past::default();
        let mut walk = Self { world, agent, clients, dead, law, audits, born: 0, quiet: 0, past };
        let kinds = [(Kind::Ours, cast.ours), (Kind::Legacy, cast.legacy), (Kind::Compat, cast.compat)];
        for (kind, count) in kinds {
            for _ in 0..count {
                walk.bear(kind);
            }
        }
        walk
    }

    fn bear(&mut self, kind: Kind) {
        self.born += 1;
        let who = Who { ours: kind == Kind::Ours, number: self.born };
        let client = match kind {
            Kind::Ours => Client::Ours(Ours::new(who, &mut self.world)),
            Kind::Legacy => Client::Legacy(Legacy::new(who, &self.world)),
            Kind::Compat => Client::Compat(Compat::new(who, &mut self.world)),
        };
        self.clients.insert(self.born, client);
    }

    /// Redis has taken all that was sent.
    fn settle(&mut self) {
        for _ in 0..2 {
            self.agent.request(&["PING"]);
        }
    }

    fn runnable(&mut self) -> Vec<u32> {
        let clients = self.clients.iter_mut();
        clients.filter_map(|(number, client)| client.runnable().then_some(*number)).collect()
    }

    fn step(&mut self, cast: Cast) {
        self.settle();
        self.open_again();
        match self.world.dice.u32(0..500) {
            0..25 => self.nudge(),
            // The server was another: what is idle is withheld for a moment.
            25 => drop(self.agent.request(&["HSET", "GPU_V2:META", "run", "another"])),
            26..36 => self.orphan_ends(),
            36 if cast.goes_back => self.save(),
            37..40 if cast.goes_back => self.go_back(),
            _ => {}
        }
        let runnable = self.runnable();
        if !self.dead.is_empty() && (runnable.is_empty() || self.world.dice.u32(0..10) == 0) {
            self.notice();
        } else if let Some(number) = self.world.dice.choice(&runnable).copied() {
            self.quiet = 0;
            if self.world.dice.f64() < cast.deaths {
                self.kill(number);
            } else {
                match self.clients.get_mut(&number) {
                    Some(Client::Legacy(client)) => client.step(&mut self.world),
                    Some(Client::Ours(client)) => client.step(&mut self.world),
                    Some(Client::Compat(client)) => client.step(&mut self.world),
                    None => unreachable!("it was there"),
                }
            }
        } else {
            self.look_around();
        }
        self.settle();
        // As it is, and only now and then settled by being looked at.
        let settled = self.world.dice.u32(0..50) == 0;
        let script = if settled { self.audits.0.clone() } else { self.audits.1.clone() };
        let audit = self.agent.request(&["EVAL", &script, "1", PREFIX]).text();
        self.law.hold(&audit, &mut self.world);
    }

    /// All who wait say that they still do.
    fn nudge(&mut self) {
        let waiting = self.clients.iter().filter_map(|(number, client)| match client {
            Client::Ours(client) if client.waits() => Some((*number, client.lease.clone())),
            Client::Compat(client) if client.waits() => Some((*number, client.lease.clone())),
            _ => None,
        });
        for (number, lease) in waiting.collect::<Vec<(u32, String)>>() {
            let answer = self.agent.request(&call(Op::Touch, &[&lease, TTL, ""])).texts();
            // Somebody released what it had not heard of yet.
            if let Some(Client::Compat(client)) = self.clients.get_mut(&number)
                && self.world.misuse > 0.0
                && answer[0] == "released"
            {
                client.ended(&mut self.world);
                continue;
            }
            // It may have been served since, and hear of it only now.
            let well = matches!(answer[0].as_str(), "waiting" | "held");
            let met = self.world.misuse > 0.0 && answer[0] == "conflict";
            assert!(well || met, "{answer:?}{}", self.world.story());
        }
    }

    fn kill(&mut self, number: u32) {
        self.world.count("deaths");
        let client = self.clients.remove(&number).expect("it was there");
        // What a server knows that came back with an older state is not its last lease: whom it leaves behind nobody asks
        // back.
        let silent = matches!(&client, Client::Ours(client) if client.silent());
        let (who, kind) = match &client {
            Client::Ours(client) => {
                self.dead.push_back(Dead::Lease(client.lease.clone()));
                (client.who, Kind::Ours)
            }
            Client::Compat(client) => {
                self.dead.push_back(Dead::Lease(client.lease.clone()));
                (client.who, Kind::Compat)
            }
            Client::Legacy(client) => {
                self.dead.push_back(Dead::Legacy(client.pid()));
                (client.who, Kind::Legacy)
            }
        };
        if who.ours && !silent && self.world.dice.u32(0..3) == 0 {
            self.world.leaves_behind(who);
        }
        self.world.dies(who);
        drop(client);
        self.bear(kind);
    }

    /// All die and are noticed: everything is idle again, once.
    fn end(mut self) -> BTreeMap<&'static str, u32> {
        self.settle();
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let who = match &self.clients[&number] {
                Client::Ours(client) => client.who,
                Client::Compat(client) => client.who,
                Client::Legacy(client) => client.who,
            };
            self.world.dies(who);
        }
        self.clients.clear();
        // What clients had in the air has arrived, and what was withheld is back.
        self.settle();
        self.open_again();
        self.all_quiet();
        while self.agent.request(&["EXISTS", "GPU_V2:BAR"]).text() == "1" {
            self.agent.request(&call(Op::Assign, &[]));
        }
        for lease in self.agent.request(&["ZRANGE", "GPU_V2:EXP", "0", "-1"]).texts() {
            let dead = self.dead_as(&lease);
            self.agent.request(&call(Op::Kill, &[&lease, dead]));
        }
        self.resolve(|_| true);
        self.settle();
        let audit = self.agent.request(&call(Op::Audit, &[])).text();
        let events = self.agent.request(&["LRANGE", "GPU_EVENTS", "0", "-1"]).texts();
        self.law.end(&audit, &events, &self.world);
        self.world.counts
    }
}

/// How many steps a walk has; `make soak` asks for more.
fn steps() -> u32 {
    std::env::var("BAILIFF_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4000)
}

fn walk(cast: Cast) {
    let server = Server::start(&[]);
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..5 {
        let mut walk = Walk::new(seed, cast, &server);
        for _ in 0..steps() {
            walk.step(cast);
        }
        for (what, count) in walk.end() {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{cast:?}: 5 walks of {} steps, {counts:?}", steps());
    assert!(counts.values().sum::<u32>() > 0, "nothing happened");
}

const CALM: Cast =
    Cast { ours: 8, legacy: 0, compat: 0, deaths: 0.0, misuse: 0.0, most: 1, goes_back: false };

#[test]
fn one_gpu_each() {
    walk(CALM);
}

#[test]
fn several_gpus_and_deaths() {
    walk(Cast { most: 3, deaths: 0.03, ..CALM });
}

#[test]
fn back_to_an_older_state() {
    walk(Cast { most: 3, deaths: 0.02, goes_back: true, ..CALM });
}

#[test]
fn side_by_side_with_the_original() {
    walk(Cast { ours: 5, legacy: 4, most: 2, ..CALM });
}

#[test]
fn side_by_side_with_deaths_of_both() {
    walk(Cast { ours: 5, legacy: 4, most: 2, deaths: 0.02, ..CALM });
}

#[test]
fn side_by_side_with_misuse() {
    walk(Cast { ours: 5, legacy: 4, most: 2, misuse: 0.2, ..CALM });
}

#[test]
fn by_the_rules_of_the_original_beside_ours() {
    walk(Cast { ours: 4, compat: 4, most: 2, deaths: 0.02, ..CALM });
}

#[test]
fn by_the_rules_of_the_original_beside_all() {
    walk(Cast { ours: 3, legacy: 3, compat: 3, most: 2, deaths: 0.02, ..CALM });
}

#[test]
fn by_the_rules_of_the_original_with_misuse() {
    walk(Cast { ours: 3, legacy: 3, compat: 3, most: 2, misuse: 0.2, ..CALM });
}
