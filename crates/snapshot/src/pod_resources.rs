//! Devices that the kubelet has allocated to containers, as its pod-resources API (`v1`) lists them, and what a snapshot
//! contains of that.

mod protobuf;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

pub use protobuf::{PodResourcesError, parse_allocatable, parse_list};

use crate::Word;

/// Prefix of the names of NVIDIA's resources. Devices of other resources are ignored.
const RESOURCES: &str = "nvidia.com/";
/// Suffix of the names of NVIDIA's drivers for dynamic resource allocation.
const DRIVERS: &str = "nvidia.com";

/// Name of a container. The API does not contain the UID of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerName {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container in the pod.
    pub container: String,
}

impl ContainerName {
    /// Returns the name, unless a part of it is not a name in Kubernetes.
    pub fn new(namespace: &str, pod: &str, container: &str) -> Option<Self> {
        let is_valid = is_label(namespace) && is_subdomain(pod) && is_label(container);
        is_valid.then(|| Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
        })
    }

    /// Parses the name of a link in `/var/log/containers`, `POD_NAMESPACE_CONTAINER-ID.log`; returns the id of the
    /// container, too.
    pub fn of_log(name: &str) -> Option<(&str, Self)> {
        let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
        let mut names = names.split('_');
        let (pod, namespace, container) = (names.next()?, names.next()?, names.next()?);
        let is_whole = names.next().is_none() && crate::place::is_id(id);
        Some((id, Self::new(namespace, pod, container)?)).filter(|_| is_whole)
    }

    /// Returns whether this is a container of the pod.
    pub fn is_in(&self, (namespace, pod): (&str, &str)) -> bool {
        self.namespace == namespace && self.pod == pod
    }
}

/// Name of a pod of this node, or of its owner: all that the URL and the body of a request to the API server contain of it. Every
/// part has a form that needs no escaping.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct ObjectName {
    namespace: String,
    name: String,
    uid: String,
}

/// The parts of a name, not checked yet.
#[derive(Deserialize)]
struct Parts {
    namespace: String,
    name: String,
    uid: String,
}

impl TryFrom<Parts> for ObjectName {
    type Error = &'static str;

    fn try_from(parts: Parts) -> Result<Self, Self::Error> {
        Self::new(&parts.namespace, &parts.name, &parts.uid).ok_or("not the name of an object")
    }
}

impl ObjectName {
    /// Returns the name, unless a part of it is not valid in Kubernetes.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
        let is_uid = (1..=64).contains(&uid.len()) && uid.bytes().all(is_hex);
        (is_label(namespace) && is_subdomain(name) && is_uid).then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// What the kubelet returned last, and what is known of the containers that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResources {
    /// When the kubelet was asked, in milliseconds since boot.
    pub boot_ms: u64,
    /// What it returned.
    pub list: PodList,
    /// Number of allocatable ids of each device; `None` if it was not returned.
    pub allocatable: Option<Allocatable>,
    /// Names of containers by id, as far as they are known.
    pub containers: BTreeMap<String, ContainerName>,
    /// Pods with processes; `None` if not all processes could be read.
    pub live: Option<Vec<LivePod>>,
}

/// Number of allocatable ids, which are replicas if there are several, by device: the id without the number of the
/// replica.
pub type Allocatable = BTreeMap<String, u32>;

/// Devices that the kubelet lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodList {
    /// Allocated devices of NVIDIA.
    pub devices: Vec<PodDevice>,
    /// Devices of NVIDIA that were allocated dynamically.
    pub dynamic: Vec<DynamicDevice>,
    /// Number of devices without a valid name of a pod, container or resource.
    pub invalid: u64,
}

/// A device that is allocated to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodDevice {
    /// The container.
    pub container: ContainerName,
    /// Name of the resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Id of the device, as its plugin chose it.
    pub id: String,
    /// Whether the kubelet listed no other container of the pod.
    pub is_only: bool,
    /// Whether the kubelet listed several pods of this name.
    pub is_ambiguous: bool,
}

/// A device that is allocated to a container by dynamic resource allocation (DRA). Which GPU it is, is not known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DynamicDevice {
    /// The container.
    pub container: ContainerName,
    /// Name of the driver.
    pub driver: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the device in the pool.
    pub device: String,
}

/// A pod with at least one process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LivePod {
    /// UID.
    pub uid: String,
    /// Namespace and name; `None` if they are not known.
    pub name: Option<(String, String)>,
}

/// Id of a device, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceId<'a> {
    /// The device: the id without the number of the replica.
    pub device: &'a str,
    /// How it names the GPU.
    pub gpu: DeviceName<'a>,
    /// Whether several containers can have the device at the same time.
    pub shared: bool,
}

/// How the id of a device names a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName<'a> {
    /// By UUID of the GPU or MIG instance (NVIDIA's device plugin).
    Uuid(&'a str),
    /// By device file, and by id of the GPU instance in MIG mode (GKE's device plugin).
    Minor(u32, Option<u32>),
}

