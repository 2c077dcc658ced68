//! What is true, whatever Redis says: who believes to hold which GPU.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use bailiff_lease::Op;
use fastrand::Rng;

use crate::wire::Link;

/// The prefix of all keys.
pub(crate) const PREFIX: &str = "GPU";
/// Nothing expires by itself in a walk.
pub(crate) const TTL: &str = "600000";
/// Some tickets are good for so many milliseconds, and are then not heard of until somebody asks.
pub(crate) const SHORT: u32 = 1;

/// A client's kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) ours: bool,
    pub(crate) number: u32,
}

pub(crate) struct World {
    pub(crate) dice: Rng,
    pub(crate) socket: PathBuf,
    /// The server's `run_id`.
    pub(crate) run: String,
    pub(crate) ids: Vec<String>,
    /// A legacy client releases what it should not, with this probability.
    pub(crate) misuse: f64,
    /// So many GPUs one of ours wants at most.
    pub(crate) most: u32,
    pub(crate) leases: u32,
    pub(crate) holders: BTreeMap<String, BTreeSet<Who>>,
    /// GPUs that somebody is on whose lease's holder is dead.
    pub(crate) orphans: BTreeSet<String>,
    /// Who of GPU.py's clients recorded himself last, where that record stands.
    pub(crate) recorded: BTreeMap<String, Who>,
    /// Leases that a server had forgotten.
    pub(crate) asked_back: BTreeSet<String>,
    pub(crate) counts: BTreeMap<&'static str, u32>,
    /// What happened last.
    trace: VecDeque<String>,
}

impl World {
    pub(crate) fn new(seed: u64, socket: PathBuf, (misuse, most): (f64, u32)) -> Self {
        let ids: Vec<String> = (0..4).map(|id| id.to_string()).collect();
        Self {
            dice: Rng::with_seed(seed),
            run: run_of(&socket),
            socket,
            holders: ids.iter().map(|id| (id.clone(), BTreeSet::new())).collect(),
            ids,
            misuse,
            most,
            leases: 0,
            orphans: BTreeSet::new(),
            recorded: BTreeMap::new(),
            asked_back: BTreeSet::new(),
            counts: BTreeMap::new(),
            trace: VecDeque::new(),
        }
    }

    pub(crate) fn link(&self) -> Link {
        Link::open(&self.socket)
    }

    /// Some of the GPUs, at least so many.
    pub(crate) fn some(&mut self, least: u32) -> Vec<String> {
        let mut ids = self.ids.clone();
        self.dice.shuffle(&mut ids);
        ids.truncate(self.dice.usize(least as usize..=self.ids.len()));
        ids
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn tell(&mut self, who: Who, what: &str) {
        self.trace.push_back(format!("{who:?} {what}"));
        if self.trace.len() > 60 {
            self.trace.pop_front();
        }
    }

    pub(crate) fn takes(&mut self, who: Who, id: &str) {
        self.tell(who, &format!("takes {id}"));
        self.holders.get_mut(id).expect("a managed GPU").insert(who);
    }

    /// Somebody has it beside this one, and his record tells so.
    pub(crate) fn shared(&self, id: &str) -> bool {
        self.recorded.get(id).is_some_and(|other| self.holders[id].contains(other))
    }

    pub(crate) fn leaves(&mut self, who: Who, id: &str) {
        self.tell(who, &format!("leaves {id}"));
        self.holders.get_mut(id).expect("a managed GPU").remove(&who);
    }

    /// Whom it started goes on without it.
    pub(crate) fn leaves_behind(&mut self, who: Who) {
        let held =
            self.holders.iter().filter(|(_, holders)| holders.contains(&who)).map(|(id, _)| id.clone());
        self.orphans.extend(held.collect::<Vec<String>>());
    }

    /// It ended: it believes nothing any more.
    pub(crate) fn dies(&mut self, who: Who) {
        self.tell(who, "dies");
        for holders in self.holders.values_mut() {
            holders.remove(&who);
        }
    }

    pub(crate) fn story(&self) -> String {
        let lines: Vec<&str> = self.trace.iter().map(String::as_str).collect();
        format!("\n  {}", lines.join("\n  "))
    }
}

fn run_of(socket: &Path) -> String {
    let told = Link::open(socket).request(&["INFO", "server"]).text();
    told.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run_id").to_owned()
}

/// A call of a script.
pub(crate) fn call<'a>(op: Op, arguments: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["EVAL", op.text(), "1", PREFIX];
    words.extend(arguments);
    words
}
