#![expect(clippy::disallowed_methods, reason = "waiting for the name service has a deadline")]
//! Names of users and of their groups. A thread queries the name service, which may be remote. A late reply
//! is used in a later interval.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bailiff_proc::user_of;
use nix::unistd::{Group, Uid, User, getgrouplist};

/// Maximum total time for which an interval waits for names. Local files are read within this time.
const PATIENCE: Duration = Duration::from_millis(50);

/// Time after which a user's groups are queried again, because membership may change.
const GROUPS_FRESH: Duration = Duration::from_mins(10);

/// Maximum number of uids that wait for the name service, in total and of one user, who can have 65,536 subordinate uids.
const MOST: usize = 1024;
const MOST_OF_ONE: usize = 16;

/// Number of uids above which the replies for those that no process of the last interval had are forgotten. Processes can
/// have very many uids in the course of months.
const MOST_KNOWN: usize = 4096;

/// Replies from the name service so far.
pub(crate) struct Names {
    known: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Groups>,
    asked: HashSet<u32>,
    /// Uids of this interval.
    used: HashSet<u32>,
    questions: Arc<Questions>,
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

/// Uids that the thread will look up.
#[derive(Default)]
struct Questions {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Uids by the key of their user. The users take turns, so that the uids of one do not delay the names of others.
#[derive(Default)]
struct Queue {
    users: BTreeMap<u32, VecDeque<u32>>,
    /// The user whose turn was last.
    last: u32,
    is_closed: bool,
}

impl Queue {
    /// Adds a uid of a user; returns whether there was room.
    fn push(&mut self, (user, uid): (u32, u32)) -> bool {
        let all: usize = self.users.values().map(VecDeque::len).sum();
        let own = self.users.get(&user).map_or(0, VecDeque::len);
        let has_room = all < MOST && own < MOST_OF_ONE;
        if has_room {
            self.users.entry(user).or_default().push_back(uid);
        }
        has_room
    }

    fn pop(&mut self) -> Option<u32> {
        let after = self.users.range((Excluded(self.last), Unbounded)).next();
        self.last = *after.or_else(|| self.users.iter().next())?.0;
        let of_user = self.users.get_mut(&self.last)?;
        let uid = of_user.pop_front();
        if of_user.is_empty() {
            self.users.remove(&self.last);
        }
        uid
    }
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next uid; `None` if there will be none.
    fn next(&self) -> Option<u32> {
        let queue = self.changed.wait_while(self.lock(), |queue| queue.users.is_empty() && !queue.is_closed);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        if queue.is_closed { None } else { queue.pop() }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.questions.lock().is_closed = true;
        self.questions.changed.notify_one();
    }
}

impl Names {
    pub(crate) fn new() -> Self {
        let questions = Arc::new(Questions::default());
        let (answer, answers) = channel();
        let asked = Arc::clone(&questions);
        std::thread::spawn(move || {
            while let Some(uid) = asked.next() {
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
            used: HashSet::new(),
            questions,
            answers,
            patience: PATIENCE,
        }
    }

    /// Starts a new interval with the full waiting time.
    pub(crate) fn begin(&mut self) {
        self.patience = PATIENCE;
        if self.known.len() > MOST_KNOWN {
            self.known.retain(|uid, _| self.used.contains(uid));
            self.groups.retain(|uid, _| self.used.contains(uid));
        }
        self.used.clear();
    }

    /// Returns the user's name, once the name service has replied.
    pub(crate) fn of(&mut self, uid: u32) -> Option<String> {
        self.used.insert(uid);
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

    /// Returns whether the name service is or will be asked for this uid. If there is no room, it is asked later.
    fn ask(&mut self, uid: u32) -> bool {
        if self.asked.contains(&uid) {
            return true;
        }
        let is_asked = self.questions.lock().push((user_of(uid), uid));
        if is_asked {
            self.asked.insert(uid);
            self.questions.changed.notify_one();
        }
        is_asked
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_uids_that_no_process_has_any_more_are_forgotten() {
        let mut names = Names::new();
        for (known, expected) in [(MOST_KNOWN, MOST_KNOWN), (MOST_KNOWN + 1, 1)] {
            names.known = (100_000..).take(known).map(|uid| (uid, None)).collect();
            let _ = names.of(100_007);
            names.begin();
            assert_eq!(names.known.len(), expected);
        }
        assert!(names.known.contains_key(&100_007));
    }

    #[test]
    fn uids_of_one_user_neither_delay_nor_displace_those_of_others() {
        let mut queue = Queue::default();
        let pushed = (100_000..165_536).filter(|uid| queue.push((1000, *uid))).count();
        assert_eq!(pushed, MOST_OF_ONE);
        assert!(queue.push((1001, 1001)) && queue.push((1002, 1002)));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).take(5).collect();
        assert_eq!(order, [100_000, 1001, 1002, 100_001, 100_002]);
        while queue.pop().is_some() {}
        assert_eq!((1..=2000).filter(|user| queue.push((*user, *user))).count(), MOST);
        assert!(queue.users.len() == MOST && !queue.push((7, 8)), "a user without room leaves nothing");
    }
}
