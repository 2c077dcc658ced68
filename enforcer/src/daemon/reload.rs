//! Reload of the rules file: it is applied completely or not at all, and the outcome is reported.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bailiff_lifecycle::exit::{Stop, plain};
use bailiff_lifecycle::permissions::FilePermissions;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Daemon, status};
use crate::clock::now;
use crate::policy_file::{self, Rules, Stamp};
use crate::status::tally::Reloaded;
use crate::status::{NOT_LOADED, PolicyStatus};
use crate::web::Outcome;
use bailiff_engine::policy::{FaultStyle, Faults, Loaded, Policy};
use bailiff_engine::verdict::Hold;

/// A request to reload the rules file.
#[derive(Debug)]
pub(super) struct Condition {
    why: &'static str,
    answer: oneshot::Sender<Outcome>,
}

/// The rules file, with the requests for it. After a change or a periodic check, there may be none.
pub(super) type Read = (Vec<Condition>, io::Result<Rules>);

/// Loads the policy at startup. The daemon does not start if the file is invalid or cannot be read.
pub(super) fn first(
    path: &Path,
    permissions: FilePermissions,
) -> Result<(Arc<Policy>, PolicyStatus, Stamp), Stop> {
    let name = path.display().to_string();
    let (stamp, rules) = policy_file::first(path, permissions)
        .map_err(|error| Stop::Usage(format!("the rules file {name}: {}", unread(&error))))?;
    match usable(rules.loaded) {
        Ok(policy) => {
            let at = Some(now().wall.as_secs_f64());
            let status = PolicyStatus {
                path: name,
                sha256: Some(rules.sha256),
                loaded: at,
                good: at,
                last: Some(Reloaded::Applied),
                read: at,
                faults: Vec::new(),
            };
            Ok((policy, status, stamp))
        }
        Err(faults) => {
            let text = faults.render(FaultStyle::Plain);
            Err(Stop::Usage(format!("the rules are invalid\n{}", text.trim_end())))
        }
    }
}

/// Logs the warnings of a policy.
fn usable(loaded: Result<Box<Loaded>, Faults>) -> Result<Arc<Policy>, Faults> {
    let Loaded { policy, warnings } = *loaded?;
    for line in warnings.lines() {
        tracing::warn!("{line}");
    }
    Ok(Arc::new(policy))
}

/// Returns the reason why the file could not be read.
fn unread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "not found".to_owned(),
        // Not the system's error, but a refusal because of the permissions.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => format!("refused: {error}"),
        _ => format!("cannot be read: {}", plain(error)),
    }
}

/// Returns the response to a reload request on the control socket.
pub(super) fn answer(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Applied(sha256) => json!({"ok": true, "result": "applied", "sha256": sha256}),
        Outcome::Unchanged => json!({"ok": true, "result": "unchanged"}),
        Outcome::Refused(faults) => {
            json!({"ok": false, "error": NOT_LOADED, "faults": faults})
        }
    }
}

impl Daemon {
    /// Requests a read of the rules file, which may take long. `answer` receives the outcome.
    pub(super) fn ask_to_read(&self, why: &'static str, answer: oneshot::Sender<Outcome>) {
        // The receiver is closed only during shutdown.
        drop(self.rereads.send(Condition { why, answer }));
    }

    /// Applies the rules file if it is valid, and answers the requests for it.
    pub(super) fn reread(&mut self, (asked, read): Read) {
        let outcome = self.take_over(asked.first().map_or("the file changed", |ask| ask.why), read);
        for ask in asked {
            drop(ask.answer.send(outcome.clone()));
        }
    }

    fn take_over(&mut self, why: &'static str, read: io::Result<Rules>) -> Outcome {
        let before = self.status.policy.faults.clone();
        let outcome = self.understand(read);
        let result = outcome.result();
        // A file with the same content or the same errors as before is not logged again.
        let news = match &outcome {
            Outcome::Applied(_) => true,
            Outcome::Unchanged => !before.is_empty(),
            Outcome::Refused(faults) => *faults != before,
        };
        if news {
            tracing::info!(result = result.name(), why, "rules file reloaded");
            let how = if result == Reloaded::Refused { "refused" } else { "done" };
            self.record_change(("reload", how), &status::reload_detail(&outcome, why));
        }
        self.status.counters.reloads.count(result);
        self.status.policy.last = Some(result);
        self.status.policy.read = Some(now().wall.as_secs_f64());
        outcome
    }

    fn understand(&mut self, read: io::Result<Rules>) -> Outcome {
        let name = self.status.policy.path.clone();
        let rules = match read {
            Ok(rules) => rules,
            Err(error) => {
                self.read_sha256 = None;
                return self.refuse(vec![format!("{name}: {}", unread(&error))]);
            }
        };
        let faults = &self.status.policy.faults;
        if self.read_sha256.as_ref() == Some(&rules.sha256) && !faults.is_empty() {
            return Outcome::Refused(faults.clone());
        }
        self.read_sha256 = Some(rules.sha256.clone());
        if rules.sha256 == self.engine.policy().sha256 {
            self.accept();
            return Outcome::Unchanged;
        }
        match usable(rules.loaded) {
            Ok(policy) => {
                self.adopt(policy);
                Outcome::Applied(rules.sha256)
            }
            Err(faults) => self.refuse(faults.lines().collect()),
        }
    }

    fn adopt(&mut self, policy: Arc<Policy>) {
        self.renew_subordinate_uids();
        let reloaded = self.engine.reload(policy, self.settings.most);
        if let Some(action) = reloaded.cancel {
            self.executor.cancel(action);
        }
        let policy = Arc::clone(self.engine.policy());
        self.notices.keep(&policy.channels);
        self.flagged.retain(|(rule, _), _| policy.rules.iter().any(|other| other.name == *rule));
        status::begin_counts(&mut self.status.counters, &self.engine);
        self.accept();
        self.status.policy.sha256 = Some(policy.sha256.clone());
        self.status.policy.loaded = self.status.policy.good;
        self.save();
    }

    fn accept(&mut self) {
        self.status.policy.faults.clear();
        self.status.policy.good = Some(now().wall.as_secs_f64());
        self.hold_if(Hold::InvalidFile, false);
    }

    /// Keeps the previous policy in force, and withholds all destructive steps while the file is invalid.
    fn refuse(&mut self, faults: Vec<String>) -> Outcome {
        if faults != self.status.policy.faults {
            for line in &faults {
                tracing::error!("{line}");
            }
        }
        self.status.policy.faults.clone_from(&faults);
        self.hold_if(Hold::InvalidFile, true);
        Outcome::Refused(faults)
    }
}
