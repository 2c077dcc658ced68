//! Where a process runs, read off its cgroup paths. A cgroup is a container, a pod or a job only where its
//! path is of a known form; anything else is left alone.

use serde::{Deserialize, Serialize};

/// Container, pod, job, unit and session of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The cgroup path: of version 2, or of version 1's systemd hierarchy.
    pub cgroup: String,
    /// Container id, in full.
    pub container: Option<String>,
    /// Who made the container: `containerd`, `docker`, `crio`, `podman`, or `kubernetes` where the path names only the pod.
    pub runtime: Option<String>,
    /// Pod UID.
    pub pod_uid: Option<String>,
    /// Pod name, where `/var/log/pods` tells.
    pub pod: Option<String>,
    /// Kubernetes namespace, where `/var/log/pods` tells.
    pub namespace: Option<String>,
    /// Slurm job id; with Slurm 26.05 and later the job's SLUID, since the path holds nothing else.
    pub slurm_job: Option<String>,
    /// Slurm step.
    pub slurm_step: Option<String>,
    /// The innermost systemd service or scope that is no container's.
    pub unit: Option<String>,
}

/// The hierarchies of version 1 that place a process, best first.
const VERSION_1: [&str; 5] = ["name=systemd", "memory", "pids", "freezer", "devices"];

impl Place {
    /// Understands `/proc/PID/cgroup`, of either version or both.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut place = Self::default();
        for path in paths(text) {
            if place.cgroup.len() <= 1 {
                path.clone_into(&mut place.cgroup);
            }
            if path.len() > 1 {
                place.read(path);
            }
        }
        place
    }

    /// Started as a systemd service: the manager of a user's session does not count.
    #[must_use]
    pub fn in_service(&self) -> bool {
        self.unit.as_deref().is_some_and(|unit| is_unit(unit, "service") && !unit.starts_with("user@"))
    }

    fn read(&mut self, path: &str) {
        let mut under_slurm = false;
        let mut under_pods = false;
        // Below a service or a user's slice whoever runs there makes the paths, and may call them anything.
        let mut users_own = false;
        for part in path.split(['/', ':']).filter(|part| !part.is_empty()) {
            if users_own {
                if is_unit(part, "service") || is_unit(part, "scope") {
                    self.unit = Some(part.to_owned());
                }
            } else if let Some(uid) = pod_uid(part, under_pods) {
                self.pod_uid = Some(uid);
            } else if let Some((runtime, id)) = container(part) {
                self.container = Some(id.to_owned());
                self.runtime = Some(runtime.to_owned());
            } else if is_id(part) {
                self.container = Some(part.to_owned());
                self.runtime
                    .get_or_insert_with(|| if under_pods { "kubernetes" } else { "docker" }.to_owned());
            } else if under_slurm && self.read_slurm(part) {
            } else if is_unit(part, "service") || is_unit(part, "scope") {
                self.unit = Some(part.to_owned());
            } else if matches!(part, "cri-containerd" | "crio" | "docker" | "podman") {
                self.runtime = Some(part.trim_start_matches("cri-").to_owned());
            }
            under_pods |= part.starts_with("kubepods");
            under_slurm |= is_slurm_root(part);
            users_own |= part == "user.slice" || is_unit(part, "service");
        }
    }

    fn read_slurm(&mut self, part: &str) -> bool {
        if let Some(job) = part.strip_prefix("job_").filter(|job| is_number(job)) {
            self.slurm_job = Some(job.to_owned());
        } else if is_sluid(part) {
            self.slurm_job.get_or_insert_with(|| part.to_owned());
        } else if let Some(step) = part.strip_prefix("step_") {
            self.slurm_step = Some(step.to_owned());
        } else {
            return false;
        }
        true
    }
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

/// `pod1234_…` in `kubepods-burstable-pod1234_….slice` or `kubepods/pod1234-…`.
fn pod_uid(part: &str, under_pods: bool) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = name.rsplit_once("pod").filter(|(_, uid)| uid.len() >= 32)?;
    let systemd = before.starts_with("kubepods");
    let cgroupfs = before.is_empty() && under_pods;
    let plain = uid.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    ((systemd || cgroupfs) && plain).then(|| uid.replace('_', "-"))
}

/// `docker-ID.scope` and its kin.
fn container(part: &str) -> Option<(&'static str, &str)> {
    const FORMS: [(&str, &str); 4] =
        [("cri-containerd-", "containerd"), ("docker-", "docker"), ("crio-", "crio"), ("libpod-", "podman")];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    FORMS.iter().find_map(|(prefix, runtime)| {
        let id = name.strip_prefix(prefix)?;
        is_id(id).then_some((*runtime, id))
    })
}

/// Container ids are the 64 hexadecimal digits of a SHA-256.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_unit(name: &str, kind: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, suffix)| suffix == kind)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `slurm`, `slurm_NODE` (version 1), `slurmstepd.scope`, `NODE_slurmstepd.scope` (version 2).
fn is_slurm_root(part: &str) -> bool {
    part == "slurm" || part.starts_with("slurm_") || part.ends_with("slurmstepd.scope")
}

/// `s` and 13 digits of Crockford's base 32: Slurm 26.05 keys cgroup directories by SLUID, unless
/// `CgroupJobIdPaths=yes` (release notes of 26.05; guilbaults/slurm-job-exporter#66).
fn is_sluid(part: &str) -> bool {
    part.len() == 14
        && part.starts_with('s')
        && part.bytes().skip(1).all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// A directory of `/var/log/pods`, `NAMESPACE_NAME_UID`: namespace, name, UID.
#[must_use]
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

    #[test]
    fn a_user_who_names_cgroups_names_no_pod_container_or_job() {
        let faked = format!("kubepods-pod{UID}.slice/cri-containerd-{ID}.scope/slurm/job_4711");
        for above in ["user.slice/user-1000.slice/user@1000.service/app.slice", "system.slice/mine.service"] {
            let place = Place::parse(&format!("0::/{above}/{faked}"));
            assert_eq!((place.pod_uid, place.container, place.slurm_job), (None, None, None), "{above}");
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
