//! Commands for those whose processes the enforcer's rules apply to: `hold` and `why`.

pub(crate) mod hold;
pub(crate) mod why;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_lifecycle::control::{query, query_within};
use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exit::Failure;

/// Socket of the enforcer to which every user can connect.
pub(crate) const SOCKET: &str = "/run/bailiff/enforcer/user.sock";

/// The enforcer's socket for users.
#[derive(Debug, Args)]
pub(crate) struct UserSocket {
    /// Socket of the enforcer.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

impl UserSocket {
    /// Sends a request to the enforcer and returns its response.
    fn ask<T: DeserializeOwned>(&self, question: &Value) -> Result<T, Failure> {
        let answer = query(&self.socket, question).map_err(|why| Failure::unavailable(why.to_string()))?;
        if answer["ok"] != true {
            let why = answer["error"].as_str().unwrap_or("the enforcer refused without a reason");
            return Err(Failure::failed(why).sanitized());
        }
        serde_json::from_value(answer).map_err(|error| {
            Failure::unavailable(format!("cannot read the enforcer's response: {error}")).sanitized()
        })
    }
}

/// A step that a rule will take against a target if its condition stays true.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Coming {
    rule: String,
    mode: String,
    target: String,
    user: Option<String>,
    step: String,
    /// Seconds until then, at the earliest.
    due_in: Option<f64>,
    /// Why the step is withheld.
    withheld: Option<String>,
    /// Remaining seconds of a hold of the owner.
    held: Option<f64>,
}

/// Steps that end processes for good.
const ENDS: [&str; 4] = ["terminate", "cancel_job", "evict_pod", "stop_owner"];

/// Returns the time until the first termination of a process or job, of the current user or, for root, of the named one.
/// `None` if there is none, or if the enforcer does not respond within `limit`.
pub(crate) fn next_end(socket: &Path, user: Option<&str>, limit: Duration) -> Option<Duration> {
    let mut answer = query_within(socket, &json!({"command": "coming"}), limit).ok()?;
    let coming: Vec<Coming> = serde_json::from_value(answer["coming"].take()).ok()?;
    let ends = coming.into_iter().filter(|step| {
        let is_theirs = user.is_none_or(|user| step.user.as_deref() == Some(user));
        let is_carried_out = step.mode == "enforce" && step.withheld.is_none() && step.held.is_none();
        is_theirs && is_carried_out && ENDS.contains(&step.step.as_str())
    });
    let due = ends.filter_map(|step| Duration::try_from_secs_f64(step.due_in?).ok());
    due.min()
}
