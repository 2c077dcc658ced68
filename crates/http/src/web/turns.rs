//! Order of password checks. One request per client address waits for its turn, and further requests from
//! that address wait behind it. A client that guesses passwords thus delays others by one check per address
//! that it has. Queues are short, because each entry occupies a connection.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shares;

/// Maximum number of waiting and running checks per address. Further requests are refused.
const LINE: usize = 8;

/// The current turn, and a queue for each address.
pub(super) struct Turns {
    turn: Arc<Semaphore>,
    lines: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>,
}

/// The turn of one request. It lasts until this value is dropped.
pub(super) struct Turn {
    _turn: OwnedSemaphorePermit,
    _first: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), lines: Mutex::default() }
    }
}

impl Turns {
    /// Waits for this client's turn. Returns `None` if too many of the client's requests are waiting.
    pub(super) async fn next(&self, client: IpAddr) -> Option<Turn> {
        let first = self.line(client)?.acquire_owned().await.ok()?;
        let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
        Some(Turn { _turn: turn, _first: first })
    }

    fn line(&self, client: IpAddr) -> Option<Arc<Semaphore>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Queues to which only this map refers are empty.
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines.entry(shares::client(client)).or_insert_with(|| Arc::new(Semaphore::new(1)));
        (Arc::strong_count(line) <= LINE).then(|| Arc::clone(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_with_many_requests_delays_no_other() {
        let turns = Arc::new(Turns::default());
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let query = |client: [u8; 4]| {
            let (turns, sender) = (Arc::clone(&turns), sender.clone());
            tokio::spawn(async move {
                let Some(turn) = turns.next(client.into()).await else { return false };
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                drop(turn);
                sender.send(client).unwrap();
                true
            })
        };
        let (much, one) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let guesses = (0..50).map(|_| query(much)).collect::<Vec<_>>();
        tokio::task::yield_now().await;
        assert!(query(one).await.unwrap());
        let mut before = 0;
        while receiver.recv().await.unwrap() != one {
            before += 1;
        }
        assert!(before <= 2, "{before} checks ran before the client's own");
        let mut looked_at = 0;
        for guess in guesses {
            looked_at += usize::from(guess.await.unwrap());
        }
        assert_eq!(looked_at, LINE, "further requests must be refused");
        drop(turns.line(one.into()));
        assert_eq!(turns.lines.lock().unwrap().len(), 1, "no other request is waiting");
    }
}
