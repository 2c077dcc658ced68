//! The parts of the API server's JSON that are read.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::time::SystemTime;

use bailiff_snapshot::Word;
use bailiff_snapshot::pod_api::{Deletion, EventReason, OwnerKind, PodFacts};
use bailiff_snapshot::pod_resources::ObjectName;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Annotation of the API server's copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The kubelet's default of `terminationGracePeriodSeconds`.
const GRACE_SECONDS: u64 = 30;
/// Maximum length of an annotation's value, which is a time, and of an owner's kind.
pub(crate) const LONGEST_VALUE: usize = 64;
/// Maximum length of an Event's note, in bytes (`validation/events.go` of Kubernetes).
const LONGEST_NOTE: usize = 1024;
/// Maximum number of labels, and of parts of a selector, that are read.
const MOST: usize = 1000;
/// What a rule does: values of an Event's `action`.
const ACTIONS: [(EventReason, &str, &str); 6] = [
    (EventReason::GpuIdle, "Notify", "Normal"),
    (EventReason::EvictedByRule, "Evict", "Normal"),
    (EventReason::EvictionFailed, "Evict", "Warning"),
    (EventReason::EvictionBlocked, "Evict", "Warning"),
    (EventReason::StoppedByRule, "Stop", "Normal"),
    (EventReason::StopFailed, "Stop", "Warning"),
];

/// A pod.
#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: PodStatus,
}

/// A pod or the owner of one, with what shows how they belong together.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: Size,
    #[serde(default)]
    pub(crate) status: Counted,
}

/// How many pods an owner is to have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Size {
    pub(crate) replicas: Option<u64>,
    pub(crate) suspend: bool,
    /// Who manages a Job, if not the controller of this cluster.
    #[serde(rename = "managedBy")]
    pub(crate) managed_by: Option<String>,
    pub(crate) selector: Selector,
}

/// How many pods it has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Counted {
    pub(crate) replicas: u64,
    pub(crate) active: u64,
}

/// Which pods an owner takes as its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Selector {
    match_labels: Labels,
    #[serde(deserialize_with = "few")]
    match_expressions: Vec<Requirement>,
}

#[derive(Debug, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default, deserialize_with = "few")]
    values: Vec<String>,
}

impl Selector {
    /// Returns whether these labels are selected. A selector without a requirement selects none here.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        self.may_select(labels) && labels.0.is_some() && self.match_labels.0.is_some()
    }

    /// The same, and true if there are too many labels to know.
    pub(crate) fn may_select(&self, labels: &Labels) -> bool {
        let (Some(labels), Some(match_labels)) = (&labels.0, &self.match_labels.0) else { return true };
        let is_empty = match_labels.is_empty() && self.match_expressions.is_empty();
        let meets = |requirement: &Requirement| {
            let value = labels.get(&requirement.key);
            let is_one = value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator.as_str() {
                "In" => is_one,
                "NotIn" => !is_one,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        };
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        !is_empty && match_labels.iter().all(has) && self.match_expressions.iter().all(meets)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) resource_version: String,
    #[serde(default)]
    creation_timestamp: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    #[serde(default)]
    pub(crate) owner_references: References,
    #[serde(default)]
    pub(crate) annotations: serde_json::Map<String, Value>,
    #[serde(default)]
    pub(crate) labels: Labels,
}

/// What matters of the references to owners, of which a pod can have very many.
#[derive(Debug, Default)]
pub(crate) struct References {
    pub(crate) controller: Option<Reference>,
    /// Whether one is to a `DaemonSet` or a `Node`: the admission policy refuses the pod.
    never: Option<OwnerKind>,
}

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut found = Self::default();
        let never = [OwnerKind::DaemonSet, OwnerKind::Node];
        let see = |reference: Reference| {
            found.never =
                found.never.or_else(|| never.into_iter().find(|kind| kind.name() == reference.kind));
            if reference.controller && found.controller.is_none() {
                found.controller = Some(reference);
            }
        };
        from.deserialize_seq(Each(see, PhantomData))?;
        Ok(found)
    }
}

/// Sees each element of a list, and keeps none.
struct Each<T, F>(F, PhantomData<T>);

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}

/// What a list of pods contains of each.
#[derive(Debug, Deserialize)]
pub(crate) struct Item {
    pub(crate) metadata: ItemMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemMetadata {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) owner_references: References,
    #[serde(default)]
    pub(crate) labels: Labels,
}

/// Sees each object of a list; returns false if it is no complete list.
pub(crate) fn each_item(body: impl Read, see: impl FnMut(Item)) -> bool {
    let mut from = serde_json::Deserializer::from_reader(body);
    from.deserialize_map(List(see)).is_ok_and(|is_whole| is_whole)
}

struct List<F>(F);

impl<'de, F: FnMut(Item)> Visitor<'de> for List<F> {
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<bool, A::Error> {
        #[derive(Deserialize)]
        struct ListMetadata {
            #[serde(default, rename = "continue")]
            rest: String,
        }
        let (mut has_items, mut has_rest) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" => {
                    map.next_value_seed(Items(&mut self.0))?;
                    has_items = true;
                }
                "metadata" => has_rest |= !map.next_value::<ListMetadata>()?.rest.is_empty(),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(has_items && !has_rest)
    }
}

struct Items<'f, F>(&'f mut F);

