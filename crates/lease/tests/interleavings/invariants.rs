//! The invariants that must hold after every step, checked against an audit and the clients' own view of their GPUs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::model::{ClientId, Model, SHORT};

pub(crate) struct Invariants {
    /// Whether clients of GPU.py release GPUs that they do not hold, so that GPUs may be shared.
    misuse: bool,
    /// Whether there are no clients of GPU.py, so that every GPU must be in a list.
    alone: bool,
    token: u64,
    /// The tickets after the previous step, in order: lease, request, priority.
    queue: Vec<(String, String, String)>,
    shared: BTreeSet<(String, BTreeSet<ClientId>)>,
}

impl Invariants {
    pub(crate) const fn new(misuse: bool, alone: bool) -> Self {
        Self { misuse, alone, token: 0, queue: Vec::new(), shared: BTreeSet::new() }
    }

    /// Records that the server was rolled back and has lost its latest grants.
    pub(crate) fn forget(&mut self) {
        (self.token, self.queue) = (0, Vec::new());
    }

    pub(crate) fn check(&mut self, audit: &str, model: &mut Model) {
        let audit: Value = serde_json::from_str(audit).unwrap_or_else(|error| panic!("{error}: {audit}"));
        self.holders(&audit, model);
        let leases: BTreeMap<&str, &Value> =
            list(&audit["leases"]).map(|lease| (text(&lease["lease"]), lease)).collect();
        for gpu in list(&audit["gpus"]) {
            let owner = gpu["owner"].as_str();
            let owned =
                owner.is_some_and(|owner| leases.get(owner).is_some_and(|lease| lease["state"] == "held"));
            let count = |place: &str| gpu[place].as_u64().unwrap();
            let quarantined = u64::from(gpu["quarantine"].is_string());
            let places = count("idle") + count("pot") + count("bar") + quarantined + u64::from(owned);
            assert!(places <= 1 || self.misuse, "in {places} places: {gpu}{}", model.trace());
            assert!(places == 1 || !self.alone, "in {places} places: {gpu}{}", model.trace());
            assert_eq!(owner.is_some(), owned, "the owning lease is not held: {gpu}{}", model.trace());
            if let Some(lease) = owner.and_then(|owner| leases.get(owner)) {
                let listed = text(&lease["gpus"]).split(',').any(|id| id == text(&gpu["id"]));
                assert!(listed, "the owner does not list the GPU: {gpu} {lease}{}", model.trace());
            }
        }
        self.leases(&leases, &audit, model);
    }

    fn holders(&mut self, audit: &Value, model: &mut Model) {
        for (id, holders) in model.holders.clone() {
            let ours = holders.iter().filter(|client_id| client_id.ours).count();
            assert!(ours <= 1, "two of our clients hold {id}: {holders:?} {audit}{}", model.trace());
            let orphan = model.orphans.contains(&id);
            assert!(
                !orphan || holders.is_empty() || self.misuse,
                "{id} was granted while a process still used it: {holders:?} {audit}{}",
                model.trace()
            );
            if holders.len() > 1 {
                assert!(self.misuse, "two hold {id}: {holders:?} {audit}{}", model.trace());
                if self.shared.insert((id, holders)) {
                    model.count(if ours == 1 { "shared with one of ours" } else { "shared by others" });
                }
            }
        }
    }

    fn leases(&mut self, leases: &BTreeMap<&str, &Value>, audit: &Value, model: &Model) {
        let mut token = self.token;
        for lease in leases.values() {
            let gpus = lease["gpus"].as_str().unwrap_or_default();
            match text(&lease["state"]) {
                "waiting" => assert_eq!(gpus, "", "a waiting request holds GPUs: {lease}{}", model.trace()),
                "held" => {
                    assert_eq!(
                        gpus.split(',').count().to_string(),
                        text(&lease["want"]),
                        "{lease}{}",
                        model.trace()
                    );
                    token = token.max(text(&lease["tok"]).parse().unwrap());
                }
                other => {
                    panic!("the state is {other}, but the lease has not expired: {lease}{}", model.trace())
                }
            }
        }
        let now = audit["now"].as_f64().unwrap();
        let ticket = |name: &str| {
            let lease =
                leases.get(name).unwrap_or_else(|| panic!("{name} waits without a lease{}", model.trace()));
            // A ticket that is not renewed is skipped.
            let renewed = lease["expires"].as_f64().unwrap() > now + f64::from(SHORT) * 1000.0;
            let request = format!("{} of {}", text(&lease["want"]), lease["among"].as_str().unwrap_or("all"));
            renewed.then(|| (name.to_owned(), request, text(&lease["prio"]).to_owned()))
        };
        let queue: Vec<(String, String, String)> =
            list(&audit["queue"]).map(text).filter_map(ticket).collect();
        for (place, (served, want, priority)) in self.queue.iter().enumerate() {
            let granted = !model.reclaimed.contains(served);
            if granted && leases.get(served.as_str()).is_some_and(|lease| lease["state"] == "held") {
                let passed = self.queue[..place].iter().find(|(lease, request, prio)| {
                    request == want && prio == priority && queue.iter().any(|(waiting, ..)| waiting == lease)
                });
                assert!(passed.is_none(), "{served} was served before {passed:?}{}", model.trace());
            }
        }
        let granted = list(&audit["leases"]).filter(|lease| lease["state"] == "held").count();
        let tokens: BTreeSet<&str> = leases
            .values()
            .filter(|lease| lease["state"] == "held")
            .map(|lease| text(&lease["tok"]))
            .collect();
        assert_eq!(tokens.len(), granted, "a token was granted twice{}", model.trace());
        assert!(token >= self.token, "a token decreased{}", model.trace());
        (self.token, self.queue) = (token, queue);
    }

    /// Checks the final state, after all clients have exited.
    pub(crate) fn check_end(&self, audit: &str, events: &[String], model: &Model) {
        let audit: Value = serde_json::from_str(audit).unwrap();
        for gpu in list(&audit["gpus"]) {
            let idle = gpu["idle"].as_u64().unwrap();
            assert!(idle == 1 || (self.misuse && idle > 1), "not idle at the end: {gpu}{}", model.trace());
            assert!(gpu["owner"].is_null() && gpu["quarantine"].is_null(), "{gpu}");
        }
        assert_eq!(list(&audit["leases"]).count() + list(&audit["queue"]).count(), 0, "{audit}");
        let put_back = model.counts.get("put back").copied().unwrap_or_default();
        assert!(put_back == 0 || !self.alone, "{put_back} had to be put back{}", model.trace());
        for event in events {
            assert!(is_of_the_original(event), "not a line of GPU.py: {event}");
        }
        assert!(events.len() <= 10_000, "the log is too long");
    }
}

/// Returns whether the text is one of the four lines that GPU.py writes.
fn is_of_the_original(event: &str) -> bool {
    let Some((time, line)) =
        event.split_at_checked(19).and_then(|(time, rest)| Some((time, rest.strip_prefix(": ")?)))
    else {
        return false;
    };
    let shape: String = time.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    let parts: Vec<String> = line
        .split(' ')
        .map(|part| part.trim_end_matches('.').parse::<u32>().map_or(part.to_owned(), |_| "N".to_owned()))
        .collect();
    let line = parts.join(" ");
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
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}
