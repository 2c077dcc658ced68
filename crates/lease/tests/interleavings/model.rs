//! The model: the GPUs that the clients believe they hold, independent of the state in Redis.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use bailiff_lease::Op;
use fastrand::Rng;

use crate::connection::Connection;

/// The prefix of all keys.
pub(crate) const PREFIX: &str = "GPU";
/// A ttl in milliseconds so long that no lease expires during a run.
pub(crate) const TTL: &str = "600000";
/// Ttl of some tickets in milliseconds. These tickets are always expired until they are renewed.
pub(crate) const SHORT: u32 = 1;

/// A client's kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId {
    pub(crate) ours: bool,
    pub(crate) number: u32,
}

pub(crate) struct Model {
    pub(crate) rng: Rng,
    pub(crate) socket: PathBuf,
    /// The server's `run_id`.
    pub(crate) run: String,
    pub(crate) ids: Vec<String>,
    /// Probability that a legacy client releases a GPU that it does not hold.
    pub(crate) misuse: f64,
    /// Highest number of GPUs that a native client requests.
    pub(crate) most: u32,
    pub(crate) leases: u32,
    pub(crate) holders: BTreeMap<String, BTreeSet<ClientId>>,
    /// GPUs that are still used by processes after the holder of their lease has exited.
    pub(crate) orphans: BTreeSet<String>,
    /// For each GPU, the client of GPU.py that wrote the current record.
    pub(crate) recorded: BTreeMap<String, ClientId>,
    /// Leases that the server had lost and that were reclaimed.
    pub(crate) reclaimed: BTreeSet<String>,
    pub(crate) counts: BTreeMap<&'static str, u32>,
    /// The last steps.
    steps: VecDeque<String>,
}

impl Model {
    pub(crate) fn new(seed: u64, socket: PathBuf, (misuse, most): (f64, u32)) -> Self {
        let ids: Vec<String> = (0..4).map(|id| id.to_string()).collect();
        Self {
            rng: Rng::with_seed(seed),
            run: run_of(&socket),
            socket,
            holders: ids.iter().map(|id| (id.clone(), BTreeSet::new())).collect(),
            ids,
            misuse,
            most,
            leases: 0,
            orphans: BTreeSet::new(),
            recorded: BTreeMap::new(),
            reclaimed: BTreeSet::new(),
            counts: BTreeMap::new(),
            steps: VecDeque::new(),
        }
    }

    pub(crate) fn link(&self) -> Connection {
        Connection::open(&self.socket)
    }

    /// Returns a random selection of GPUs, at least this many.
    pub(crate) fn some(&mut self, least: u32) -> Vec<String> {
        let mut ids = self.ids.clone();
        self.rng.shuffle(&mut ids);
        ids.truncate(self.rng.usize(least as usize..=self.ids.len()));
        ids
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn record(&mut self, client_id: ClientId, what: &str) {
        self.steps.push_back(format!("{client_id:?} {what}"));
        if self.steps.len() > 60 {
            self.steps.pop_front();
        }
    }

    pub(crate) fn add_holder(&mut self, client_id: ClientId, id: &str) {
        self.record(client_id, &format!("takes {id}"));
        self.holders.get_mut(id).expect("a managed GPU").insert(client_id);
    }

    /// Returns whether a client of GPU.py also holds the GPU and has recorded that.
    pub(crate) fn shared(&self, id: &str) -> bool {
        self.recorded.get(id).is_some_and(|other| self.holders[id].contains(other))
    }

    pub(crate) fn remove_holder(&mut self, client_id: ClientId, id: &str) {
        self.record(client_id, &format!("leaves {id}"));
        self.holders.get_mut(id).expect("a managed GPU").remove(&client_id);
    }

    /// Records that processes that the client started keep using its GPUs.
    pub(crate) fn orphan(&mut self, client_id: ClientId) {
        let held =
            self.holders.iter().filter(|(_, holders)| holders.contains(&client_id)).map(|(id, _)| id.clone());
        self.orphans.extend(held.collect::<Vec<String>>());
    }

    /// Records that the client has exited and no longer holds any GPU.
    pub(crate) fn exits(&mut self, client_id: ClientId) {
        self.record(client_id, "exits");
        for holders in self.holders.values_mut() {
            holders.remove(&client_id);
        }
    }

    pub(crate) fn trace(&self) -> String {
        let lines: Vec<&str> = self.steps.iter().map(String::as_str).collect();
        format!("\n  {}", lines.join("\n  "))
    }
}

fn run_of(socket: &Path) -> String {
    let info = Connection::open(socket).request(&["INFO", "server"]).text();
    info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run_id").to_owned()
}

/// Returns the arguments for a script call.
pub(crate) fn call<'a>(op: Op, arguments: &[&'a str]) -> Vec<&'a str> {
    let mut command = vec!["EVAL", op.text(), "1", PREFIX];
    command.extend(arguments);
    command
}
