//! Reads the messages of the kubelet's pod-resources API (`api.proto` of `k8s.io/kubelet/pkg/apis/podresources/v1`). Fields
//! that this program does not need, and those that newer versions add, are skipped.

use std::collections::HashMap;

use super::{
    Allocatable, ContainerName, DRIVERS, DeviceId, DynamicDevice, PodDevice, PodList, RESOURCES, is_path,
};

/// Maximum number of pods. The kubelet's default limit is 110.
const MOST_PODS: usize = 4096;
/// Maximum number of devices of NVIDIA, allocated or allocatable.
const MOST_DEVICES: usize = 8192;
/// Maximum length of an id of a device.
const LONGEST_ID: usize = 256;

/// Why a message is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PodResourcesError {
    /// It is not a message of this type.
    #[error("the kubelet's response is not a message of the pod-resources API")]
    Malformed,
    /// It has more entries than a node can have.
    #[error("the kubelet lists more than {MOST_PODS} pods, or more than {MOST_DEVICES} devices")]
    TooMany,
}

use PodResourcesError::{Malformed, TooMany};

type Result<T> = std::result::Result<T, PodResourcesError>;

/// Parses a `ListPodResourcesResponse`.
///
/// # Errors
/// If the message is invalid or too long. A device without a valid name is only counted.
pub fn parse_list(message: &[u8]) -> Result<PodList> {
    let mut named: HashMap<_, u32> = HashMap::new();
    for (count, pod) in values(message, POD_RESOURCES).enumerate() {
        let pod = pod?;
        *named.entry((last(pod, NAME)?, last(pod, NAMESPACE)?)).or_default() += 1;
        if count >= MOST_PODS {
            return Err(TooMany);
        }
    }
    let mut list = PodList::default();
    for pod in values(message, POD_RESOURCES) {
        let pod = pod?;
        let pod_name = (last(pod, NAME)?, last(pod, NAMESPACE)?);
        let is_only = values(pod, CONTAINERS).count() == 1;
        let is_ambiguous = named.get(&pod_name).is_some_and(|count| *count > 1);
        for message in values(pod, CONTAINERS) {
            let message = message?;
            let name = container_name(pod_name, last(message, NAME)?);
            Container { message, name, is_only, is_ambiguous }.add_to(&mut list)?;
        }
    }
    Ok(list)
}

/// Parses an `AllocatableResourcesResponse`: the number of ids of each device of NVIDIA.
///
/// # Errors
/// If the message is invalid or too long. Ids of an unknown form are not counted.
pub fn parse_allocatable(message: &[u8]) -> Result<Allocatable> {
    let mut allocatable = Allocatable::new();
    for devices in values(message, ALLOCATABLE) {
        let devices = devices?;
        let is_ours = is_nvidia_resource(last(devices, RESOURCE_NAME)?);
        for id in values(devices, DEVICE_IDS) {
            let Some(id) = text(id?).filter(|_| is_ours).and_then(DeviceId::parse) else { continue };
            *allocatable.entry(id.device.to_owned()).or_default() += 1;
            if allocatable.len() > MOST_DEVICES {
                return Err(TooMany);
            }
        }
    }
    Ok(allocatable)
}

// Numbers of fields.
const POD_RESOURCES: u64 = 1;
const NAME: u64 = 1;
const NAMESPACE: u64 = 2;
const CONTAINERS: u64 = 3;
const DEVICES: u64 = 2;
const DYNAMIC_RESOURCES: u64 = 5;
const RESOURCE_NAME: u64 = 1;
const DEVICE_IDS: u64 = 2;
const CLAIM_RESOURCES: u64 = 4;
const DRIVER_NAME: u64 = 2;
const POOL_NAME: u64 = 3;
const DEVICE_NAME: u64 = 4;
const ALLOCATABLE: u64 = 1;

/// A `ContainerResources`.
struct Container<'a> {
    message: &'a [u8],
    /// `None` if the name is not valid.
    name: Option<ContainerName>,
    is_only: bool,
    is_ambiguous: bool,
}

