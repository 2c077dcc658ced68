//! Requests to `bailiff-kubernetes`, the program that alone has a token for the API server, and its answers: one line of JSON
//! each.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::Word;
use crate::pod_resources::ObjectName;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodRequest {
    /// Reads the pod.
    Get {
        /// The pod.
        pod: ObjectName,
        /// Key of an annotation whose value is returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        annotation: Option<String>,
    },
    /// Evicts the pod, with its UID as a precondition.
    Evict {
        /// The pod.
        pod: ObjectName,
        /// Whether the API server only tests whether it would (`dryRun=All`).
        dry_run: bool,
        /// Until when it may be sent, in milliseconds since boot.
        until_ms: u64,
    },
    /// Reads the owner that creates the pod again, with what shows whether it has other pods.
    Owner {
        /// The pod.
        pod: ObjectName,
    },
    /// Stops the owner, so that it deletes its pods and creates none. Its UID and version are preconditions.
    Stop {
        /// The pod.
        pod: ObjectName,
        /// Its owner.
        owner: Owner,
        /// Whether the API server only tests whether it would (`dryRun=All`).
        dry_run: bool,
        /// Until when it may be sent, in milliseconds since boot.
        until_ms: u64,
    },
    /// Writes an Event about the pod.
    Event {
        /// The pod.
        pod: ObjectName,
        /// Why.
        reason: EventReason,
        /// Text for people.
        note: String,
    },
}

crate::label_values! {
/// Reason of an Event.
pub enum EventReason {
    /// A rule matches the pod.
    GpuIdle = "GPUIdle",
    /// A rule had the pod evicted.
    EvictedByRule = "EvictedByRule",
    /// The pod was evicted, but its processes still run, or its memory was not released.
    EvictionFailed = "EvictionFailed",
    /// A disruption budget does not permit the eviction.
    EvictionBlocked = "EvictionBlocked",
    /// A rule had the pod's owner stopped.
    StoppedByRule = "StoppedByRule",
    /// The owner was stopped, but processes of its pods still run, or their memory was not released.
    StopFailed = "StopFailed",
}
}

impl PodRequest {
    /// Returns the pod.
    pub const fn pod(&self) -> &ObjectName {
        match self {
            Self::Get { pod, .. }
            | Self::Evict { pod, .. }
            | Self::Owner { pod }
            | Self::Stop { pod, .. }
            | Self::Event { pod, .. } => pod,
        }
    }

    /// Returns until when a change may be sent, since boot.
    pub const fn until(&self) -> Option<Duration> {
        match self {
            Self::Evict { until_ms, .. } | Self::Stop { until_ms, .. } => {
                Some(Duration::from_millis(*until_ms))
            }
            _ => None,
        }
    }

    /// Returns what is requested, in a word.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::Evict { dry_run: true, .. } => "evict_dry_run",
            Self::Evict { .. } => "evict",
            Self::Owner { .. } => "get_owner",
            Self::Stop { dry_run: true, .. } => "stop_dry_run",
            Self::Stop { .. } => "stop",
            Self::Event { .. } => "event",
        }
    }
}

/// An answer.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// The API server's HTTP status; `None` if there was no answer that could be understood.
    pub status: Option<u16>,
    /// Text for people: the API server's message, or why there is no status.
    #[serde(default)]
    pub message: String,
    /// Seconds after which the API server asks to be asked again.
    pub retry_after: Option<u64>,
    /// Whether the API server refuses because of a disruption budget.
    #[serde(default)]
    pub by_budget: bool,
    /// The pod, in the answer to [`PodRequest::Get`] with status 200.
    pub pod: Option<PodFacts>,
    /// The owner, in the answer to [`PodRequest::Owner`] with status 200; `None` if the pod has no owner.
    pub owner: Option<Owner>,
}

/// What creates a pod again: the last owner in the chain of those that control the pod and each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Kind, with the group if it is not the group of a known kind: `Deployment`, `Job.batch.volcano.sh`.
    pub kind: Word<OwnerKind>,
    /// Name and UID.
    pub object: ObjectName,
    /// What must be known to stop it; `None` if it is of a kind that cannot be stopped.
    pub scale: Option<Scale>,
}

/// How many pods an owner has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Version of the object that was read. It changes with the number of pods.
    pub version: String,
    /// Number of pods that it has or is to have, whichever is larger.
    pub pods: u64,
    /// Whether it is stopped already.
    pub is_stopped: bool,
    /// Whether its controller counts the pod as its own. Whoever writes a pod can name any owner.
    pub is_its_own: bool,
    /// UIDs of all pods of the namespace that name the owner, or that it selects, except those that have finished or are being
    /// deleted. The number in its status can be outdated.
    pub own: BTreeSet<String>,
}

/// What decides whether a pod is evicted.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// UID.
    pub uid: String,
    /// When it was created (RFC 3339).
    #[serde(default)]
    pub created: String,
    /// Whether the pod runs on the node of `bailiff-kubernetes`.
    pub on_this_node: bool,
    /// Whether the pod is in the namespace of `bailiff-kubernetes`.
    pub in_own_namespace: bool,
    /// Phase, such as `Running`.
    pub phase: String,
    /// Its deletion, if it is being deleted.
    pub deletion: Option<Deletion>,
    /// Kind of the owner that controls it.
    pub owner: Option<Word<OwnerKind>>,
    /// Name of the priority class.
    pub priority_class: Option<String>,
    /// Value of the requested annotation.
    pub annotation: Option<String>,
    /// Time that the kubelet gives the pod between SIGTERM and SIGKILL, in seconds.
    pub grace_seconds: u64,
}

/// Deletion of a pod that is in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// When the kubelet must have ended the pod (RFC 3339).
    pub until: String,
    /// Time between SIGTERM and SIGKILL, in seconds.
    pub grace_seconds: u64,
}

crate::label_values! {
/// Kind of the owner that controls a pod.
pub enum OwnerKind {
    /// Creates it again, up to `backoffLimit`.
    Job = "Job",
    /// Creates it again.
    ReplicaSet = "ReplicaSet",
    /// Creates it again.
    Deployment = "Deployment",
    /// Creates it again.
    StatefulSet = "StatefulSet",
    /// Creates it again: a notebook of Kubeflow, which owns a `StatefulSet`.
    Notebook = "Notebook",
    /// Creates it again, on the same node.
    DaemonSet = "DaemonSet",
    /// A static pod, which the API server cannot evict.
    Node = "Node",
}
}
