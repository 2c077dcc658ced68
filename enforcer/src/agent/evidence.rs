//! Use of the pool's GPUs in one snapshot. Pure except for one check: whether a process of the snapshot still
//! runs.

use bailiff_lease::audit;
use bailiff_proc::may_live;
use bailiff_snapshot::lease::Names;
use bailiff_snapshot::{PoolGpu, ProcessKey, wire};

use bailiff_engine::guard;
use bailiff_engine::view::leases::lists_holders;
use bailiff_engine::view::{Health, View, key};

/// Use of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// A process uses it, possibly one of another PID namespace.
    Used,
    /// No process uses it, except services.
    Unused,
    /// The driver did not report it.
    Unknown,
}

/// Evidence of one snapshot.
pub(super) struct Evidence<'a> {
    pub(super) view: &'a View,
    pub(super) may_live: &'a dyn Fn(ProcessKey) -> bool,
}

/// Returns the GPUs of a lease that are in use.
pub(crate) fn busy(view: &View, audit: &audit::Audit, lease: &audit::Lease) -> Vec<String> {
    Evidence { view, may_live: &may_live }.busy(audit, lease)
}

impl Evidence<'_> {
    /// Returns the GPUs of a lease that are in use.
    pub(super) fn busy(&self, audit: &audit::Audit, lease: &audit::Lease) -> Vec<String> {
        let gpus = audit.gpus.iter().filter(|gpu| lease.gpus().any(|id| id == gpu.id));
        gpus.filter(|gpu| self.on(gpu) == On::Used).map(|gpu| gpu.id.clone()).collect()
    }

    /// Returns the use of a GPU.
    pub(super) fn on(&self, gpu: &audit::Gpu) -> On {
        if self.view.source("nvml") == Health::Ill {
            return On::Unknown;
        }
        let all: Vec<&wire::Gpu> = self.of(gpu).collect();
        if all.iter().any(|gpu| self.in_use(gpu)) {
            return On::Used;
        }
        if !all.is_empty() && all.iter().all(|gpu| lists_holders(gpu)) { On::Unused } else { On::Unknown }
    }

    /// Returns whether this node has the GPU, under a name that is unique to the node.
    pub(super) fn is_ours(&self, gpu: &audit::Gpu) -> bool {
        gpu.uuid.is_some() && self.of(gpu).next().is_some()
    }

    /// Returns the GPU and its MIG instances. A pool with indexes may mean CUDA's, which equal the driver's
    /// only if all GPUs are of one model.
    fn of(&self, gpu: &audit::Gpu) -> impl Iterator<Item = &wire::Gpu> {
        let pool = PoolGpu { id: gpu.id.clone(), uuid: gpu.uuid.clone(), ..PoolGpu::default() };
        let gpus = &self.view.snapshot.gpus;
        let alike = gpus.iter().filter(|gpu| gpu.parent_uuid.is_none()).map(|gpu| &gpu.name);
        let alike = alike.clone().zip(alike.skip(1)).all(|(one, next)| one.is_some() && one == next);
        let known = pool.uuid.is_some() || alike;
        gpus.iter().filter(move |gpu| known && pool.is(Names::from(*gpu)))
    }

    /// Returns the minor numbers of its device files.
    pub(super) fn minors(&self, gpu: &audit::Gpu) -> impl Iterator<Item = u32> {
        self.of(gpu).filter_map(|gpu| gpu.minor)
    }

    fn in_use(&self, gpu: &wire::Gpu) -> bool {
        let named = gpu.holders.len() as u64;
        gpu.listed.is_some_and(|listed| listed > named)
            || gpu.holders.iter().any(|holder| self.counts(holder))
    }

    /// Returns whether a holder counts: services and exited processes do not.
    fn counts(&self, holder: &wire::Holder) -> bool {
        let processes = &self.view.snapshot.processes;
        let Some(process) = processes.iter().find(|process| process.pid == holder.pid) else { return true };
        if key(process).is_some_and(|key| !(self.may_live)(key)) {
            return false;
        }
        let Some(facts) = &process.facts else { return true };
        let contained = facts.place.container.is_some() || facts.place.pod_uid.is_some();
        let draws = holder.kinds == "G" && guard::named(&facts.comm, contained).is_some();
        facts.role.is_none() && !draws
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(gpus: &Value, processes: &Value) -> View {
        let snapshot = json!({
            "version": 1, "seq": 1, "wall_ms": 0, "boot_ms": 0, "interval_ms": 5000, "pid_namespace": "host",
            "sources": {"nvml": {"up": true}, "proc": {"up": true}}, "gpus": gpus, "processes": processes,
        });
        View::between(None, serde_json::from_value(snapshot).expect("a snapshot"))
    }

    fn gpu(index: &str, listed: Option<u64>, holders: &[(u32, &str)]) -> Value {
        let holders: Vec<Value> =
            holders.iter().map(|(pid, kinds)| json!({"pid": pid, "kinds": kinds, "idle_ms": 0})).collect();
        json!({
            "index": index, "uuid": format!("GPU-{index}"), "name": "H100", "mig": false, "listed": listed,
            "holders": holders,
        })
    }

    fn process(pid: u32, comm: &str, role: Option<&str>) -> Value {
        json!({"pid": pid, "start_ticks": 7, "state": "sleeping", "facts": {
            "comm": comm, "ppid": 1, "uid": 1000, "cpu_seconds": 0.0, "role": role, "place": {"cgroup": "/a"},
        }})
    }

    fn pool(id: &str, uuid: Option<&str>) -> audit::Gpu {
        serde_json::from_value(json!({"id": id, "uuid": uuid, "idle": 0, "pot": 0, "bar": 0})).expect("a GPU")
    }

    fn on(gpus: &Value, processes: &Value, of: &audit::Gpu) -> On {
        Evidence { view: &view(gpus, processes), may_live: &|process| process.pid != 99 }.on(of)
    }

    #[test]
    fn services_and_ended_processes_do_not_count() {
        let of = pool("0", Some("GPU-0"));
        let gone = json!({"pid": 5, "first_seq": 1, "state": "gone"});
        let cases = [
            (gpu("0", Some(0), &[]), json!([]), On::Unused),
            (gpu("0", None, &[]), json!([]), On::Unknown),
            (gpu("0", Some(1), &[]), json!([]), On::Used),
            (gpu("0", Some(1), &[(5, "C")]), json!([process(5, "python3", None)]), On::Used),
            (gpu("0", Some(1), &[(5, "C")]), json!([]), On::Used),
            (gpu("0", Some(1), &[(5, "C")]), json!([gone]), On::Used),
            (gpu("0", Some(1), &[(99, "C")]), json!([process(99, "python3", None)]), On::Unused),
            (gpu("0", Some(1), &[(5, "G")]), json!([process(5, "Xorg", None)]), On::Unused),
            (gpu("0", Some(1), &[(5, "C")]), json!([process(5, "Xorg", None)]), On::Used),
            (gpu("0", Some(1), &[(5, "G")]), json!([process(5, "render", None)]), On::Used),
            (
                gpu("0", Some(1), &[(5, "C")]),
                json!([process(5, "nvidia-cuda-mps", Some("mps_server"))]),
                On::Unused,
            ),
            (gpu("1", Some(0), &[]), json!([]), On::Unknown),
        ];
        for (gpu, processes, expected) in cases {
            assert_eq!(on(&json!([gpu]), &processes, &of), expected, "{gpu} {processes}");
        }
    }

    #[test]
    fn a_number_means_a_gpu_where_all_are_alike() {
        let (of, none) = (pool("0", None), json!([]));
        let mut gpus = json!([gpu("0", Some(0), &[]), gpu("1", Some(0), &[])]);
        assert_eq!(on(&gpus, &none, &of), On::Unused);
        gpus[1]["name"] = json!("A30");
        assert_eq!(on(&gpus, &none, &of), On::Unknown);
        assert_eq!(on(&gpus, &none, &pool("0", Some("GPU-0"))), On::Unused);
    }

    #[test]
    fn of_a_gpu_in_parts_all_parts_count() {
        let mut whole = gpu("0", None, &[]);
        (whole["mig"], whole["instances"]) = (json!(true), json!(1));
        let part = |listed, holders: &[(u32, &str)]| {
            let mut part = gpu("0:1", listed, holders);
            part["parent_uuid"] = json!("GPU-0");
            part
        };
        let (of, in_use) = (pool("0", Some("GPU-0")), json!([process(5, "python3", None)]));
        assert_eq!(on(&json!([whole, part(Some(0), &[])]), &json!([]), &of), On::Unused);
        assert_eq!(on(&json!([whole, part(Some(1), &[(5, "C")])]), &in_use, &of), On::Used);
        assert_eq!(on(&json!([whole, part(None, &[])]), &json!([]), &of), On::Unknown);
        whole["instances"] = json!(0);
        assert_eq!(on(&json!([whole]), &json!([]), &of), On::Unused, "a GPU without instance cannot be used");
        whole["instances"] = Value::Null;
        assert_eq!(
            on(&json!([whole, part(Some(0), &[])]), &json!([]), &of),
            On::Unknown,
            "one may be missing"
        );
    }
}
