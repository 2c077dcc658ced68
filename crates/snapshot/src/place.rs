//! Place of a process (container, pod, job, unit), from its cgroup paths. The outermost container, pod or job
//! counts. Names are trusted only where root's daemons alone create cgroups. Elsewhere, users can choose any name.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Container, pod, job, unit and session of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Cgroup path in version 2, or in version 1's systemd hierarchy. Empty if it was not read, or if
    /// hierarchies name different containers, pods or jobs.
    pub cgroup: String,
    /// Path up to and including the name of the container, pod or job, in the hierarchy with that name. All
    /// its processes share this path, and no process can leave it by itself. The same id at another path is a
    /// different container, pod or job.
    pub boundary: Option<String>,
    /// Full container id.
    pub container: Option<String>,
    /// Runtime: `containerd`, `docker`, `crio`, `podman`, or `kubernetes` if the path names only the pod.
    pub runtime: Option<String>,
    /// Pod UID.
    pub pod_uid: Option<String>,
    /// Pod name, from `/var/log/pods`.
    pub pod: Option<String>,
    /// Kubernetes namespace, from `/var/log/pods`.
    pub namespace: Option<String>,
    /// Slurm job id; from Slurm 26.05 on, the job's SLUID, because the path contains no other id.
    pub slurm_job: Option<String>,
    /// Slurm step, such as `0`, `batch` or `extern`.
    pub slurm_step: Option<String>,
    /// Innermost systemd service or scope that is not part of a container, pod or job.
    pub unit: Option<String>,
}

/// Version 1 hierarchies that determine the place of a process, preferred ones first.
const VERSION_1: [&str; 5] = ["name=systemd", "memory", "pids", "freezer", "devices"];

/// Kind of a cgroup directory: determines what creates cgroups in it, and thus which names are trusted.
#[derive(Clone, Copy)]
enum Parent {
    /// The root or a slice, managed by root's services. Names of containers start with the runtime's name.
    Root,
    /// Directory of a runtime that names containers by id alone.
    Runtime(&'static str),
    /// Directory of Kubernetes, which contains pods or further such directories.
    Pods,
    /// Directory above the reader's cgroup namespace, without a visible name. Root's services created it.
    Unnamed,
    /// Pod, which contains containers named with or without the runtime.
    Pod,
    /// Directory of Slurm, which contains users and jobs.
    Slurm,
    /// Slurm job, which contains steps.
    Job,
    /// Container. Names below it are not trusted.
    Container,
    /// Directory in which any process may create cgroups. Names below it are not trusted.
    Anyone,
}

impl Place {
    /// Parses `/proc/PID/cgroup` of cgroup version 1, 2 or both.
    pub fn parse(text: &str) -> Self {
        let mut place = Self::default();
        for path in paths(text) {
            if place.cgroup.len() <= 1 {
                path.clone_into(&mut place.cgroup);
            }
            if path.len() > 1 && !place.agree(Self::read(path)) {
                return Self::default();
            }
        }
        place
    }

    /// Returns whether the process is in a container or pod.
    pub const fn is_contained(&self) -> bool {
        self.container.is_some() || self.pod_uid.is_some()
    }

    /// Returns a place without its paths, which only says to which pod the process belongs.
    pub fn of_pod(&self) -> Self {
        Self { pod_uid: self.pod_uid.clone(), ..Self::default() }
    }

    /// Returns whether the process is in a systemd service. The manager of a user's session does not count.
    pub fn in_service(&self) -> bool {
        self.unit.as_deref().is_some_and(|unit| is_unit(unit, "service") && !unit.starts_with("user@"))
    }

    /// Replaces equal places by one shared copy, because most processes run in a few places.
    pub fn share<'a>(places: impl Iterator<Item = &'a mut Arc<Self>>) {
        let mut met: HashSet<Arc<Self>> = HashSet::new();
        for place in places {
            if let Some(known) = met.get(place) {
                *place = Arc::clone(known);
            } else {
                met.insert(Arc::clone(place));
            }
        }
    }

    /// Returns the path that the process cannot leave by itself: the path of its container, pod or job, of its
    /// user's slice, or of its system service or scope. Otherwise returns the whole path.
    pub fn confinement(&self) -> &str {
        self.boundary.as_deref().unwrap_or_else(|| confinement(&self.cgroup))
    }

