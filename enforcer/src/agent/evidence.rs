//! Use of the pool's GPUs in one snapshot. Pure except for one check: whether a process of the snapshot still
//! runs.

use bailiff_lease::audit;
use bailiff_proc::may_live;
use bailiff_snapshot::lease::Names;
use bailiff_snapshot::{PoolGpu, ProcessKey, wire};

use bailiff_engine::guard;
use bailiff_engine::view::leases::lists_holders;
use bailiff_engine::view::{Health, View};

/// Use of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// A process uses it, possibly one in another PID namespace.
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

    /// Returns the GPU and its MIG instances. The indexes in a pool may be CUDA's, which equal the
    /// driver's only if all GPUs are the same model.
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
        if process.facts.as_ref().is_some_and(|facts| facts.reused_pid) {
            return true;
        }
        if process.key().is_some_and(|key| !(self.may_live)(key)) {
            return false;
        }
        let Some(facts) = &process.facts else { return true };
        let draws = holder.kinds == "G" && guard::is_named(&facts.comm, facts.place.is_contained());
        facts.role.is_none() && !draws
    }
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::{Role, State};
    use serde_json::json;
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    fn gpu(index: &str, listed: Option<u64>, holders: &[(u32, &str)]) -> wire::Gpu {
        let holder = |(pid, kinds): &(u32, &str)| wire::Holder {
            kinds: (*kinds).into(),
            ..fixtures::holder(*pid, None, None)
        };
        let name = Some("H100".to_owned());
        wire::Gpu { name, listed, ..fixtures::gpu(index, holders.iter().map(holder).collect()) }
    }

    fn process(pid: u32, comm: &str) -> wire::Process {
        fixtures::process(pid, 7, fixtures::facts(comm))
    }

    fn pool(id: &str, uuid: Option<&str>) -> audit::Gpu {
        serde_json::from_value(json!({"id": id, "uuid": uuid, "idle": 0, "pot": 0, "bar": 0})).expect("a GPU")
    }

    fn on(gpus: &[wire::Gpu], processes: &[wire::Process], of: &audit::Gpu) -> On {
        let view = View::between(None, fixtures::snapshot(1, gpus.to_vec(), processes.to_vec()));
        Evidence { view: &view, may_live: &|process| process.pid != 99 }.on(of)
    }

    #[test]
    fn services_and_ended_processes_do_not_count() {
        let of = pool("0", Some("GPU-0"));
        let gone = fixtures::unconfirmed(5, 1, State::Gone);
        let mut server = process(5, "nvidia-cuda-mps");
        server.facts.as_mut().expect("they are set").role = Some(Role::MpsServer.into());
        let mut reused = server.clone();
        reused.facts.as_mut().expect("they are set").reused_pid = true;
        let cases = [
            (gpu("0", Some(1), &[(5, "C")]), vec![reused], On::Used),
            (gpu("0", Some(0), &[]), vec![], On::Unused),
            (gpu("0", None, &[]), vec![], On::Unknown),
            (gpu("0", Some(1), &[]), vec![], On::Used),
            (gpu("0", Some(1), &[(5, "C")]), vec![process(5, "python3")], On::Used),
            (gpu("0", Some(1), &[(5, "C")]), vec![], On::Used),
            (gpu("0", Some(1), &[(5, "C")]), vec![gone], On::Used),
            (gpu("0", Some(1), &[(99, "C")]), vec![process(99, "python3")], On::Unused),
            (gpu("0", Some(1), &[(5, "G")]), vec![process(5, "Xorg")], On::Unused),
            (gpu("0", Some(1), &[(5, "C")]), vec![process(5, "Xorg")], On::Used),
            (gpu("0", Some(1), &[(5, "G")]), vec![process(5, "render")], On::Used),
            (gpu("0", Some(1), &[(5, "C")]), vec![server], On::Unused),
            (gpu("1", Some(0), &[]), vec![], On::Unknown),
        ];
        for (gpu, processes, expected) in cases {
            assert_eq!(on(std::slice::from_ref(&gpu), &processes, &of), expected, "{gpu:?} {processes:?}");
        }
    }

    #[test]
    fn a_number_means_a_gpu_where_all_are_alike() {
        let of = pool("0", None);
        let mut gpus = [gpu("0", Some(0), &[]), gpu("1", Some(0), &[])];
        assert_eq!(on(&gpus, &[], &of), On::Unused);
        gpus[1].name = Some("A30".into());
        assert_eq!(on(&gpus, &[], &of), On::Unknown);
        assert_eq!(on(&gpus, &[], &pool("0", Some("GPU-0"))), On::Unused);
    }

    #[test]
    fn of_a_gpu_in_parts_all_parts_count() {
        let whole = |instances| wire::Gpu { mig: true, instances, ..gpu("0", None, &[]) };
        let part = |listed, holders: &[(u32, &str)]| wire::Gpu {
            parent_uuid: Some("GPU-0".into()),
            ..gpu("0:1", listed, holders)
        };
        let (of, in_use) = (pool("0", Some("GPU-0")), [process(5, "python3")]);
        let on = |gpus: &[wire::Gpu], processes: &[wire::Process]| on(gpus, processes, &of);
        assert_eq!(on(&[whole(Some(1)), part(Some(0), &[])], &[]), On::Unused);
        assert_eq!(on(&[whole(Some(1)), part(Some(1), &[(5, "C")])], &in_use), On::Used);
        assert_eq!(on(&[whole(Some(1)), part(None, &[])], &[]), On::Unknown);
        assert_eq!(on(&[whole(Some(0))], &[]), On::Unused, "a GPU without instance cannot be used");
        assert_eq!(on(&[whole(None), part(Some(0), &[])], &[]), On::Unknown, "one may be missing");
    }
}
