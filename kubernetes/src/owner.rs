//! Owners of pods: what creates a pod again, and how it is stopped.

use std::collections::BTreeSet;
use std::time::SystemTime;

use bailiff_snapshot::Word;
use bailiff_snapshot::pod_api::{Owner, OwnerKind, PodAnswer, Scale};
use bailiff_snapshot::pod_resources::ObjectName;
use serde_json::{Value, json};

use crate::json::{Item, LONGEST_VALUE, Metadata, Object, Reference, path_of};

/// Kinds of owners, and where the API server has them.
const KINDS: [Known; 5] = [
    Known {
        kind: OwnerKind::ReplicaSet,
        api: "apps/v1",
        plural: "replicasets",
        part_of: Some(OwnerKind::Deployment),
    },
    Known { kind: OwnerKind::Deployment, api: "apps/v1", plural: "deployments", part_of: None },
    Known {
        kind: OwnerKind::StatefulSet,
        api: "apps/v1",
        plural: "statefulsets",
        part_of: Some(OwnerKind::Notebook),
    },
    Known { kind: OwnerKind::Job, api: "batch/v1", plural: "jobs", part_of: None },
    Known { kind: OwnerKind::Notebook, api: "kubeflow.org/v1", plural: "notebooks", part_of: None },
];
/// Annotation with which Kubeflow's controller stops a notebook (`STOP_ANNOTATION` of its notebook-controller). Its value is a
/// time.
const NOTEBOOK_STOPPED: &str = "kubeflow-resource-stopped";

/// Maximum number of an owner's pods that are named, and one more. An owner with so many is not stopped.
const MOST_OWN: usize = 64;

/// Value of a Job's `managedBy` for Kubernetes' own controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

struct Known {
    kind: OwnerKind,
    api: &'static str,
    plural: &'static str,
    /// Kind of the owner of such an object that is stopped in its place.
    part_of: Option<OwnerKind>,
}

impl Known {
    fn of(reference: &Reference) -> Option<&'static Self> {
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        KINDS.iter().find(|known| {
            known.kind.name() == reference.kind && group(known.api) == group(&reference.api_version)
        })
    }

    /// Returns whether its controller takes an object that names it as its owner for its own. Anyone can write the name.
    fn owns(&self, owner: &Object, object: &Object) -> bool {
        match self.kind {
            OwnerKind::Notebook => owner.metadata.name == object.metadata.name,
            _ => owner.spec.selector.selects(&object.metadata.labels),
        }
    }

    /// Returns whether the controller of an owner that a pod names counts it as its own: controllers look for an owner by kind,
    /// name and UID. That of a `StatefulSet` counts only pods with its name and a number, which it reads as an `i32`
    /// (`getParentNameAndOrdinal` of Kubernetes). A `Deployment` counts no pods, but those of its `ReplicaSet`s.
    fn has_pod(&self, owner: &Object, pod: &Object) -> bool {
        let owner_is = |reference: &Reference| {
            (reference.api_version.as_str(), reference.kind.as_str()) == (self.api, self.kind.name())
                && (&reference.name, &reference.uid) == (&owner.metadata.name, &owner.metadata.uid)
        };
        let number =
            pod.metadata.name.strip_prefix(&owner.metadata.name).and_then(|rest| rest.strip_prefix('-'));
        let is_numbered = || {
            number.is_some_and(|text| {
                text.parse::<i32>().is_ok_and(|number| number >= 0 && number.to_string() == text)
            })
        };
        self.kind != OwnerKind::Deployment
            && pod.metadata.owner_references.controller.as_ref().is_some_and(owner_is)
            && owner.spec.selector.selects(&pod.metadata.labels)
            && (self.kind != OwnerKind::StatefulSet || is_numbered())
    }

    fn path(&self, object: &ObjectName) -> String {
        format!("apis/{}/namespaces/{}/{}/{}", self.api, object.namespace(), self.plural, object.name())
    }
}

/// What is read from the API server.
pub(crate) trait Reads {
    /// Reads an object.
    fn object(&self, path: &str) -> Result<Object, Box<PodAnswer>>;
    /// Reads the pods of a namespace that have not finished, one at a time, because their authors choose their size.
    fn each_pod(&self, namespace: &str, see: &mut dyn FnMut(Item)) -> Result<(), Box<PodAnswer>>;
}

