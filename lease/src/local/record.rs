//! What a holder or a waiter writes about himself. Nothing rests on it: it tells others who he is, and everybody may
//! write into the file of a GPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::directory;
use crate::Ticket;
use crate::audit::Lease;

/// Commands may be longer than anybody reads.
const LONGEST: usize = 1000;

/// What is known of a lease or of a ticket.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) lease: String,
    pub(super) about: BTreeMap<String, String>,
}

impl Record {
    /// Of a ticket, asked for in this millisecond of the epoch by this process.
    pub(super) fn of(ticket: &Ticket, asked: u64, keeper: (u32, u64)) -> Self {
        let mut about: BTreeMap<String, String> =
            ticket.about.iter().map(|(field, value)| ((*field).to_owned(), cut(value))).collect();
        let ttl = ticket.ttl.as_millis();
        about.insert("want".to_owned(), ticket.want.to_string());
        about.insert("prio".to_owned(), ticket.priority.to_string());
        about.insert("ttl_ms".to_owned(), ttl.to_string());
        about.insert("asked".to_owned(), asked.to_string());
        about.insert("taker".to_owned(), keeper.0.to_string());
        about.insert("keeper".to_owned(), keeper.0.to_string());
        about.insert("keeper_start".to_owned(), keeper.1.to_string());
        Self { lease: ticket.lease.clone(), about }
    }

    /// The record of a file; after it an older, longer one may be seen.
    pub(super) fn read(file: &File) -> Option<Self> {
        let text = directory::text(file).ok()?;
        serde_json::Deserializer::from_slice(&text).into_iter().next()?.ok()
    }

    /// In one write, so that whoever reads meanwhile, or after we were killed, finds the old one or the new.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&serde_json::to_vec(self)?, 0)
    }

    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.about.get(field).map(String::as_str).filter(|text| !text.is_empty())
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// The process that has the lock, and when it began.
    pub(super) fn keeper(&self) -> Option<(u32, u64)> {
        Some((self.get("keeper")?.parse().ok()?, self.number("keeper_start")?))
    }

    /// As `audit` tells it.
    pub(super) fn told(self, state: &str) -> Lease {
        // The kernel forgets nobody; one for a time has a keeper who ends with it.
        let expires = self.get("expires").and_then(|expires| expires.parse().ok()).unwrap_or(f64::INFINITY);
        let about = self.about.into_iter().map(|(field, value)| (field, value.into())).collect();
        Lease { lease: self.lease, state: state.to_owned(), expires, about }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}
