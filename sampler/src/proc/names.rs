#![expect(clippy::disallowed_methods, reason = "waiting for the name service has a deadline")]
//! Names of users. The name service may ask a server far away, so it is asked on a thread of its own, and an
//! answer that is late is there for a later beat.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::unistd::{Uid, User};

/// A beat waits for names at most this long in all; local files answer within it.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the name service has said so far.
pub(crate) struct Names {
    known: HashMap<u32, Option<String>>,
    asked: HashSet<u32>,
    ask: Sender<u32>,
    answers: Receiver<(u32, nix::Result<Option<String>>)>,
    patience: Duration,
}

impl Names {
    pub(crate) fn new() -> Self {
        let (ask, questions) = channel();
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            for uid in questions {
                let name = User::from_uid(Uid::from_raw(uid)).map(|user| user.map(|user| user.name));
                if answer.send((uid, name)).is_err() {
                    return;
                }
            }
        });
        Self { known: HashMap::new(), asked: HashSet::new(), ask, answers, patience: PATIENCE }
    }

    /// A new beat, with patience anew.
    pub(crate) fn begin(&mut self) {
        self.patience = PATIENCE;
    }

    /// The name, where the name service has told it by now.
    pub(crate) fn of(&mut self, uid: u32) -> Option<String> {
        let deadline = Instant::now() + self.patience;
        while !self.known.contains_key(&uid) {
            if self.asked.insert(uid) && self.ask.send(uid).is_err() {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.patience = left;
            let Ok((answered, name)) = self.answers.recv_timeout(left) else { return None };
            self.asked.remove(&answered);
            // An error is no answer, and is asked again; "no such user" is one.
            if let Ok(name) = name {
                self.known.insert(answered, name);
            } else if answered == uid {
                return None;
            }
        }
        self.known.get(&uid).cloned().flatten()
    }
}
