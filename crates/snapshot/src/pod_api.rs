//! Requests to `bailiff-kubernetes`, the program that alone has a token for the API server, and its answers: one line of JSON
//! each.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::Word;
use crate::pod_resources::PodName;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodRequest {
    /// Reads the pod.
    Get {
        /// The pod.
        pod: PodName,
        /// Key of an annotation whose value is returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        annotation: Option<String>,
    },
    /// Evicts the pod, with its UID as a precondition.
    Evict {
        /// The pod.
        pod: PodName,
        /// Whether the API server only tests whether it would (`dryRun=All`).
        dry_run: bool,
    },
    /// Writes an Event about the pod.
    Event {
        /// The pod.
        pod: PodName,
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
}
}

impl PodRequest {
    /// Returns the pod.
    pub const fn pod(&self) -> &PodName {
        match self {
            Self::Get { pod, .. } | Self::Evict { pod, .. } | Self::Event { pod, .. } => pod,
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
}

/// What decides whether a pod is evicted.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// UID.
    pub uid: String,
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
    /// Creates it again. Also a notebook of Kubeflow.
    StatefulSet = "StatefulSet",
    /// Creates it again, on the same node.
    DaemonSet = "DaemonSet",
    /// A static pod, which the API server cannot evict.
    Node = "Node",
}
}