    /// Adds the place that another hierarchy shows; returns false if the two contradict each other.
    fn agree(&mut self, other: Self) -> bool {
        if other.unit.is_some() {
            self.unit = other.unit;
        }
        if other.boundary.is_none() {
            return true;
        }
        if self.boundary.is_some() {
            return self.container == other.container
                && self.pod_uid == other.pod_uid
                && self.slurm_job == other.slurm_job;
        }
        let (cgroup, unit) = (std::mem::take(&mut self.cgroup), self.unit.take());
        *self = Self { cgroup, unit, ..other };
        true
    }

    fn read(path: &str) -> Self {
        let mut place = Self::default();
        let mut parent = Parent::Root;
        for (part, so_far) in parts(path) {
            parent = place.enter(parent, part);
            if matches!(parent, Parent::Container | Parent::Pod | Parent::Job) {
                place.boundary = Some(so_far.to_owned());
            } else if place.boundary.is_none() && (is_unit(part, "service") || is_unit(part, "scope")) {
                place.unit = Some(part.to_owned());
            }
        }
        place
    }

    /// Records the name of a directory in this parent, and returns its kind.
    fn enter(&mut self, parent: Parent, part: &str) -> Parent {
        match parent {
            Parent::Container | Parent::Anyone => Parent::Anyone,
            Parent::Slurm => self.enter_slurm(part),
            Parent::Job => {
                self.slurm_step = part.strip_prefix("step_").map(str::to_owned);
                Parent::Anyone
            }
            _ if self.enter_container(parent, part) => Parent::Container,
            Parent::Pod => {
                // CRI-O puts its monitor of a container beside the container. It is a process of the node.
                if part.starts_with("crio-conmon-") {
                    self.pod_uid = None;
                }
                Parent::Anyone
            }
            Parent::Root | Parent::Runtime(_) | Parent::Pods | Parent::Unnamed => {
                self.enter_pod(parent, part)
            }
        }
    }

    fn enter_container(&mut self, parent: Parent, part: &str) -> bool {
        let by_id = match parent {
            Parent::Runtime(runtime) => Some(Some(runtime)),
            Parent::Pod => Some(Some("kubernetes")),
            Parent::Unnamed => Some(None),
            _ => None,
        };
        let by_id = by_id.filter(|_| is_id(part)).map(|runtime| (runtime, part));
        let by_name = container(part).map(|(runtime, id)| (Some(runtime), id));
        let Some((runtime, id)) = by_name.or(by_id) else { return false };
        self.container = Some(id.to_owned());
        self.runtime = runtime.map(str::to_owned);
        // `SLICE:RUNTIME:ID`, where the slice may be a pod's.
        let slice = part.split_once(':').and_then(|(slice, _)| pod_uid(slice, parent));
        self.pod_uid = self.pod_uid.take().or(slice);
        true
    }

    fn enter_pod(&mut self, parent: Parent, part: &str) -> Parent {
        match pod_uid(part, parent) {
            Some(uid) => {
                self.pod_uid = Some(uid);
                Parent::Pod
            }
            None => directory(part),
        }
    }

    fn enter_slurm(&mut self, part: &str) -> Parent {
        let job = part.strip_prefix("job_").filter(|job| is_number(job));
        match job.or_else(|| is_sluid(part).then_some(part)) {
            Some(job) => {
                self.slurm_job = Some(job.to_owned());
                Parent::Job
            }
            None if part.starts_with("uid_") => Parent::Slurm,
            None => Parent::Anyone,
        }
    }
}

/// Returns the kind of a directory that root's services created. Any process may create cgroups below a directory
/// of another kind, such as a service, a scope, a session, an LXC container or a directory of libpam-cgfs.
fn directory(name: &str) -> Parent {
    match name {
        ".." => Parent::Unnamed,
        "docker" => Parent::Runtime("docker"),
        "podman" | "libpod_parent" => Parent::Runtime("podman"),
        "burstable" | "besteffort" => Parent::Pods,
        _ if is_users(name) => Parent::Anyone,
        _ if is_slurm_root(name) => Parent::Slurm,
        _ if name.starts_with("kubepods") => Parent::Pods,
        _ if is_unit(name, "slice") => Parent::Root,
        _ => Parent::Anyone,
    }
}