/// Returns the last owner in the chain of those that control a pod, and which pods are or may be its own; `None` if none does.
///
/// # Errors
/// With the answer if an object cannot be read, or is another one by now.
pub(crate) fn find(pod: &ObjectName, reads: &impl Reads) -> Result<Option<Owner>, Box<PodAnswer>> {
    let read = |path: &str| reads.object(path);
    let found = read(&path_of(pod))?;
    same(pod, &found)?;
    let Some(reference) = controller(&found.metadata) else { return Ok(None) };
    let Some((known, name)) = place(reference, pod)? else { return unknown(reference, pod).map(Some) };
    let direct = read_owner(read, known, &name)?;
    let mut chain = vec![(known, name, direct)];
    if let Some(reference) = controller(&chain[0].2.metadata) {
        let above = place(reference, pod)?.filter(|(above, _)| known.part_of == Some(above.kind));
        let Some((above, name)) = above else { return unknown(reference, pod).map(Some) };
        let object = read_owner(read, above, &name)?;
        if let Some(reference) = controller(&object.metadata) {
            return unknown(reference, pod).map(Some);
        }
        chain.push((above, name, object));
    }
    let is_chain = chain.windows(2).all(|pair| pair[1].0.owns(&pair[1].2, &pair[0].2));
    let is_its_own = is_chain && known.has_pod(&chain[0].2, &found);
    let objects: Vec<&Object> = chain.iter().rev().map(|(.., object)| object).collect();
    let Some((known, name, _)) = chain.last() else { return Ok(None) };
    let is_managed_here = objects[0].spec.managed_by.as_deref().is_none_or(|by| by == JOB_CONTROLLER);
    if known.kind == OwnerKind::ReplicaSet || !is_managed_here {
        return Ok(Some(Owner { kind: known.kind.into(), object: name.clone(), scale: None }));
    }
    let mut own = BTreeSet::new();
    reads.each_pod(pod.namespace(), &mut |Item { metadata }| {
        let names = |owner: &Reference| objects.iter().any(|object| object.metadata.uid == owner.uid);
        // Also a pod that is being deleted: another one will take its place.
        let may_be_own = metadata.owner_references.controller.as_ref().is_some_and(names)
            || objects.iter().any(|object| object.spec.selector.may_select(&metadata.labels));
        if may_be_own && own.len() <= MOST_OWN {
            own.insert(metadata.uid);
        }
    })?;
    let scale = Some(scale(known.kind, &objects, (is_its_own, own)));
    Ok(Some(Owner { kind: known.kind.into(), object: name.clone(), scale }))
}

fn controller(metadata: &Metadata) -> Option<&Reference> {
    metadata.owner_references.controller.as_ref()
}

/// Returns where the API server has an owner; `None` for an unknown kind.
fn place(
    reference: &Reference,
    pod: &ObjectName,
) -> Result<Option<(&'static Known, ObjectName)>, Box<PodAnswer>> {
    let Some(known) = Known::of(reference) else { return Ok(None) };
    Ok(Some((known, name(reference, pod)?)))
}

fn name(reference: &Reference, pod: &ObjectName) -> Result<ObjectName, Box<PodAnswer>> {
    let name = ObjectName::new(pod.namespace(), &reference.name, &reference.uid);
    name.ok_or_else(|| answer(422, "the name of its owner is not valid"))
}

/// Returns an owner that cannot be stopped.
fn unknown(reference: &Reference, pod: &ObjectName) -> Result<Owner, Box<PodAnswer>> {
    let group = reference.api_version.split_once('/').map(|(group, _)| group);
    let kind = match (Known::of(reference), group) {
        (None, Some(group)) => format!("{}.{group}", reference.kind),
        _ => reference.kind.clone(),
    };
    let kind = Word::from(&kind[..kind.floor_char_boundary(LONGEST_VALUE)]);
    Ok(Owner { kind, object: name(reference, pod)?, scale: None })
}

fn read_owner(
    read: impl Fn(&str) -> Result<Object, Box<PodAnswer>>,
    known: &Known,
    name: &ObjectName,
) -> Result<Object, Box<PodAnswer>> {
    let object = read(&known.path(name)).map_err(|answer| match answer.status {
        Some(404) => self::answer(409, "its owner no longer exists"),
        _ => answer,
    })?;
    same(name, &object)?;
    Ok(object)
}

/// Checks that an object is the one that was named.
fn same(name: &ObjectName, object: &Object) -> Result<(), Box<PodAnswer>> {
    let found = &object.metadata;
    let is_same = (found.namespace.as_str(), found.name.as_str(), found.uid.as_str())
        == (name.namespace(), name.name(), name.uid());
    if is_same { Ok(()) } else { Err(answer(409, &format!("{name} is another object by now"))) }
}

fn answer(status: u16, message: &str) -> Box<PodAnswer> {
    Box::new(PodAnswer { status: Some(status), message: message.to_owned(), ..PodAnswer::default() })
}

