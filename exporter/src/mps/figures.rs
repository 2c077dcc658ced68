//! Counts, and waiting clients, from the lines of a daemon's logs. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_mps::log::Event;
use bailiff_snapshot::MpsLog;

/// Maximum number of servers, and of waiting clients, that are remembered. Logs are written by users, so the
/// number must be bounded.
const MOST: usize = 256;
/// Maximum number of exit statuses with a count of their own.
const MOST_STATUSES: usize = 32;
/// A waiting client that cannot be checked is reported for this long.
const UNSEEN: Duration = Duration::from_mins(5);

/// Whether a line was written before its file was first read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// Written before the first read: updates the state and is not counted.
    Old,
    /// Written after the first read.
    New,
}

/// Figures from the logs of one directory.
#[derive(Debug, Default)]
pub(super) struct Figures {
    log: MpsLog,
    /// Uid of each server, by the server's pid.
    owners: BTreeMap<u32, u32>,
    /// Waiting clients by uid and pid; clients of another PID namespace have pid 0.
    pending: BTreeMap<(u32, u32), Waiting>,
    now: Duration,
}

#[derive(Debug, Default)]
struct Waiting {
    count: u64,
    /// Time of the latest connection attempt, since boot.
    since: Duration,
}

impl Figures {
    /// Sets the read time of the following lines, since boot.
    pub(super) const fn at(&mut self, now: Duration) {
        self.now = now;
    }

    pub(super) fn line(&mut self, line: &[u8], age: Age) {
        let text = String::from_utf8_lossy(line);
        let event = Event::of(&text);
        self.update_waiting(event);
        if age == Age::New {
            self.count(event, text.trim().is_empty());
        }
    }

    /// Counts skipped bytes. A file with a hole can be as long as its file system permits, so the sum is limited.
    pub(super) const fn skipped(&mut self, bytes: u64) {
        self.log.skipped_bytes = self.log.skipped_bytes.saturating_add(bytes);
    }

    /// Removes waiting clients that have exited, and after a while those that cannot be checked. `lives`
    /// takes uid and pid, and returns `None` if it cannot tell.
    pub(super) fn forget(&mut self, lives: impl Fn(u32, u32) -> Option<bool>) {
        let now = self.now;
        self.pending.retain(|(uid, pid), waiting| {
            lives(*uid, *pid).unwrap_or_else(|| now.saturating_sub(waiting.since) < UNSEEN)
        });
    }

    pub(super) fn report(&self) -> MpsLog {
        let mut log = self.log.clone();
        for ((uid, _), waiting) in &self.pending {
            *log.pending.entry(*uid).or_default() += waiting.count;
        }
        log
    }

    fn update_waiting(&mut self, event: Event) {
        match event {
            Event::DaemonStarting => {
                self.owners.clear();
                self.pending.clear();
            }
            Event::ServerStarting { server, uid: Some(uid) } if self.owners.len() < MOST => {
                self.owners.insert(server, uid);
            }
            Event::ServerReady { server } => self.served(self.owners.get(&server).copied()),
            Event::ServerExited { server, status } => {
                let owner = self.owners.remove(&server);
                // Clients that waited for a server that failed to start were refused.
                if owner.is_some() && status != Some(0) {
                    self.served(owner);
                }
            }
            Event::ClientNew { client, uid: Some(uid), pending: true } if self.pending.len() < MOST => {
                let waiting = self.pending.entry((uid, client)).or_default();
                let count = if client == 0 { waiting.count + 1 } else { 1 };
                *waiting = Waiting { count, since: self.now };
            }
            Event::ClientNew { client, uid: Some(uid), pending: false } => {
                self.pending.remove(&(uid, client));
            }
            _ => {}
        }
    }

    /// Removes the waiting clients of this user, or of all users if the server's user is unknown.
    fn served(&mut self, owner: Option<u32>) {
        self.pending.retain(|(uid, _), _| owner.is_some_and(|owner| owner != *uid));
    }