impl Container<'_> {
    fn add_to(&self, list: &mut PodList) -> Result<()> {
        for devices in values(self.message, DEVICES) {
            self.add_devices(devices?, list)?;
        }
        for claim in values(self.message, DYNAMIC_RESOURCES) {
            for device in values(claim?, CLAIM_RESOURCES) {
                self.add_dynamic(device?, list)?;
            }
        }
        Ok(())
    }

    /// Adds a `ContainerDevices`.
    fn add_devices(&self, devices: &[u8], list: &mut PodList) -> Result<()> {
        let resource = last(devices, RESOURCE_NAME)?;
        let is_ours = is_nvidia_resource(resource);
        let resource = text(resource).filter(|resource| is_path(resource));
        for id in values(devices, DEVICE_IDS) {
            let id = text(id?).filter(|id| id.len() <= LONGEST_ID);
            match (&self.name, resource, id) {
                _ if !is_ours => {}
                (Some(container), Some(resource), Some(id)) => list.devices.push(PodDevice {
                    container: container.clone(),
                    resource: resource.to_owned(),
                    id: id.to_owned(),
                    is_only: self.is_only,
                    is_ambiguous: self.is_ambiguous,
                }),
                _ => list.invalid += 1,
            }
            check_length(list)?;
        }
        Ok(())
    }

    /// Adds a `ClaimResource`.
    fn add_dynamic(&self, device: &[u8], list: &mut PodList) -> Result<()> {
        let driver = last(device, DRIVER_NAME)?;
        if !is_nvidia_driver(driver) {
            return Ok(());
        }
        let names = [driver, last(device, POOL_NAME)?, last(device, DEVICE_NAME)?];
        let names = names.map(|name| text(name).filter(|name| is_path(name)).map(str::to_owned));
        match (&self.name, names) {
            (Some(container), [Some(driver), Some(pool), Some(device)]) => {
                let container = container.clone();
                list.dynamic.push(DynamicDevice { container, driver, pool, device });
            }
            _ => list.invalid += 1,
        }
        check_length(list)
    }
}

fn check_length(list: &PodList) -> Result<()> {
    if list.devices.len() + list.dynamic.len() > MOST_DEVICES { Err(TooMany) } else { Ok(()) }
}

fn container_name((pod, namespace): (&[u8], &[u8]), container: &[u8]) -> Option<ContainerName> {
    ContainerName::new(text(namespace)?, text(pod)?, text(container)?)
}

fn is_nvidia_resource(name: &[u8]) -> bool {
    name.starts_with(RESOURCES.as_bytes())
}

/// Returns whether this is a driver of NVIDIA, such as `gpu.nvidia.com`.
fn is_nvidia_driver(name: &[u8]) -> bool {
    name.strip_suffix(DRIVERS.as_bytes()).is_some_and(|before| before.is_empty() || before.ends_with(b"."))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Returns the last value of a text, as protobuf demands; empty if it is missing.
fn last(message: &[u8], number: u64) -> Result<&[u8]> {
    values(message, number).try_fold(&[][..], |_, value| value)
}

/// Returns the values of a field, which must be texts or messages. Nothing follows an error.
fn values(mut message: &[u8], number: u64) -> impl Iterator<Item = Result<&[u8]>> {
    std::iter::from_fn(move || {
        while !message.is_empty() {
            let value = match field(&mut message) {
                Ok((found, _)) if found != number => continue,
                Ok((_, value)) => value.ok_or(Malformed),
                Err(error) => Err(error),
            };
            if value.is_err() {
                message = &[];
            }
            return Some(value);
        }
        None
    })
}

/// Takes the next field: its number, and its value unless that is a number.
fn field<'a>(message: &mut &'a [u8]) -> Result<(u64, Option<&'a [u8]>)> {
    let key = varint(message)?;
    let number = key >> 3;
    if number == 0 {
        return Err(Malformed);
    }
    let value = match key & 7 {
        0 => varint(message).map(|_| None),
        1 => take(message, 8).map(|_| None),
        2 => {
            let length = usize::try_from(varint(message)?).map_err(|_| Malformed)?;
            take(message, length).map(Some)
        }
        5 => take(message, 4).map(|_| None),
        // Groups are not used in this API.
        _ => Err(Malformed),
    };
    Ok((number, value?))
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(length).ok_or(Malformed)?;
    *message = rest;
    Ok(taken)
}