impl<'a> DeviceId<'a> {
    /// Parses the ids of NVIDIA's plugin (`GPU-…`, `MIG-…`, with `::3` for a replica) and of GKE's (`nvidia0`,
    /// `nvidia0/gi1`, `nvidia0/vgpu2`).
    pub fn parse(id: &'a str) -> Option<Self> {
        if id.starts_with("GPU-") || id.starts_with("MIG-") {
            let (device, replica) = id.split_once("::").map_or((id, None), |(id, n)| (id, Some(n)));
            replica.is_none_or(|replica| number(replica).is_some()).then_some(())?;
            return Some(Self { device, gpu: DeviceName::Uuid(device), shared: replica.is_some() });
        }
        let (device, shared) = match id.rsplit_once("/vgpu") {
            Some((device, replica)) => number(replica).map(|_| (device, true))?,
            None => (id, false),
        };
        let (minor, instance) = device.strip_prefix("nvidia")?.split_once("/gi").unzip();
        let minor = number(minor.or_else(|| device.strip_prefix("nvidia"))?)?;
        let instance = instance.map(|instance| number(instance).ok_or(())).transpose().ok()?;
        Some(Self { device, gpu: DeviceName::Minor(minor, instance), shared })
    }
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// GPUs that are allocated to pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodGpus {
    /// When the kubelet was asked, in milliseconds since boot.
    pub boot_ms: u64,
    /// Each allocated GPU or MIG instance of each container.
    pub allocations: Vec<PodAllocation>,
    /// Devices that were allocated dynamically.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dynamic: Vec<DynamicDevice>,
    /// Number of listed device ids that are not among the allocations, or whose state is not known, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unattributed: BTreeMap<String, u64>,
    /// Processes without an allocation, for each GPU that the kubelet can allocate, if their number is known.
    pub unallocated: Vec<UnallocatedProcesses>,
}

crate::label_values! {
/// Why a listed device id is not attributed to a GPU.
pub enum Unattributed {
    /// The name of the pod, the container or the resource is not valid.
    InvalidName = "invalid_name",
    /// The id has an unknown form.
    UnknownId = "unknown_id",
    /// The driver does not list the device.
    NotListed = "not_listed",
    /// The pod has no processes: it has finished or not started.
    NotRunning = "not_running",
    /// The device is allocated twice, and not shared. Its state is unknown.
    Conflict = "conflict",
}
}

crate::label_values! {
/// Whether a container uses a GPU that is allocated to it.
pub enum PodGpuState {
    /// A process of the container was observed busy in the last window.
    Busy = "busy",
    /// The container has processes on the GPU, and all of them were observed idle.
    Idle = "idle",
    /// The container has no process on the GPU.
    NoProcess = "no_process",
    /// None of these was observed.
    Unknown = "unknown",
}
}

/// A GPU or MIG instance that is allocated to a container.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodAllocation {
    /// The container.
    pub container: ContainerName,
    /// Name of the resource.
    pub resource: String,
    /// The driver's index.
    pub gpu: String,
    /// UUID.
    pub gpu_uuid: Option<String>,
    /// Whether other containers can have the GPU at the same time.
    pub shared: bool,
    /// Part of the GPU that is allocated, 0 to 1; `None` if it is not known.
    pub share: Option<f64>,
    /// Whether the container uses the GPU.
    pub state: Word<PodGpuState>,
    /// UID of the pod; `None` if it is not known which pod of this name it is, or whether it has other GPUs as well.
    pub pod_uid: Option<String>,
    /// Since when the container has had no process on the GPU, in milliseconds since boot.
    pub unused_since_ms: Option<u64>,
    /// The same with the UID of the pod, also while it is not known whether the pod has the GPU.
    #[serde(skip)]
    pub unused: Option<(String, u64)>,
    /// Time in each state, in seconds of a whole GPU; `None` if the share is not known.
    #[serde(skip)]
    pub seconds: Option<StateSeconds>,
}

/// Time in each state so far, in seconds.
pub type StateSeconds = BTreeMap<PodGpuState, f64>;

/// Identifies an allocation: container, resource, and UUID of the GPU.
pub type AllocationKey = (ContainerName, String, String);

/// Number of processes on a GPU that are not in a container to which it is allocated.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnallocatedProcesses {
    /// The driver's index.
    pub gpu: String,
    /// UUID.
    pub gpu_uuid: Option<String>,
    /// Number of processes.
    pub processes: u64,
}

/// Returns whether this is a name of up to 63 characters (RFC 1123).
fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// Returns whether this is a name of up to 253 characters, with dots (RFC 1123).
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(is_plain) && !name.starts_with('-') && !name.ends_with('-')
}

