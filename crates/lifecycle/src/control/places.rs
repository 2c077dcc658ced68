//! Places for the clients of a control socket. Idle clients must not lock out an administrator, so a new
//! client replaces the longest idle client of the user with the most clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// A client with a place.
pub(super) struct Client {
    pub(super) uid: u32,
    /// Whether it waits for a response.
    pub(super) busy: Arc<AtomicBool>,
    pub(super) task: AbortHandle,
}

/// Clients, in order of arrival.
pub(super) struct Places {
    most: usize,
    taken: Vec<Client>,
}

impl Places {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, taken: Vec::new() }
    }

    /// Takes a place for a client of this user and returns its busy flag; `None` if all clients are busy.
    pub(super) fn take(&mut self, uid: u32) -> Option<Arc<AtomicBool>> {
        self.taken.retain(|client| !client.task.is_finished());
        if self.taken.len() >= self.most {
            self.taken.remove(self.least(uid)?).task.abort();
        }
        Some(Arc::default())
    }

    pub(super) fn put(&mut self, client: Client) {
        self.taken.push(client);
    }

    /// Returns the index of the client to replace: the longest idle client of the user with the most clients,
    /// root's clients last.
    fn least(&self, uid: u32) -> Option<usize> {
        let of = |uid| self.taken.iter().filter(|client| client.uid == uid).count();
        let rank = |client: &Client| {
            let new = usize::from(client.uid == uid);
            (of(client.uid) + new, client.uid != 0)
        };
        let silent = self.taken.iter().enumerate().filter(|(_, client)| !client.busy.load(Ordering::Relaxed));
        // `max_by_key` returns the last of equal entries.
        silent.rev().max_by_key(|(_, client)| rank(client)).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills 4 places with clients (uid, whether busy), and returns the index to evict for a client of `uid`.
    fn least(taken: &[(u32, bool)], uid: u32) -> Option<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
        let mut places = Places::new(4);
        for (uid, is_busy) in taken {
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            places.put(Client { uid: *uid, busy: Arc::new((*is_busy).into()), task });
        }
        places.least(uid)
    }

    #[test]
    fn user_with_most_clients_is_replaced_and_root_last() {
        let cases = [
            (vec![(0, false), (7, false), (7, false), (8, false)], 0, Some(1)),
            (vec![(0, false), (7, true), (7, false), (8, false)], 0, Some(2)),
            (vec![(0, false), (8, false), (7, false), (7, false)], 8, Some(1)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 0, Some(0)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 7, Some(1)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 6, Some(1)),
            (vec![(0, true), (7, true), (7, true), (8, true)], 0, None),
        ];
        for (taken, uid, expected) in cases {
            assert_eq!(least(&taken, uid), expected, "{uid} comes to {taken:?}");
        }
    }
}