/// Returns how many pods an owner has. `chain` is the owner, and what it owns.
fn scale(kind: OwnerKind, chain: &[&Object], (is_its_own, own): (bool, BTreeSet<String>)) -> Scale {
    let Object { metadata, spec, .. } = chain[0];
    let is_stopped = match kind {
        OwnerKind::Job => spec.suspend,
        OwnerKind::Notebook => metadata.annotations.contains_key(NOTEBOOK_STOPPED),
        _ => spec.replicas == Some(0),
    };
    let counts = |object: &&Object| {
        object.status.replicas.max(object.status.active).max(object.spec.replicas.unwrap_or_default())
    };
    let pods = chain.iter().map(counts).max().unwrap_or_default();
    Scale { version: metadata.resource_version.clone(), pods, is_stopped, is_its_own, own }
}

/// Returns the path and the body of the request that stops an owner; `None` if it cannot be stopped. The UID and the version that was
/// read are preconditions: the API server answers 409 if the owner has changed since.
pub(crate) fn stop(owner: &Owner, now: SystemTime) -> Option<(String, Value)> {
    let (known, scale) =
        (KINDS.iter().find(|known| owner.kind.known() == Some(known.kind))?, owner.scale.as_ref()?);
    let path = known.path(&owner.object);
    let metadata = json!({"uid": owner.object.uid(), "resourceVersion": scale.version});
    Some(match known.kind {
        OwnerKind::Deployment | OwnerKind::StatefulSet => {
            (format!("{path}/scale"), json!({"metadata": metadata, "spec": {"replicas": 0}}))
        }
        OwnerKind::Job => (path, json!({"metadata": metadata, "spec": {"suspend": true}})),
        OwnerKind::Notebook => {
            let mut metadata = metadata;
            let now = humantime::format_rfc3339_seconds(now).to_string();
            metadata["annotations"] = json!({NOTEBOOK_STOPPED: now});
            (path, json!({"metadata": metadata}))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::each_item;

    const UID: &str = "0b1c2d3e-0000-4000-8000-000000000001";
    const SET: &str = "0b1c2d3e-0000-4000-8000-000000000002";

    fn named(name: &str) -> ObjectName {
        ObjectName::new("team", name, UID).unwrap()
    }

    /// Returns the UIDs of the pods that are those of the only owner, which has this kind.
    fn own(pod: &Value, (kind, owner): (&str, &str)) -> Option<BTreeSet<String>> {
        scale_of(pod, (kind, owner)).filter(|scale| scale.is_its_own).map(|scale| scale.own)
    }

    /// The objects of a namespace: a pod, its owner, and a list of pods.
    struct Made<'a>(&'a Value, Value, Vec<Value>);

    impl Reads for Made<'_> {
        fn object(&self, path: &str) -> Result<Object, Box<PodAnswer>> {
            let found = if path.contains("/pods/") { self.0 } else { &self.1 };
            serde_json::from_value(found.clone()).map_err(|error| answer(422, &error.to_string()))
        }

        fn each_pod(&self, _: &str, see: &mut dyn FnMut(Item)) -> Result<(), Box<PodAnswer>> {
            let list = json!({"metadata": {"continue": ""}, "items": self.2});
            assert!(each_item(list.to_string().as_bytes(), see));
            Ok(())
        }
    }

    fn scale_of(pod: &Value, (kind, owner): (&str, &str)) -> Option<Scale> {
        let object = json!({
            "metadata": {"name": owner, "namespace": "team", "uid": SET},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        let name = pod["metadata"]["name"].as_str().unwrap();
        let found = find(&named(name), &Made(pod, object, vec![pod.clone()])).ok()??;
        assert!(*found.kind == *kind || found.scale.is_none());
        found.scale
    }

    fn pod(name: &str, labels: &Value, (api, kind, owner): (&str, &str, &str)) -> Value {
        let reference =
            json!({"apiVersion": api, "kind": kind, "name": owner, "uid": SET, "controller": true});
        json!({"metadata": {
            "name": name, "namespace": "team", "uid": UID, "labels": labels, "ownerReferences": [reference],
        }})
    }

    #[test]
    fn only_pods_that_a_controller_counts_are_its_own() {
        let set = ("apps/v1", "StatefulSet", "web");
        let labels = json!({"app": "web"});
        let many: serde_json::Map<String, Value> =
            (0..2000).map(|n| (n.to_string(), json!(""))).chain([("app".to_owned(), json!("web"))]).collect();
        for (name, labels, expected) in [
            ("web-0", &labels, true),
            ("web-12", &labels, true),
            ("web-00", &labels, false),
            ("web-9999999999", &labels, false),
            ("web", &labels, false),
            ("other-0", &labels, false),
            ("web-0", &json!({"app": "x"}), false),
            ("web-0", &json!({}), false),
            ("web-0", &Value::Object(many), false),
        ] {
            let found = own(&pod(name, labels, set), ("StatefulSet", "web"));
            assert_eq!(
                found.map(|own| own.len()).unwrap_or_default(),
                usize::from(expected),
                "{name} {expected}"
            );
        }
        for (reference, expected) in [
            (("batch/v1", "Job", "train"), true),
            // The object that is read has another name than the reference says.
            (("batch/v1", "Job", "zzz"), false),
            (("batch/v9", "Job", "train"), false),
            // A Deployment has ReplicaSets.
            (("apps/v1", "Deployment", "train"), false),
            (("batch.volcano.sh/v1", "Job", "train"), false),
        ] {
            let kind = if reference.1 == "Deployment" { "Deployment" } else { "Job" };
            let found = own(&pod("x", &json!({"app": "web"}), reference), (kind, "train"));
            assert_eq!(
                found.map(|own| own.len()).unwrap_or_default(),
                usize::from(expected),
                "{reference:?}"
            );
        }
    }

    /// The controller may not have counted a pod yet, or be kept from it.
    #[test]
    fn every_pod_that_names_or_resembles_the_owner_may_be_its_own() {
        let set = json!({
            "metadata": {"name": "web", "namespace": "team", "uid": SET},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"replicas": 1},
        });
        let first = pod("web-0", &json!({"app": "web"}), ("apps/v1", "StatefulSet", "web"));
        let listed = |uid: &str, change: fn(&mut Value)| {
            let mut other = first.clone();
            other["metadata"]["uid"] = json!(uid);
            change(&mut other["metadata"]);
            other
        };
        let list = vec![
            first.clone(),
            listed("names", |pod| pod["labels"] = json!({})),
            listed("resembles", |pod| pod["ownerReferences"] = json!([])),
            listed("deleted", |pod| pod["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            listed("other", |pod| (pod["labels"], pod["ownerReferences"]) = (json!({}), json!([]))),
        ];
        let found = find(&named("web-0"), &Made(&first, set, list)).unwrap().unwrap();
        let expected = ["deleted", "names", "resembles", UID].map(str::to_owned);
        assert_eq!(found.scale.map(|scale| scale.own), Some(BTreeSet::from(expected)));
    }

    #[test]
    fn job_of_another_cluster_is_not_stopped() {
        let first = pod("x", &json!({"app": "web"}), ("batch/v1", "Job", "train"));
        for (by, expected) in [(JOB_CONTROLLER, true), ("kueue.x-k8s.io/multikueue", false)] {
            let job = json!({
                "metadata": {"name": "train", "namespace": "team", "uid": SET},
                "spec": {"managedBy": by, "selector": {"matchLabels": {"app": "web"}}},
            });
            let found = find(&named("x"), &Made(&first, job, vec![first.clone()])).unwrap().unwrap();
            assert_eq!(found.scale.is_some(), expected, "{by}");
        }
    }

    #[test]
    fn incomplete_list_is_none() {
        for (list, expected) in [
            ("{\"items\":[]}", true),
            ("{}", false),
            ("{\"items\":[],\"metadata\":{\"continue\":\"x\"}}", false),
            ("{\"items\":[", false),
        ] {
            assert_eq!(each_item(list.as_bytes(), |_| {}), expected, "{list}");
        }
    }

    #[test]
    fn selectors_have_the_operators_of_kubernetes() {
        let selects = |expression: Value, labels: Value| {
            let object = json!({
                "metadata": {"name": "x", "namespace": "team", "uid": SET, "labels": labels},
                "spec": {"selector": {"matchExpressions": [expression]}},
            });
            let object: Object = serde_json::from_value(object).unwrap();
            object.spec.selector.selects(&object.metadata.labels)
        };
        let requires = |operator: &str| json!({"key": "a", "operator": operator, "values": ["1", "2"]});
        for (operator, expected) in [
            ("In", [true, false, false]),
            ("NotIn", [false, true, true]),
            ("Exists", [true, true, false]),
            ("DoesNotExist", [false, false, true]),
            ("Other", [false, false, false]),
        ] {
            let found = [json!({"a": "1"}), json!({"a": "3"}), json!({"b": "1"})]
                .map(|labels| selects(requires(operator), labels));
            assert_eq!(found, expected, "{operator}");
        }
    }

    #[test]
    fn very_many_references_are_read_one_by_one() {
        let other = json!({"apiVersion": "v", "kind": "A", "name": "a", "uid": "a"});
        let mut pod = pod("web-0", &json!({}), ("apps/v1", "ReplicaSet", "web"));
        let references = pod["metadata"]["ownerReferences"].as_array_mut().unwrap();
        references.splice(0..0, std::iter::repeat_n(other, 50_000));
        let object: Object = serde_json::from_value(pod).unwrap();
        assert_eq!(controller(&object.metadata).map(|owner| owner.kind.as_str()), Some("ReplicaSet"));
    }
}
