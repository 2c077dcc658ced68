//! Tests random interleavings of our clients and clients of GPU.py on a real Redis server. Each step is one command,
//! and clients can exit at any step. After each step, no GPU may have two holders and no GPU may be lost.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test starts a server, waits for it and fails loudly"
)]

mod agent;
mod compat;
mod connection;
mod invariants;
mod legacy;
mod model;
mod native;
mod rollback;
#[path = "../server/mod.rs"]
mod server;

use std::collections::{BTreeMap, VecDeque};

use bailiff_lease::Op;

use compat::Compat;
use connection::Connection;
use invariants::Invariants;
use legacy::Legacy;
use model::{ClientId, Model, PREFIX, TTL, call};
use native::Native;
use rollback::Rollback;
use server::Server;

/// The clients in a run, and their faults.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    native: u32,
    legacy: u32,
    /// Number of our clients that follow GPU.py's rules.
    compat: u32,
    /// Probability that the next client exits instead of making a step.
    exits: f64,
    misuse: f64,
    /// Highest number of GPUs that a native client requests.
    most: u32,
    /// Whether the server is sometimes rolled back.
    rollbacks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Native,
    Legacy,
    Compat,
}

enum Client {
    Legacy(Legacy),
    Native(Native),
    Compat(Compat),
}

/// A client whose exit the node's agent has not noticed yet.
enum Exited {
    Lease(String),
    Legacy(String),
}

struct Run {
    model: Model,
    /// Connection of the agent.
    agent: Connection,
    clients: BTreeMap<u32, Client>,
    exited: VecDeque<Exited>,
    invariants: Invariants,
    /// The audit script, with and without its call to `settle`.
    audits: (String, String),
    started: u32,
    quiet: u32,
    rollback: Rollback,
}

impl Client {
    fn runnable(&mut self) -> bool {
        match self {
            Self::Legacy(client) => client.runnable(),
            Self::Native(client) => client.runnable(),
            Self::Compat(client) => client.runnable(),
        }
    }
}

impl Run {
    fn new(seed: u64, scenario: Scenario, server: &Server) -> Self {
        let model = Model::new(seed, server.socket(), (scenario.misuse, scenario.most));
        let mut agent = model.link();
        agent.request(&["FLUSHALL"]);
        let mut arguments = vec!["3600", "0"];
        arguments.extend(model.ids.iter().flat_map(|id| [id.as_str(), ""]));
        agent.request(&call(Op::Init, &arguments));
        agent.request(&["HSET", "GPU_V2:META", "barrier_ms", "1"]);
        let invariants = Invariants::new(scenario.misuse > 0.0, scenario.legacy == 0);
        let (clients, exited) = (BTreeMap::new(), VecDeque::new());
        let audit = Op::Audit.text();
        assert_eq!(audit.matches("\nsettle()\n").count(), 1, "audit.lua must call settle once");
        let audits = (audit.to_owned(), audit.replace("\nsettle()\n", "\n"));
        let rollback = Rollback::default();
        let mut run =
            Self { model, agent, clients, exited, invariants, audits, started: 0, quiet: 0, rollback };
        let kinds = [
            (Kind::Native, scenario.native),
            (Kind::Legacy, scenario.legacy),
            (Kind::Compat, scenario.compat),
        ];
        for (kind, count) in kinds {
            for _ in 0..count {
                run.start_client(kind);
            }
        }
        run
    }

    fn start_client(&mut self, kind: Kind) {
        self.started += 1;
        let client_id = ClientId { ours: kind == Kind::Native, number: self.started };
        let client = match kind {
            Kind::Native => Client::Native(Native::new(client_id, &mut self.model)),
            Kind::Legacy => Client::Legacy(Legacy::new(client_id, &self.model)),
            Kind::Compat => Client::Compat(Compat::new(client_id, &mut self.model)),
        };
        self.clients.insert(self.started, client);
    }

    /// Waits until Redis has read everything that was sent.
    fn settle(&mut self) {
        for _ in 0..2 {
            self.agent.request(&["PING"]);
        }
    }

    fn runnable(&mut self) -> Vec<u32> {
        let clients = self.clients.iter_mut();
        clients.filter_map(|(number, client)| client.runnable().then_some(*number)).collect()
    }

    fn step(&mut self, scenario: Scenario) {
        self.settle();
        self.end_barrier();
        match self.model.rng.u32(0..500) {
            0..25 => self.renew_waiting(),
            // The run_id changes, as after a restart: idle GPUs are in the barrier for a moment.
            25 => drop(self.agent.request(&["HSET", "GPU_V2:META", "run", "another"])),
            26..36 => self.orphan_ends(),
            36 if scenario.rollbacks => self.save(),
            37..40 if scenario.rollbacks => self.roll_back(),
            _ => {}
        }
        let runnable = self.runnable();
        if !self.exited.is_empty() && (runnable.is_empty() || self.model.rng.u32(0..10) == 0) {
            self.notice();
        } else if let Some(number) = self.model.rng.choice(&runnable).copied() {
            self.quiet = 0;
            if self.model.rng.f64() < scenario.exits {
                self.exit(number);
            } else {
                match self.clients.get_mut(&number) {
                    Some(Client::Legacy(client)) => client.step(&mut self.model),
                    Some(Client::Native(client)) => client.step(&mut self.model),
                    Some(Client::Compat(client)) => client.step(&mut self.model),
                    None => unreachable!("the client exists"),
                }
            }
        } else {
            self.unblock();
        }
        self.settle();
        // Most audits run without `settle`, so that the audit itself rarely changes the state.
        let settled = self.model.rng.u32(0..50) == 0;
        let script = if settled { self.audits.0.clone() } else { self.audits.1.clone() };
        let audit = self.agent.request(&["EVAL", &script, "1", PREFIX]).text();
        self.invariants.check(&audit, &mut self.model);
    }

