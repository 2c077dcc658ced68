//! The record of a holder or waiter about itself. It only informs others. No decision about ownership depends on it,
//! because every user can write into the records of GPUs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::directory::{self, Directory};
use crate::Ticket;
use crate::audit::Lease;

/// Maximum length of a stored value. Commands can be longer.
const LONGEST: usize = 1000;
/// Records with more fields are not used. This program writes about 30.
const MOST_FIELDS: usize = 64;

/// The fields of a lease or ticket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) lease: String,
    #[serde(deserialize_with = "fields")]
    pub(super) about: BTreeMap<String, String>,
}

impl Record {
    /// Returns the record of a ticket that this process requested at this time, in milliseconds since the epoch.
    pub(super) fn of(ticket: &Ticket, requested: u64, lock_holder: (u32, u64)) -> Self {
        let mut about: BTreeMap<String, String> =
            ticket.about.iter().map(|(field, value)| ((*field).to_owned(), cut(value))).collect();
        let ttl = ticket.ttl.as_millis();
        about.insert("want".to_owned(), ticket.want.to_string());
        about.insert("prio".to_owned(), ticket.priority.to_string());
        about.insert("ttl_ms".to_owned(), ttl.to_string());
        about.insert("asked".to_owned(), requested.to_string());
        about.insert("taker".to_owned(), lock_holder.0.to_string());
        about.insert("lock_holder".to_owned(), lock_holder.0.to_string());
        about.insert("lock_holder_start".to_owned(), lock_holder.1.to_string());
        Self { lease: ticket.lease.clone(), about }
    }

    /// Reads the record of a GPU.
    pub(super) fn of_gpu(directory: &Directory, id: u32) -> Option<Self> {
        Self::read(&directory.record(id, OFlags::RDONLY).ok()?)
    }

    /// Writes the record of a GPU. Errors are ignored, because the record only informs others: neither a full disk nor
    /// another user may prevent a grant.
    pub(super) fn write_for_gpu(&self, directory: &Directory, id: u32) {
        let _ = directory.record(id, OFlags::RDWR).and_then(|file| self.write(&file));
    }

    /// Reads the record in a file. The rest of an older, longer record may follow it.
    pub(super) fn read(file: &File) -> Option<Self> {
        let text = directory::text(file).ok()?;
        serde_json::Deserializer::from_slice(&text).into_iter().next()?.ok()
    }

    /// Writes the record in a single call, so that readers find either the old or the new record, even if this process
    /// is killed.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&serde_json::to_vec(self)?, 0)
    }

    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.about.get(field).map(String::as_str).filter(|text| !text.is_empty())
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// The pid and start time of the process that has the lock.
    pub(super) fn lock_holder(&self) -> Option<(u32, u64)> {
        Some((self.get("lock_holder")?.parse().ok()?, self.number("lock_holder_start")?))
    }

    /// Converts the record into a lease of an audit.
    pub(super) fn into_lease(self, state: &str) -> Lease {
        // Locks do not expire. The holder of a lease with a time limit exits when the limit is reached.
        let expires = self.get("expires").and_then(|expires| expires.parse().ok()).unwrap_or(f64::INFINITY);
        let about = self.about.into_iter().map(|(field, value)| (field, value.into())).collect();
        Lease { lease: self.lease, state: state.to_owned(), expires, about }
    }
}

/// Reads the fields, and fails if there are too many: other users can write records.
fn fields<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Fields;

    impl<'de> Visitor<'de> for Fields {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "at most {MOST_FIELDS} fields")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = BTreeMap::new();
            while let Some((name, value)) = map.next_entry()? {
                fields.insert(name, value);
                if fields.len() > MOST_FIELDS {
                    return Err(A::Error::invalid_length(fields.len(), &self));
                }
            }
            Ok(fields)
        }
    }

    from.deserialize_map(Fields)
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn written(record: &Record) -> File {
        let file = tempfile::tempfile().unwrap();
        record.write(&file).unwrap();
        file
    }

    #[test]
    fn record_with_the_longest_values_is_read() {
        // JSON needs six bytes for each of these.
        let text = "\u{1}".repeat(2 * LONGEST);
        let ids = "0,".repeat(LONGEST);
        let about = ["cmd", "note", "job"].map(|field| (field, text.clone())).into_iter();
        let about = about.chain(["among", "last"].map(|field| (field, ids.clone())));
        let ticket = Ticket {
            lease: "x".repeat(128),
            want: u32::MAX,
            priority: 0,
            ttl: Duration::from_secs(30),
            nonblock: false,
            about: about.collect(),
        };
        let mut record = Record::of(&ticket, u64::MAX, (u32::MAX, u64::MAX));
        let gpus: Vec<String> = (0..1024).map(|gpu| gpu.to_string()).collect();
        record.about.insert("gpus".to_owned(), gpus.join(","));
        assert_eq!(Record::read(&written(&record)), Some(record));
    }

    #[test]
    fn record_with_very_many_fields_is_not_used() {
        let of = |fields: usize| Record {
            lease: "x".to_owned(),
            about: (0..fields).map(|field| (field.to_string(), String::new())).collect(),
        };
        for (fields, is_read) in [(MOST_FIELDS, true), (MOST_FIELDS + 1, false), (2000, false)] {
            assert_eq!(Record::read(&written(&of(fields))).is_some(), is_read, "{fields}");
        }
        let long = Record { lease: "x".to_owned(), about: [("a".to_owned(), "b".repeat(1 << 16))].into() };
        assert_eq!(Record::read(&written(&long)), None);
    }
}