/// Returns whether this can be the name of a resource, a driver, a pool or a device.
fn is_path(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
    !name.is_empty() && name.len() <= 317 && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_each_plugin() {
        type Case = (&'static str, Option<(&'static str, DeviceName<'static>, bool)>);
        use DeviceName::{Minor, Uuid};
        let cases: [Case; 22] = [
            ("GPU-1", Some(("GPU-1", Uuid("GPU-1"), false))),
            ("GPU-1::0", Some(("GPU-1", Uuid("GPU-1"), true))),
            ("MIG-1", Some(("MIG-1", Uuid("MIG-1"), false))),
            ("MIG-GPU-1/7/0", Some(("MIG-GPU-1/7/0", Uuid("MIG-GPU-1/7/0"), false))),
            ("MIG-1::3", Some(("MIG-1", Uuid("MIG-1"), true))),
            ("nvidia0", Some(("nvidia0", Minor(0, None), false))),
            ("nvidia12/gi1", Some(("nvidia12/gi1", Minor(12, Some(1)), false))),
            ("nvidia0/vgpu2", Some(("nvidia0", Minor(0, None), true))),
            ("nvidia0/gi1/vgpu2", Some(("nvidia0/gi1", Minor(0, Some(1)), true))),
            ("", None),
            ("0", None),
            ("GPU-1::", None),
            ("GPU-1::x", None),
            ("GPU-1::1::2", None),
            ("gpu-1", None),
            ("nvidia", None),
            ("nvidiactl", None),
            ("nvidia+1", None),
            ("nvidia0/gi", None),
            ("nvidia0/gi1/gi2", None),
            ("nvidia0/vgpu", None),
            ("nvidia4294967296", None),
        ];
        for (id, expected) in cases {
            let found = DeviceId::parse(id).map(|found| (found.device, found.gpu, found.shared));
            assert_eq!(found, expected, "{id}");
        }
    }

    #[test]
    fn names_of_pods_need_no_escaping() {
        let uid = "0b1c2d3e-0000-4000-8000-000000000001";
        let pod = ObjectName::new("team-a", "web-0.x", uid).unwrap();
        assert_eq!((pod.namespace(), pod.name(), pod.uid()), ("team-a", "web-0.x", uid));
        let json = serde_json::to_string(&pod).unwrap();
        assert_eq!(serde_json::from_str::<ObjectName>(&json).unwrap(), pod);
        assert!(serde_json::from_str::<ObjectName>(&json.replace("web-0.x", "../secrets")).is_err());
        let long = "a".repeat(254);
        for (namespace, name, uid) in [
            ("", "web", uid),
            ("team.a", "web", uid),
            ("team-a/../kube-system", "web", uid),
            ("team-a", "", uid),
            ("team-a", "web/eviction", uid),
            ("team-a", "web?dryRun=All", uid),
            ("team-a", "web%2f", uid),
            ("team-a", "..", uid),
            ("team-a", &long, uid),
            ("team-a", "web", ""),
            ("team-a", "web", "0b1c_2d3e"),
            ("team-a", "web", "\"}"),
        ] {
            assert_eq!(ObjectName::new(namespace, name, uid), None, "{namespace} {name} {uid}");
        }
    }

    #[test]
    fn links_of_logs_name_containers() {
        let id = "0123456789abcdef".repeat(4);
        let name = ContainerName::new("team-a", "web-0.x", "main-1").unwrap();
        let link = format!("web-0.x_team-a_main-1-{id}.log");
        assert_eq!(ContainerName::of_log(&link), Some((id.as_str(), name)));
        for invalid in [
            format!("web-0_team-a_main-1-{}.log", &id[1..]),
            format!("web-0_team-a_main-1-{id}"),
            format!("web-0_team-a_main_1-{id}.log"),
            format!("web-0_team-a-{id}.log"),
            format!("Web_team-a_main-{id}.log"),
            format!("web_-_main-{id}.log"),
            String::new(),
        ] {
            assert_eq!(ContainerName::of_log(&invalid), None, "{invalid}");
        }
    }

    #[test]
    fn names_are_those_of_rfc_1123() {
        let long = |n| "a".repeat(n);
        assert!(ContainerName::new(&long(63), &long(253), &long(63)).is_some());
        for (namespace, pod, container) in [
            (long(64), long(1), long(1)),
            (long(1), long(254), long(1)),
            (long(1), long(1), long(64)),
            (long(0), long(1), long(1)),
            ("a.b".into(), long(1), long(1)),
            (long(1), "a..b".into(), long(1)),
            (long(1), "../a".into(), long(1)),
            (long(1), long(1), "a\n".into()),
            (long(1), long(1), "A".into()),
            (long(1), long(1), "-a".into()),
        ] {
            assert_eq!(
                ContainerName::new(&namespace, &pod, &container),
                None,
                "{namespace} {pod} {container}"
            );
        }
    }
}