fn varint(message: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(message, 1)?.first().ok_or(Malformed)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes a field with a text or a message.
    fn put(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        let mut out = vec![number << 3 | 2];
        let mut length = value.len();
        while length >= 0x80 {
            out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend(value);
        out
    }

    fn devices(resource: &str, ids: &[&str]) -> Vec<u8> {
        let ids = ids.iter().flat_map(|id| put(2, id));
        put(1, resource).into_iter().chain(ids).collect()
    }

    fn container(name: &str, resources: &[Vec<u8>]) -> Vec<u8> {
        [put(1, name), resources.concat()].concat()
    }

    fn pod(name: &str, containers: &[Vec<u8>]) -> Vec<u8> {
        let containers: Vec<u8> = containers.iter().flat_map(|message| put(3, message)).collect();
        put(1, [put(1, name), put(2, "team"), containers].concat())
    }

    fn of_gpus(resource: &str, ids: &[&str]) -> Vec<u8> {
        put(2, devices(resource, ids))
    }

    #[test]
    fn devices_of_nvidia_are_listed_with_their_containers() {
        let gpus = of_gpus("nvidia.com/gpu", &["GPU-1", "GPU-2"]);
        let nic = of_gpus("example.com/nic", &["GPU-3"]);
        let claimed = [put(1, "cdi"), put(2, "gpu.nvidia.com"), put(3, "node-1"), put(4, "gpu-0")].concat();
        let other = [put(2, "notnvidia.com"), put(3, "node-1"), put(4, "gpu-1")].concat();
        let claim = put(5, [put(2, "claim"), put(4, claimed), put(4, other)].concat());
        let message = [
            pod("one", &[container("main", &[gpus.clone(), nic, claim])]),
            pod("two", &[container("main", std::slice::from_ref(&gpus)), container("sidecar", &[])]),
            pod("twice", &[container("main", std::slice::from_ref(&gpus))]),
            pod("twice", &[]),
            pod("../x", &[container("main", &[gpus])]),
        ]
        .concat();
        let list = parse_list(&message).unwrap();
        let found: Vec<_> = list
            .devices
            .iter()
            .map(|it| (it.container.pod.as_str(), it.id.as_str(), it.is_only, it.is_ambiguous))
            .collect();
        let expected = [("one", true, false), ("two", false, false), ("twice", true, true)];
        let expected: Vec<_> = expected
            .iter()
            .flat_map(|(pod, only, twice)| ["GPU-1", "GPU-2"].map(|id| (*pod, id, *only, *twice)))
            .collect();
        assert_eq!(found, expected);
        let container = ContainerName::new("team", "one", "main").unwrap();
        let [driver, pool, device] = ["gpu.nvidia.com", "node-1", "gpu-0"].map(str::to_owned);
        assert_eq!(list.dynamic, [DynamicDevice { container, driver, pool, device }]);
        assert_eq!(list.invalid, 2);
    }

    #[test]
    fn replicas_are_counted_by_device() {
        let gpus = put(1, devices("nvidia.com/gpu", &["GPU-1::0", "GPU-1::1", "GPU-2", "odd"]));
        let mig = put(1, devices("nvidia.com/mig-1g.5gb", &["MIG-1"]));
        let nic = put(1, devices("example.com/nic", &["GPU-2"]));
        let found = parse_allocatable(&[gpus, mig, nic, put(3, "memory")].concat()).unwrap();
        let expected = [("GPU-1", 2), ("GPU-2", 1), ("MIG-1", 1)];
        assert_eq!(found, expected.map(|(device, count)| (device.to_owned(), count)).into());
    }

    #[test]
    fn unknown_fields_are_skipped_and_wrong_types_are_errors() {
        let good = pod("one", &[container("main", &[of_gpus("nvidia.com/gpu", &["GPU-1"])])]);
        let added: [&[u8]; 4] =
            [&[0x98, 1, 0xff, 1], &[0x99, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[0x9d, 1, 0, 0, 0, 0], &[0x9a, 1, 0]];
        for added in added {
            assert_eq!(parse_list(&[&good, added].concat()), parse_list(&good), "{added:?}");
        }
        let wrong: [&[u8]; 8] = [
            &[0x0a],
            &[0x0a, 5, 1],
            &[0x08, 1],
            &[0x00, 0],
            &[0x0b, 0x0c],
            &[0x80; 11],
            &[0x0a, 2, 0x08, 1],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ];
        for wrong in wrong {
            assert_eq!(parse_list(&[&good, wrong].concat()), Err(Malformed), "{wrong:?}");
            assert_eq!(parse_allocatable(wrong), Err(Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn lists_that_no_node_has_are_refused() {
        let pods = |count| vec![put(1, []); count].concat();
        assert_eq!(parse_list(&pods(MOST_PODS)).unwrap(), PodList::default());
        assert_eq!(parse_list(&pods(MOST_PODS + 1)), Err(TooMany));
        let ids: Vec<String> = (0..=MOST_DEVICES).map(|id| format!("GPU-{id}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let list = |ids| pod("one", &[container("main", &[of_gpus("nvidia.com/gpu", ids)])]);
        assert_eq!(parse_list(&list(&ids[1..])).unwrap().devices.len(), MOST_DEVICES);
        assert_eq!(parse_list(&list(&ids)), Err(TooMany));
        assert_eq!(parse_allocatable(&put(1, devices("nvidia.com/gpu", &ids))), Err(TooMany));
    }

    proptest! {
        #[test]
        fn list_that_is_cut_has_no_device_that_the_whole_has_not(cut in 0_usize..400, pods in 1_usize..6) {
            let ids = ["GPU-1", "GPU-2::1"];
            let one = |n: usize| pod(&format!("p{n}"), &[container("main", &[of_gpus("nvidia.com/gpu", &ids)])]);
            let message: Vec<u8> = (0..pods).flat_map(one).collect();
            let whole = parse_list(&message).unwrap();
            if let Ok(part) = parse_list(&message[..cut.min(message.len())]) {
                prop_assert!(part.devices.iter().all(|device| whole.devices.contains(device)));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse_list(&message), parse_allocatable(&message));
        }
    }
}
