//! The events about GPUs and leases that the scripts record, in a stream of the newest ten thousand events.

use std::time::Duration;

use crate::{LeaseError, Pool};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Id in the stream: milliseconds since the Unix epoch on Redis' clock, and a sequence number.
    pub id: String,
    /// `grant`, `released`, `reaped` and so on.
    pub what: String,
    /// The other fields: GPUs, lease and so on.
    pub about: Vec<(String, String)>,
}

impl Event {
    /// Returns when the event occurred, in milliseconds since the Unix epoch.
    pub fn at(&self) -> Option<u64> {
        self.id.split_once('-')?.0.parse().ok()
    }

    /// The value of a field.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.about.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str())
    }
}

/// The most events of one reply.
const PART: u64 = 1000;

/// A stream entry as Redis returns it.
type Entry = (String, Vec<String>);

impl Pool {
    /// Returns the newest events, at most `at_most`, oldest first.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn events(&mut self, at_most: u64) -> Result<Vec<Event>, LeaseError> {
        let key = self.log_key();
        let (mut events, mut end) = (Vec::new(), "+".to_owned());
        // In parts, because the size of a reply is limited.
        loop {
            let most = PART.min(at_most - events.len() as u64);
            let mut command = redis::cmd("XREVRANGE");
            command.arg(&key).arg(end).arg("-").arg("COUNT").arg(most);
            let part: Vec<Entry> = self.with(|connection| command.query(connection))?;
            let complete = (part.len() as u64) < most;
            events.extend(part.into_iter().map(event));
            match events.last() {
                Some(oldest) if !complete && (events.len() as u64) < at_most => {
                    end = format!("({}", oldest.id);
                }
                _ => break,
            }
        }
        events.reverse();
        Ok(events)
    }

    /// Returns the next events after `id`. Waits for the first of them, at most for `at_most`.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn events_after(&mut self, id: &str, at_most: Duration) -> Result<Vec<Event>, LeaseError> {
        let key = self.log_key();
        let mut command = redis::cmd("XREAD");
        command.arg("BLOCK").arg(at_most.as_millis().max(1).to_string()).arg("COUNT").arg(PART);
        command.arg("STREAMS").arg(key).arg(id);
        let answer: Option<Vec<(String, Vec<Entry>)>> = self.block(&command, at_most)?;
        Ok(answer.into_iter().flatten().flat_map(|(_, entries)| entries).map(event).collect())
    }

    fn log_key(&self) -> String {
        format!("{}_V2:LOG", self.prefix)
    }
}

fn event((id, fields): Entry) -> Event {
    let mut pairs = fields.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    let what = pairs.next().map(|(_, what)| what).unwrap_or_default();
    Event { id, what, about: pairs.collect() }
}
