//! What must be true after every step, by an audit and by who believes to hold what.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::world::{SHORT, Who, World};

pub(crate) struct Law {
    /// Clients of GPU.py release what is not theirs: they may meet somebody.
    misuse: bool,
    /// There are no clients of GPU.py: no GPU is ever nowhere.
    alone: bool,
    token: u64,
    /// Tickets of the step before, in their order: lease, what it wants, priority.
    queue: Vec<(String, String, String)>,
    met: BTreeSet<(String, BTreeSet<Who>)>,
}

impl Law {
    pub(crate) const fn new(misuse: bool, alone: bool) -> Self {
        Self { misuse, alone, token: 0, queue: Vec::new(), met: BTreeSet::new() }
    }

    pub(crate) fn hold(&mut self, audit: &str, world: &mut World) {
        let audit: Value = serde_json::from_str(audit).unwrap_or_else(|error| panic!("{error}: {audit}"));
        self.holders(&audit, world);
        let leases: BTreeMap<&str, &Value> =
            list(&audit["leases"]).map(|lease| (text(&lease["lease"]), lease)).collect();
        for gpu in list(&audit["gpus"]) {
            let owner = gpu["owner"].as_str();
            let owned =
                owner.is_some_and(|owner| leases.get(owner).is_some_and(|lease| lease["state"] == "held"));
            let count = |place: &str| gpu[place].as_u64().unwrap();
            let withheld = u64::from(gpu["quarantine"].is_string());
            let places = count("idle") + count("pot") + count("bar") + withheld + u64::from(owned);
            assert!(places <= 1 || self.misuse, "in {places} places: {gpu}{}", world.story());
            assert!(places == 1 || !self.alone, "in {places} places: {gpu}{}", world.story());
            assert_eq!(owner.is_some(), owned, "owned by what is not held: {gpu}{}", world.story());
            if let Some(lease) = owner.and_then(|owner| leases.get(owner)) {
                let theirs = text(&lease["gpus"]).split(',').any(|id| id == text(&gpu["id"]));
                assert!(theirs, "owned by a lease of others: {gpu} {lease}{}", world.story());
            }
        }
        self.leases(&leases, &audit, world);
    }

    fn holders(&mut self, audit: &Value, world: &mut World) {
        for (id, holders) in world.holders.clone() {
            let ours = holders.iter().filter(|who| who.ours).count();
            assert!(ours <= 1, "two of ours hold {id}: {holders:?} {audit}{}", world.story());
            let orphan = world.orphans.contains(&id);
            assert!(
                !orphan || holders.is_empty() || self.misuse,
                "{id} was given away under somebody: {holders:?} {audit}{}",
                world.story()
            );
            if holders.len() > 1 {
                assert!(self.misuse, "two hold {id}: {holders:?} {audit}{}", world.story());
                if self.met.insert((id, holders)) {
                    world.count(if ours == 1 { "met one of ours" } else { "met each other" });
                }
            }
        }
    }

    fn leases(&mut self, leases: &BTreeMap<&str, &Value>, audit: &Value, world: &World) {
        let mut token = self.token;
        for lease in leases.values() {
            let gpus = lease["gpus"].as_str().unwrap_or_default();
            match text(&lease["state"]) {
                "waiting" => assert_eq!(gpus, "", "it waits and holds: {lease}{}", world.story()),
                "held" => {
                    assert_eq!(
                        gpus.split(',').count().to_string(),
                        text(&lease["want"]),
                        "{lease}{}",
                        world.story()
                    );
                    token = token.max(text(&lease["tok"]).parse().unwrap());
                }
                other => panic!("{other} and yet to expire: {lease}{}", world.story()),
            }
        }
        let now = audit["now"].as_f64().unwrap();
        let ticket = |name: &str| {
            let lease =
                leases.get(name).unwrap_or_else(|| panic!("{name} waits and is no lease{}", world.story()));
            // One that is not heard of is passed over.
            let heard_of = lease["expires"].as_f64().unwrap() > now + f64::from(SHORT) * 1000.0;
            let wish = format!("{} of {}", text(&lease["want"]), lease["among"].as_str().unwrap_or("all"));
            heard_of.then(|| (name.to_owned(), wish, text(&lease["prio"]).to_owned()))
        };
        let queue: Vec<(String, String, String)> =
            list(&audit["queue"]).map(text).filter_map(ticket).collect();
        for (place, (served, want, priority)) in self.queue.iter().enumerate() {
            if leases.get(served.as_str()).is_some_and(|lease| lease["state"] == "held") {
                let passed = self.queue[..place].iter().find(|(lease, theirs, prio)| {
                    theirs == want && prio == priority && queue.iter().any(|(waiting, ..)| waiting == lease)
                });
                assert!(passed.is_none(), "{served} was served before {passed:?}{}", world.story());
            }
        }
        let granted = list(&audit["leases"]).filter(|lease| lease["state"] == "held").count();
        let tokens: BTreeSet<&str> = leases
            .values()
            .filter(|lease| lease["state"] == "held")
            .map(|lease| text(&lease["tok"]))
            .collect();
        assert_eq!(tokens.len(), granted, "a token twice{}", world.story());
        assert!(token >= self.token, "tokens fell{}", world.story());
        (self.token, self.queue) = (token, queue);
    }

    /// Once all have ended.
    pub(crate) fn end(&self, audit: &str, events: &[String], world: &World) {
        let audit: Value = serde_json::from_str(audit).unwrap();
        for gpu in list(&audit["gpus"]) {
            let idle = gpu["idle"].as_u64().unwrap();
            assert!(idle == 1 || (self.misuse && idle > 1), "not idle in the end: {gpu}{}", world.story());
            assert!(gpu["owner"].is_null() && gpu["quarantine"].is_null(), "{gpu}");
        }
        assert_eq!(list(&audit["leases"]).count() + list(&audit["queue"]).count(), 0, "{audit}");
        let put_back = world.counts.get("put back").copied().unwrap_or_default();
        assert!(put_back == 0 || !self.alone, "{put_back} had to be put back{}", world.story());
        for event in events {
            assert!(is_of_the_original(event), "no line of GPU.py's: {event}");
        }
        assert!(events.len() <= 10_000, "the log has no bound");
    }
}

/// One of the four lines that GPU.py writes.
fn is_of_the_original(event: &str) -> bool {
    let Some((time, line)) =
        event.split_at_checked(19).and_then(|(time, rest)| Some((time, rest.strip_prefix(": ")?)))
    else {
        return false;
    };
    let shape: String =
        time.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
    let words: Vec<String> = line
        .split(' ')
        .map(|word| word.trim_end_matches('.').parse::<u32>().map_or(word.to_owned(), |_| "N".to_owned()))
        .collect();
    let line = words.join(" ");
    shape == "0000-00-00 00:00:00"
        && (line == "GPU N acquired by PID N"
            || line == "GPU N released by PID N"
            || line == "Redis initialized, N managed GPUs."
            || is_purge(&line))
}

fn is_purge(line: &str) -> bool {
    let end = ", was released by redis purge as the process with given PID does no longer exist.";
    line.strip_suffix(end)
        .and_then(|line| line.strip_prefix("GPU N acquired by process with PID "))
        .is_some_and(|pid| pid.parse::<u32>().is_ok())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}
