//! Requests and responses of the control socket, shared by the daemon and the commands,
//! and those of the users' socket.

use bailiff_engine::engine::HeldTargets;
use bailiff_lifecycle::control::Peer;
use serde::{Deserialize, Serialize};

/// A request to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Question {
    /// Request the status. The response contains `status`.
    Status,
    /// Request why rules match or do not match. The response contains `explanation`.
    Explain {
        /// Only this process.
        pid: Option<u32>,
        /// Only this rule.
        rule: Option<String>,
    },
    /// Withhold all destructive steps.
    Pause {
        /// Length of the pause; without it, the pause lasts until `Resume`.
        for_seconds: Option<u64>,
        /// Reason, shown by `status`.
        #[serde(default)]
        reason: String,
    },
    /// End the pause and close open breakers.
    Resume,
    /// Reload the rules file. The response contains `result`, and `sha256` or `faults`.
    Reload,
}

/// A request of any user, about the user's own targets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum UserQuestion {
    /// Hold the user's targets. The response contains `holds`: for each target and rule, what was granted.
    Hold {
        /// Requested length, which each rule limits.
        for_seconds: u64,
        /// Reason, shown to administrators.
        #[serde(default)]
        reason: String,
        /// The targets.
        which: HeldTargets,
    },
    /// Request what rules will do to the user's targets. The response contains `coming`.
    Coming,
    /// Request what happened to the user's targets, and what will. The response contains `entries` of the audit log
    /// and `coming`.
    Why {
        /// Only targets with this process.
        pid: Option<u32>,
        /// Only targets of this Slurm job.
        job: Option<String>,
    },
}

impl Question {
    /// Returns whether the request changes what the daemon does.
    pub const fn changes(&self) -> bool {
        matches!(self, Self::Pause { .. } | Self::Resume | Self::Reload)
    }
}

/// Returns whether a client may change what the daemon does: root and members of the socket's group may.
pub fn may_change(peer: &Peer, socket_gid: u32) -> bool {
    peer.is_root_or_in(socket_gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_as_they_are_asked() {
        let cases = [
            (r#"{"command":"status"}"#, Question::Status),
            (
                r#"{"command":"explain","pid":41,"rule":null}"#,
                Question::Explain { pid: Some(41), rule: None },
            ),
            (
                r#"{"command":"pause","for_seconds":60,"reason":"x"}"#,
                Question::Pause { for_seconds: Some(60), reason: "x".into() },
            ),
            (r#"{"command":"resume"}"#, Question::Resume),
            (r#"{"command":"reload"}"#, Question::Reload),
        ];
        for (text, question) in cases {
            assert_eq!(serde_json::from_str::<Question>(text).expect(text), question);
            assert_eq!(serde_json::to_string(&question).expect(text), text);
        }
        let short =
            serde_json::from_str::<Question>(r#"{"command":"pause"}"#).expect("the rest has defaults");
        assert_eq!(short, Question::Pause { for_seconds: None, reason: String::new() });
        assert!(serde_json::from_str::<Question>(r#"{"command":"kill"}"#).is_err());
    }

    #[test]
    fn only_some_may_change_anything() {
        let peer = |uid, gid, groups: &[u32]| Peer { pid: None, uid, gid, groups: groups.to_vec() };
        assert!(may_change(&peer(0, 0, &[]), 990) && may_change(&peer(1000, 1000, &[990]), 990));
        assert!(!may_change(&peer(1000, 1000, &[27]), 990));
        let changing = [
            Question::Resume,
            Question::Reload,
            Question::Pause { for_seconds: None, reason: String::new() },
        ];
        assert!(changing.iter().all(Question::changes) && !Question::Status.changes());
        assert!(!Question::Explain { pid: None, rule: None }.changes());
    }
}