/// Returns the directory names of a path, each with the path up to and including it.
fn parts(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| {
        let so_far = path.get(..end)?;
        Some((so_far.rsplit('/').next()?, so_far)).filter(|(part, _)| !part.is_empty())
    })
}

fn confinement(path: &str) -> &str {
    let mut is_parent = false;
    for (part, so_far) in parts(path) {
        let is_own = is_parent || part.starts_with("user-") || part.starts_with("lxc.payload.");
        if is_own || is_unit(part, "service") || is_unit(part, "scope") {
            return so_far;
        }
        is_parent = matches!(part, "user" | "lxc" | "lxc.payload");
        if !is_parent && part != ".." && !is_unit(part, "slice") {
            break;
        }
    }
    path
}

fn is_users(name: &str) -> bool {
    name == "user.slice" || name.starts_with("user-")
}

fn paths(text: &str) -> Vec<&str> {
    let lines: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        })
        .collect();
    let of = |wanted: &str| {
        let wanted = wanted.to_owned();
        lines
            .iter()
            .find(move |(names, _)| names.split(',').any(|name| name == wanted))
            .map(|(_, path)| *path)
    };
    std::iter::once("").chain(VERSION_1).filter_map(of).collect()
}

/// Returns the pod UID in `kubepods-burstable-pod1234_….slice` or `kubepods/pod1234-…`.
fn pod_uid(part: &str, parent: Parent) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = name.rsplit_once("pod").filter(|(_, uid)| uid.len() >= 32)?;
    let systemd = before.split('-').any(|word| word == "kubepods");
    let cgroupfs = before.is_empty() && matches!(parent, Parent::Pods | Parent::Unnamed);
    let plain = uid.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    ((systemd || cgroupfs) && plain).then(|| uid.replace('_', "-"))
}

/// Returns runtime and id of a container's cgroup: `docker-ID.scope` and similar, or `SLICE:docker:ID` if a
/// runtime used a systemd path as a plain cgroup path.
fn container(part: &str) -> Option<(&'static str, &str)> {
    const FORMS: [(&str, &str); 4] =
        [("cri-containerd", "containerd"), ("docker", "docker"), ("crio", "crio"), ("libpod", "podman")];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (prefix, id) = match name.rsplit_once(':') {
        Some((before, id)) => (before.split_once(':')?.1, id),
        None => name.rsplit_once('-')?,
    };
    let (_, runtime) = FORMS.iter().find(|(form, _)| *form == prefix)?;
    is_id(id).then_some((*runtime, id))
}

/// Returns whether text is a container id: the 64 hexadecimal digits of a SHA-256.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_unit(name: &str, kind: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, suffix)| suffix == kind)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a directory is Slurm's: `slurm`, `slurm_NODE` (version 1), `slurmstepd.scope`,
/// `NODE_slurmstepd.scope` (version 2).
fn is_slurm_root(part: &str) -> bool {
    part == "slurm" || part.starts_with("slurm_") || part.ends_with("slurmstepd.scope")
}