    /// Renews all waiting tickets.
    fn renew_waiting(&mut self) {
        let waiting = self.clients.iter().filter_map(|(number, client)| match client {
            Client::Native(client) if client.waits() => Some((*number, client.lease.clone())),
            Client::Compat(client) if client.waits() => Some((*number, client.lease.clone())),
            _ => None,
        });
        for (number, lease) in waiting.collect::<Vec<(u32, String)>>() {
            let answer = self.agent.request(&call(Op::Touch, &[&lease, TTL, ""])).texts();
            // Another client released the GPU before this client received its grant.
            if let Some(Client::Compat(client)) = self.clients.get_mut(&number)
                && self.model.misuse > 0.0
                && answer[0] == "released"
            {
                client.ended(&mut self.model);
                continue;
            }
            // The ticket may have been served since, which the client notices only now.
            let waiting = matches!(answer[0].as_str(), "waiting" | "held");
            let shared = self.model.misuse > 0.0 && answer[0] == "conflict";
            assert!(waiting || shared, "{answer:?}{}", self.model.trace());
        }
    }

    fn exit(&mut self, number: u32) {
        self.model.count("exits");
        let client = self.clients.remove(&number).expect("the client must exist");
        // After a rollback, the server does not know this client's lease, and an orphaned process would not reclaim
        // it. Therefore, such a client does not leave an orphan.
        let silent = matches!(&client, Client::Native(client) if client.silent());
        let (client_id, kind) = match &client {
            Client::Native(client) => {
                self.exited.push_back(Exited::Lease(client.lease.clone()));
                (client.client_id, Kind::Native)
            }
            Client::Compat(client) => {
                self.exited.push_back(Exited::Lease(client.lease.clone()));
                (client.client_id, Kind::Compat)
            }
            Client::Legacy(client) => {
                self.exited.push_back(Exited::Legacy(client.pid()));
                (client.client_id, Kind::Legacy)
            }
        };
        if client_id.ours && !silent && self.model.rng.u32(0..3) == 0 {
            self.model.orphan(client_id);
        }
        self.model.exits(client_id);
        drop(client);
        self.start_client(kind);
    }

    /// Ends all clients, lets the agent notice their exits, and checks that every GPU is idle exactly once.
    fn end(mut self) -> BTreeMap<&'static str, u32> {
        self.settle();
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let client_id = match &self.clients[&number] {
                Client::Native(client) => client.client_id,
                Client::Compat(client) => client.client_id,
                Client::Legacy(client) => client.client_id,
            };
            self.model.exits(client_id);
        }
        self.clients.clear();
        // Wait until all sent commands have arrived, then end the barrier and the quarantines.
        self.settle();
        self.end_barrier();
        self.end_quarantines();
        while self.agent.request(&["EXISTS", "GPU_V2:BAR"]).text() == "1" {
            self.agent.request(&call(Op::Assign, &[]));
        }
        for lease in self.agent.request(&["ZRANGE", "GPU_V2:EXP", "0", "-1"]).texts() {
            let exited = self.kill_reason(&lease);
            self.agent.request(&call(Op::Kill, &[&lease, exited]));
        }
        self.resolve(|_| true);
        self.settle();
        let audit = self.agent.request(&call(Op::Audit, &[])).text();
        let events = self.agent.request(&["LRANGE", "GPU_EVENTS", "0", "-1"]).texts();
        self.invariants.check_end(&audit, &events, &self.model);
        self.model.counts
    }
}

/// Returns the number of steps in a run; `make soak` sets more.
fn steps() -> u32 {
    std::env::var("BAILIFF_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4000)
}

fn run(scenario: Scenario) {
    let server = Server::start(&[]);
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..5 {
        let mut run = Run::new(seed, scenario, &server);
        for _ in 0..steps() {
            run.step(scenario);
        }
        for (what, count) in run.end() {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{scenario:?}: 5 runs of {} steps, {counts:?}", steps());
    assert!(counts.values().sum::<u32>() > 0, "nothing happened");
}

const CALM: Scenario =
    Scenario { native: 8, legacy: 0, compat: 0, exits: 0.0, misuse: 0.0, most: 1, rollbacks: false };

#[test]
fn native_clients_with_one_gpu() {
    run(CALM);
}

#[test]
fn native_clients_with_several_gpus_and_exits() {
    run(Scenario { most: 3, exits: 0.03, ..CALM });
}

#[test]
fn native_clients_with_rollbacks() {
    run(Scenario { most: 3, exits: 0.02, rollbacks: true, ..CALM });
}

#[test]
fn native_and_legacy_clients() {
    run(Scenario { native: 5, legacy: 4, most: 2, ..CALM });
}

#[test]
fn native_and_legacy_clients_with_exits() {
    run(Scenario { native: 5, legacy: 4, most: 2, exits: 0.02, ..CALM });
}

#[test]
fn native_and_legacy_clients_with_misuse() {
    run(Scenario { native: 5, legacy: 4, most: 2, misuse: 0.2, ..CALM });
}

#[test]
fn native_and_compat_clients_with_exits() {
    run(Scenario { native: 4, compat: 4, most: 2, exits: 0.02, ..CALM });
}

#[test]
fn all_kinds_of_clients_with_exits() {
    run(Scenario { native: 3, legacy: 3, compat: 3, most: 2, exits: 0.02, ..CALM });
}

#[test]
fn all_kinds_of_clients_with_misuse() {
    run(Scenario { native: 3, legacy: 3, compat: 3, most: 2, misuse: 0.2, ..CALM });
}