    fn count(&mut self, event: Event, blank: bool) {
        let log = &mut self.log;
        match event {
            Event::ServerStarting { .. } => log.server_starts += 1,
            Event::ServerExited { status: Some(status), .. }
                if log.server_exits.len() < MOST_STATUSES
                    || log.server_exits.contains_key(&status.into()) =>
            {
                *log.server_exits.entry(status.into()).or_default() += 1;
            }
            Event::ClientFault => log.client_faults += 1,
            Event::ClientRejected { reason } => {
                *log.rejected.entry(reason.name().to_owned()).or_default() += 1;
            }
            Event::Unknown | Event::ServerExited { status: None, .. } if !blank => log.unparsed += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> MpsLog {
        let mut figures = Figures::default();
        for line in lines {
            figures.line(line.as_bytes(), Age::New);
        }
        figures.report()
    }

    #[test]
    fn client_waits_until_its_server_is_ready_or_failed() {
        let asks = "[2026-11-21 06:27:48.525 Control 7] NEW CLIENT 19917 from user 1001: Server is not ready, push client to pending list";
        let nameless = "[2026-11-21 06:27:48.525 Control 7] NEW CLIENT 0 from user 1002: Server is not ready, push client to pending list";
        let starts = "[2026-11-21 06:27:48.525 Control 19960] Starting new server 19960 for user 1001";
        let ready = "[2026-11-21 06:27:48.748 Control 7] NEW SERVER 19960: Ready";
        let fails = "[2026-11-21 06:27:48.541 Control 7] Server 19960 exited with status 1";
        let ends = "[2026-11-21 06:27:48.541 Control 7] Server 19960 exited with status 0";
        assert_eq!(of(&[asks, asks, nameless, nameless]).pending, [(1001, 1), (1002, 2)].into());
        assert_eq!(of(&[asks, nameless, starts, ready]).pending, [(1002, 1)].into());
        let failed = of(&[asks, starts, fails]);
        assert!(failed.pending.is_empty());
        assert_eq!((failed.server_starts, failed.server_exits), (1, [(1, 1)].into()));
        // A server that exits cleanly leaves its user's clients waiting for the next server.
        assert_eq!(of(&[starts, ready, asks, ends]).pending, [(1001, 1)].into());
        let mut figures = Figures::default();
        figures.line(asks.as_bytes(), Age::New);
        figures.forget(|uid, pid| Some((uid, pid) == (1001, 19917)));
        assert_eq!(figures.report().pending, [(1001, 1)].into(), "it runs");
        figures.forget(|uid, _| Some(uid != 1001));
        assert!(figures.report().pending.is_empty(), "it has exited");
    }

    #[test]
    fn client_that_cannot_be_checked_waits_for_some_minutes() {
        let nameless = b"[2026-11-21 06:27:48.525 Control 7] NEW CLIENT 0 from user 1002: Server is not ready, push client to pending list";
        let mut figures = Figures::default();
        let mut waits = |minutes, asks: bool| {
            figures.at(Duration::from_mins(minutes));
            if asks {
                figures.line(nameless, Age::New);
            }
            figures.forget(|_, _| None);
            figures.report().pending.get(&1002).copied()
        };
        assert_eq!(waits(100, true), Some(1));
        assert_eq!(waits(104, true), Some(2), "it connects again");
        assert_eq!(waits(108, false), Some(2));
        assert_eq!(waits(109, false), None);
    }

    #[test]
    fn only_what_is_new_is_counted_and_what_is_not_understood_is() {
        let mut figures = Figures::default();
        let fault = b"[2026-11-21 06:27:48.525 Server 9] Client process 7 encountered a fatal GPU error.";
        for age in [Age::Old, Age::New] {
            figures.line(fault, age);
            figures.line(b"an unknown line", age);
            figures.line(&[0xff, 0, 0x1b], age);
            figures.line(b"  \r", age);
            figures.line(b"[2026-11-21 06:27:48.525 Server 9] Failed to accept new client. Maximum number of clients (48) reached.", age);
        }
        figures.skipped(3);
        let log = figures.report();
        assert_eq!((log.client_faults, log.unparsed, log.skipped_bytes), (1, 2, 3));
        assert_eq!(log.rejected, [("clients".to_owned(), 1)].into());
    }

    /// A file with a hole can be as long as the file system permits, many times.
    #[test]
    fn skipped_bytes_of_sparse_logs_do_not_overflow() {
        let mut figures = Figures::default();
        for _ in 0..3 {
            figures.skipped(i64::MAX.unsigned_abs());
        }
        assert_eq!(figures.report().skipped_bytes, u64::MAX);
    }

    #[test]
    fn a_log_of_lies_is_bounded() {
        let mut figures = Figures::default();
        for number in 0..3000 {
            for line in [
                format!("[a b Control 7] NEW CLIENT {number} from user {number}: pending"),
                format!("[a b Control 7] Starting new server {number} for user 1"),
                format!("[a b Control 7] Server {number} exited with status {number}"),
            ] {
                figures.line(line.as_bytes(), Age::New);
            }
        }
        let log = figures.report();
        assert_eq!((log.pending.len(), log.server_exits.len()), (MOST, MOST_STATUSES));
        assert!(figures.owners.len() <= MOST);
    }
}