/// Returns whether a directory is named by a SLUID: `s` and 13 digits of Crockford's base 32. Slurm 26.05
/// uses SLUIDs unless `CgroupJobIdPaths=yes` (release notes of 26.05; guilbaults/slurm-job-exporter#66).
pub(crate) fn is_sluid(part: &str) -> bool {
    part.len() == 14
        && part.starts_with('s')
        && part.bytes().skip(1).all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// Splits the name of a directory in `/var/log/pods`, `NAMESPACE_NAME_UID`, into namespace, name and UID.
pub fn pod_directory(name: &str) -> Option<(&str, &str, &str)> {
    let (rest, uid) = name.rsplit_once('_')?;
    let (namespace, pod) = rest.split_once('_')?;
    (!namespace.is_empty() && !pod.is_empty() && !uid.is_empty()).then_some((namespace, pod, uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
    const UID: &str = "9c5b4a5e-7d1f-4f0e-9a3b-0a1b2c3d4e5f";

    #[test]
    fn containers_and_pods_of_each_runtime() {
        let under = UID.replace('-', "_");
        let slice = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice");
        let cases = [
            (format!("0::{slice}/cri-containerd-{ID}.scope"), "containerd", Some(UID)),
            (format!("0::{slice}/crio-{ID}.scope"), "crio", Some(UID)),
            (format!("0::/kubepods/besteffort/pod{UID}/{ID}"), "kubernetes", Some(UID)),
            (format!("4:memory:/kubepods/pod{UID}/{ID}"), "kubernetes", Some(UID)),
            (format!("0::/system.slice/docker-{ID}.scope"), "docker", None),
            (format!("0::/docker/{ID}"), "docker", None),
            (format!("0::/machine.slice/libpod-{ID}.scope/container"), "podman", None),
            (format!("0::/kubepods-pod{under}.slice:cri-containerd:{ID}"), "containerd", Some(UID)),
        ];
        for (text, runtime, pod) in cases {
            let place = Place::parse(&text);
            assert_eq!(place.container.as_deref(), Some(ID), "{text}");
            assert_eq!(place.runtime.as_deref(), Some(runtime), "{text}");
            assert_eq!(place.pod_uid.as_deref(), pod, "{text}");
            assert_eq!(place.unit, None, "{text}");
        }
        let monitor = Place::parse(&format!("0::{slice}/crio-conmon-{ID}.scope"));
        assert!(!monitor.is_contained(), "{monitor:?}");
        let of_a_user = Place::parse(&format!("0::{slice}/crio-{ID}.scope/crio-conmon-{OTHER}.scope"));
        assert_eq!((of_a_user.container.as_deref(), of_a_user.pod_uid.as_deref()), (Some(ID), Some(UID)));
    }

    #[test]
    fn slurm_in_both_of_its_forms() {
        let cases = [
            ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "4711", Some("0")),
            ("0::/system.slice/n7_slurmstepd.scope/job_4711/step_batch/user/task_0", "4711", Some("batch")),
            (
                "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
                "s5K1KKYAYG5D00",
                Some("0"),
            ),
            ("4:memory:/slurm/uid_1000/job_12/step_1/task_0\n1:cpu:/", "12", Some("1")),
            ("4:memory:/slurm_n7/uid_1000/job_12", "12", None),
        ];
        for (text, job, step) in cases {
            let place = Place::parse(text);
            assert_eq!(
                (place.slurm_job.as_deref(), place.slurm_step.as_deref()),
                (Some(job), step),
                "{text}"
            );
        }
        assert_eq!(Place::parse("0::/user.slice/job_12/s5K1KKYAYG5D00").slurm_job, None, "not under Slurm");
    }

    #[test]
    fn units_and_sessions() {
        let unit = |text| Place::parse(text).unit;
        assert_eq!(unit("0::/system.slice/jupyter.service").as_deref(), Some("jupyter.service"));
        assert_eq!(
            unit("0::/user.slice/user-1000.slice/session-3.scope").as_deref(),
            Some("session-3.scope")
        );
        let app = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/nb.service";
        assert_eq!(unit(app).as_deref(), Some("nb.service"));
        assert!(Place::parse(app).in_service());
        assert!(!Place::parse("0::/user.slice/user-1000.slice/user@1000.service").in_service());
        assert_eq!(unit("0::/"), None);
    }

    /// Returns the kind and boundary that are read from a version 2 path.
    fn boundary(path: &str) -> (Option<&'static str>, Option<String>) {
        let place = Place::parse(&format!("0::{path}"));
        let named = [("slurm", &place.slurm_job), ("container", &place.container), ("pod", &place.pod_uid)];
        (named.into_iter().find_map(|(kind, name)| name.as_ref().map(|_| kind)), place.boundary)
    }

    #[test]
    fn boundary_is_the_path_with_the_outermost_name() {
        let under = UID.replace('-', "_");
        let other = OTHER;
        let pod = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice");
        let job = "/system.slice/slurmstepd.scope/job_77";
        let faked = format!("docker-{other}.scope/kubepods.slice/kubepods-pod{under}.slice/job_4/{other}");
        let names = [
            ("container", format!("/system.slice/docker-{ID}.scope")),
            ("container", format!("/own.slice/own-gpu.slice/docker-{ID}.scope")),
            ("container", format!("/docker/{ID}")),
            ("container", format!("/machine.slice/libpod-{ID}.scope")),
            ("container", format!("/machine.slice/machine-libpod_pod_{other}.slice/libpod-{ID}.scope")),
            ("container", format!("/libpod_parent/libpod-{ID}")),
            ("container", format!("/system.slice:docker:{ID}")),
            ("container", format!("{pod}/cri-containerd-{ID}.scope")),
            ("container", format!("{pod}/crio-{ID}.scope")),
            ("container", format!("{pod}/docker-{ID}.scope")),
            ("container", format!("/kubepods/besteffort/pod{UID}/{ID}")),
            ("container", format!("/kubepods/burstable/pod{UID}/crio-{ID}")),
            ("container", format!("/../cri-containerd-{ID}.scope")),
            ("container", format!("/../../pod{UID}/{ID}")),
            ("container", format!("/../../../besteffort/pod{UID}/{ID}")),
            ("container", format!("/../../../../docker/{ID}")),
            ("pod", pod.clone()),
            ("pod", format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under}.slice")),
            ("slurm", job.to_owned()),
            ("slurm", "/system.slice/n7_slurmstepd.scope/s5K1KKYAYG5D00".to_owned()),
            ("slurm", "/slurm_n7/uid_1000/job_77".to_owned()),
        ];
        for (kind, name) in names {
            for below in [
                "",
                "/child",
                "/init.scope",
                "/a.service",
                &format!("/a/{faked}"),
                &format!("/user.slice/{faked}"),
            ] {
                let (path, expected) = (format!("{name}{below}"), (Some(kind), Some(name.clone())));
                assert_eq!(boundary(&path), expected, "{path}");
                assert_eq!(Place::parse(&format!("0::{path}")).confinement(), name, "{path}");
            }
            let below = format!("{name}/docker-{other}.scope/{other}");
            let read = Place::parse(&format!("0::{below}"));
            let container = (kind != "slurm").then_some(if kind == "pod" { other } else { ID });
            assert_eq!(read.container.as_deref(), container, "{below}");
        }
    }

    #[test]
    fn name_where_anyone_makes_cgroups_is_not_believed() {
        let faked = [
            format!("docker-{ID}.scope"),
            format!("docker/{ID}"),
            format!("libpod-{ID}.scope/container"),
            format!("kubepods-pod{UID}.slice/cri-containerd-{ID}.scope/slurm/job_4711"),
            format!("kubepods/pod{UID}/{ID}"),
            format!("kubepods.slice/kubepods-pod{UID}.slice"),
            "slurm/uid_0/job_9/step_0".to_owned(),
            "system.slice/slurmstepd.scope/job_9/step_0".to_owned(),
            ID.to_owned(),
        ];
        let parents = [
            "/user.slice",
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/user.slice",
            "/../../user-1000.slice/user@1000.service/app.slice",
            "/system.slice/mine.service",
            "/system.slice/containerd.service",
            "/system.slice/run-r7.scope",
            "/init.scope",
            "/lxc.payload.one",
            "/lxc.payload/one",
            "/lxc.monitor.one",
            "/lxc/one",
            "/machine.slice/machine-one.scope/payload",
            "/machine.slice/systemd-nspawn@one.service/payload",
            "/user/alice/0",
            "/home-made",
            "/system.slice/slurmstepd.scope/system",
            "/slurm/system",
            "/docker/buildkit",
        ];
        for parent in parents {
            for name in &faked {
                let place = Place::parse(&format!("0::{parent}/{name}"));
                let names =
                    (&place.container, &place.runtime, &place.pod_uid, &place.slurm_job, &place.boundary);
                assert_eq!(names, (&None, &None, &None, &None, &None), "{parent}/{name}");
                assert_eq!(place.slurm_step, None, "{parent}/{name}");
            }
        }
    }

    #[test]
    fn step_is_read_directly_below_its_job_alone() {
        let job = "0::/system.slice/slurmstepd.scope/job_77";
        let step = |below: &str| Place::parse(&format!("{job}{below}")).slurm_step;
        assert_eq!(step("/step_extern/user/task_0").as_deref(), Some("extern"));
        assert_eq!(step("/step_0/user/task_0/step_extern/job_78/step_1").as_deref(), Some("0"));
        assert_eq!(step("/system/step_extern"), None);
    }

    #[test]
    fn confinement_is_what_a_process_cannot_leave_by_itself() {
        let users = "/user.slice/user-1000.slice";
        let cases = [
            ("/user.slice/user-1000.slice/session-3.scope", users),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/nb.service/a", users),
            ("/system.slice/nb.service", "/system.slice/nb.service"),
            ("/system.slice/nb.service/a/b.service", "/system.slice/nb.service"),
            ("/machine.slice/machine-one.scope/payload/a", "/machine.slice/machine-one.scope"),
            ("/lxc.payload.one/system.slice/a.service", "/lxc.payload.one"),
            ("/lxc.payload/one/a", "/lxc.payload/one"),
            ("/lxc/one/a", "/lxc/one"),
            ("/user/alice/0", "/user/alice"),
            ("/../../user.slice/user-1000.slice/a", "/../../user.slice/user-1000.slice"),
            ("/home-made/a/b.service", "/home-made/a/b.service"),
            ("/a.slice/b", "/a.slice/b"),
            ("/", "/"),
        ];
        for (path, expected) in cases {
            assert_eq!(Place::parse(&format!("0::{path}")).confinement(), expected);
        }
        let slurm =
            Place::parse("9:name=systemd:/system.slice/slurmd.service\n4:memory:/slurm/uid_0/job_9/step_0\n");
        assert_eq!(slurm.confinement(), "/slurm/uid_0/job_9", "in the hierarchy that has the name");
        assert_eq!(Place::default().confinement(), "");
    }

    #[test]
    fn hierarchies_that_name_different_things_make_it_unknown() {
        let docker = |id| format!("/system.slice/docker-{id}.scope");
        let (one, other) = (docker(ID), docker(OTHER));
        let pod = format!("/kubepods/pod{UID}");
        let agree = [
            format!("9:name=systemd:{one}\n4:memory:{one}\n0::{one}\n"),
            format!("9:name=systemd:{one}\n4:memory:/docker/{ID}\n0::/\n"),
            format!("9:name=systemd:{one}/docker-{OTHER}.scope\n4:memory:{one}\n"),
            format!("9:name=systemd:/\n4:memory:{one}\n3:devices:/user.slice\n"),
            format!("9:name=systemd:/user.slice/user-1.slice/session-1.scope\n4:memory:{one}\n"),
        ];
        for text in agree {
            assert_eq!(Place::parse(&text).container.as_deref(), Some(ID), "{text}");
        }
        let contradict = [
            format!("9:name=systemd:{one}\n4:memory:{other}\n"),
            format!("4:memory:{one}\n0::{other}\n"),
            format!("4:memory:/slurm/uid_0/job_9/step_0\n0::{one}\n"),
            format!("8:pids:{pod}\n4:memory:{pod}/{ID}\n"),
            "8:pids:/slurm/uid_0/job_9\n4:memory:/slurm/uid_0/job_8\n".to_owned(),
        ];
        for text in contradict {
            assert_eq!(Place::parse(&text), Place::default(), "{text}");
        }
    }

    #[test]
    fn a_hybrid_host_is_read_from_all_its_lines() {
        let text = "9:name=systemd:/system.slice/a.service\n4:memory:/slurm/uid_0/job_9\n0::/\n";
        let place = Place::parse(text);
        assert_eq!(place.cgroup, "/system.slice/a.service");
        assert_eq!((place.unit.as_deref(), place.slurm_job.as_deref()), (Some("a.service"), Some("9")));
    }

    #[test]
    fn pod_directories() {
        assert_eq!(pod_directory(&format!("ml_train-0_{UID}")), Some(("ml", "train-0", UID)));
        assert_eq!(pod_directory("lost+found"), None);
        assert_eq!(pod_directory("__"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text: String) {
            let _ = Place::parse(&text);
            let _ = pod_directory(&text);
        }
    }
}