impl<'de, F: FnMut(Item)> DeserializeSeed<'de> for Items<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(Each(self.0, PhantomData))
    }
}

/// Returns a list of few elements.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let (mut few, mut count) = (Vec::new(), 0);
    let add = |element| {
        count += 1;
        few.extend(Some(element).filter(|_| count <= MOST));
    };
    from.deserialize_seq(Each(add, PhantomData))?;
    if count > MOST { Err(D::Error::custom("too many elements")) } else { Ok(few) }
}

/// Labels; `None` if there are too many. Kubernetes does not limit their number.
#[derive(Debug)]
pub(crate) struct Labels(Option<BTreeMap<String, String>>);

impl Default for Labels {
    fn default() -> Self {
        Self(Some(BTreeMap::new()))
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = Labels;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Some(BTreeMap::new());
        while let Some((key, value)) = map.next_entry()? {
            labels = labels.take_if(|labels| labels.len() < MOST);
            labels.as_mut().map(|labels| labels.insert(key, value));
        }
        Ok(Labels(labels))
    }
}

/// A reference to an owner.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reference {
    #[serde(default)]
    pub(crate) api_version: String,
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) controller: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    priority_class_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct PodStatus {
    phase: String,
}

/// A `Status`, which the API server returns for an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) message: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

impl Status {
    /// Returns whether a disruption budget is the cause.
    pub(crate) fn is_by_budget(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "DisruptionBudget")
    }

    /// Returns the seconds after which to ask again; 0 means that none are given.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.details.as_ref()?.retry_after_seconds.filter(|seconds| *seconds > 0)
    }
}

impl Pod {
    /// Returns what decides about an eviction; `None` if this is another pod than the requested one.
    pub(crate) fn facts(
        self,
        (requested, annotation): (&ObjectName, Option<&str>),
        (node, own_namespace): (&str, &str),
    ) -> Option<PodFacts> {
        let Self { metadata, spec, status } = self;
        if (metadata.namespace.as_str(), metadata.name.as_str()) != (requested.namespace(), requested.name())
        {
            return None;
        }
        let until = metadata.deletion_timestamp;
        // The kubelet uses 1 s in place of a negative time, which the API server accepts.
        let seconds = |time: i64| u64::try_from(time).unwrap_or(1);
        let grace_seconds = metadata.deletion_grace_period_seconds.map(seconds).unwrap_or_default();
        let deletion = until.map(|until| Deletion { until, grace_seconds });
        let References { controller, never } = metadata.owner_references;
        let owner = never.map(OwnerKind::name).or(controller.as_ref().map(|owner| owner.kind.as_str()));
        let mirror = metadata.annotations.contains_key(MIRROR).then_some(OwnerKind::Node.name());
        let owner = mirror.or(owner);
        let owner = owner.map(|kind| Word::from(&kind[..kind.floor_char_boundary(LONGEST_VALUE)]));
        let annotation = annotation.and_then(|key| metadata.annotations.get(key)?.as_str());
        Some(PodFacts {
            annotation: annotation.map(|value| value.chars().take(LONGEST_VALUE).collect()),
            uid: metadata.uid,
            created: metadata.creation_timestamp,
            on_this_node: spec.node_name.as_deref() == Some(node),
            in_own_namespace: metadata.namespace == own_namespace,
            phase: status.phase,
            deletion,
            owner,
            priority_class: spec.priority_class_name,
            grace_seconds: spec.termination_grace_period_seconds.map_or(GRACE_SECONDS, seconds),
        })
    }
}

/// Returns the path of a pod.
pub(crate) fn path_of(pod: &ObjectName) -> String {
    format!("api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name())
}

/// Returns the body of an eviction. No grace period is sent: 0 would remove the object at once.
pub(crate) fn eviction(pod: &ObjectName) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace(), "name": pod.name()},
        "deleteOptions": {"preconditions": {"uid": pod.uid()}},
    })
}

/// Returns the body of an Event about a pod.
pub(crate) fn event(
    pod: &ObjectName,
    (reason, note): (EventReason, &str),
    node: &str,
    now: SystemTime,
) -> Value {
    let known = ACTIONS.iter().find(|known| known.0 == reason);
    let (action, kind) = known.map_or(("Notify", "Normal"), |known| (known.1, known.2));
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": pod.namespace(), "generateName": format!("{}-", pod.name())},
        "eventTime": humantime::format_rfc3339_micros(now).to_string(),
        "reportingController": "gpu-bailiff",
        "reportingInstance": node,
        "action": action,
        "reason": reason.name(),
        "type": kind,
        "note": &note[..note.floor_char_boundary(LONGEST_NOTE)],
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace(), "name": pod.name(), "uid": pod.uid(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_an_event_is_cut_between_letters() {
        let pod = ObjectName::new("team", "web", "0b1c2d3e-0000-4000-8000-000000000001").expect("a name");
        let note = "a".to_owned() + &"ä".repeat(3000);
        let event = event(&pod, (EventReason::StopFailed, &note), "node-1", SystemTime::UNIX_EPOCH);
        assert_eq!(event["note"].as_str().map(str::len), Some(LONGEST_NOTE - 1));
        assert_eq!((&event["action"], &event["type"]), (&json!("Stop"), &json!("Warning")));
        assert_eq!(event["metadata"], json!({"namespace": "team", "generateName": "web-"}));
    }
}
