#![expect(clippy::disallowed_methods, reason = "waiting for the name service has a deadline")]
//! Names of users and of their groups. A thread queries the name service, which may be remote. A late reply
//! is used in a later interval.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::unistd::{Group, Uid, User, getgrouplist};

/// Maximum total time for which an interval waits for names. Local files are read within this time.
const PATIENCE: Duration = Duration::from_millis(50);

/// Time after which a user's groups are queried again, because membership may change.
const GROUPS_FRESH: Duration = Duration::from_mins(10);

/// Replies from the name service so far.
pub(crate) struct Names {
    known: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Groups>,
    asked: HashSet<u32>,
    ask: Sender<u32>,
    answers: Receiver<Answer>,
    patience: Duration,
}

/// Names of a user's groups; `None` if the user does not exist.
struct Groups {
    names: Option<Vec<String>>,
    answered: Instant,
}

/// Each query has two replies, in this order, because listing groups may take far longer.
enum Answer {
    Name(u32, nix::Result<Option<String>>),
    Groups(u32, nix::Result<Option<Vec<String>>>),
}

impl Names {
    pub(crate) fn new() -> Self {
        let (ask, questions) = channel();
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            for uid in questions {
                let user = User::from_uid(Uid::from_raw(uid));
                let name = user.as_ref().map(|user| user.as_ref().map(|user| user.name.clone()));
                if answer.send(Answer::Name(uid, name.map_err(|error| *error))).is_err() {
                    return;
                }
                let groups = user.and_then(|user| user.map(|user| groups_of(&user)).transpose());
                if answer.send(Answer::Groups(uid, groups)).is_err() {
                    return;
                }
            }
        });
        Self {
            known: HashMap::new(),
            groups: HashMap::new(),
            asked: HashSet::new(),
            ask,
            answers,
            patience: PATIENCE,
        }
    }

    /// Starts a new interval with the full waiting time.
    pub(crate) fn begin(&mut self) {
        self.patience = PATIENCE;
    }

    /// Returns the user's name, once the name service has replied.
    pub(crate) fn of(&mut self, uid: u32) -> Option<String> {
        self.wait(uid, |names| names.known.contains_key(&uid));
        self.known.get(&uid).cloned().flatten()
    }

    /// Returns the user's group names (numbers if a group has no name), once the name service has replied.
    pub(crate) fn groups(&mut self, uid: u32) -> Option<Vec<String>> {
        match self.groups.get(&uid) {
            None => self.wait(uid, |names| names.groups.contains_key(&uid)),
            Some(groups) if groups.answered.elapsed() >= GROUPS_FRESH => {
                // Use the earlier reply until the new one arrives in a later sample.
                self.ask(uid);
                while let Ok(answer) = self.answers.try_recv() {
                    self.learn(answer);
                }
            }
            Some(_) => {}
        }
        self.groups.get(&uid)?.names.clone()
    }

    /// Waits until `known` returns true, the name service fails, or the interval's waiting time is used up.
    fn wait(&mut self, uid: u32, known: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !known(self) {
            if !self.ask(uid) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.patience = left;
            let Ok(answer) = self.answers.recv_timeout(left) else { return };
            if self.learn(answer) == Some(uid) {
                return;
            }
        }
    }

    fn ask(&mut self, uid: u32) -> bool {
        !self.asked.insert(uid) || self.ask.send(uid).is_ok()
    }

    /// Stores a reply. An error is not stored: the user is queried again, and the uid is returned. "No such
    /// user" is a valid reply.
    fn learn(&mut self, answer: Answer) -> Option<u32> {
        match answer {
            Answer::Name(uid, Ok(name)) => drop(self.known.insert(uid, name)),
            Answer::Name(uid, Err(_)) => return Some(uid),
            Answer::Groups(uid, groups) => {
                self.asked.remove(&uid);
                let Ok(names) = groups else { return Some(uid) };
                self.groups.insert(uid, Groups { names, answered: Instant::now() });
            }
        }
        None
    }
}

fn groups_of(user: &User) -> nix::Result<Vec<String>> {
    let name = CString::new(user.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
    let name_of = |gid| Ok(Group::from_gid(gid)?.map_or_else(|| gid.to_string(), |group| group.name));
    getgrouplist(&name, user.gid)?.into_iter().map(name_of).collect()
}
