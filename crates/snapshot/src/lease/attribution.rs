//! Determines the lease of a process. True and false are reported only if certain; all else is unknown.

use std::time::Duration;

use super::{Claim, GpuState, Held, Leases, PoolGpu, Record};
use crate::{Facts, ProcessKey, Truth, wire};

/// Properties of a process that show which lease it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    /// Pid and start time.
    pub key: ProcessKey,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Lease named in its environment.
    pub claim: &'a Claim,
    /// Ancestors, from the parent up to the first process; `None` if one could not be read.
    pub ancestors: Option<&'a [ProcessKey]>,
    /// Whether it is an MPS process, which acts for other processes.
    pub stands_for_others: bool,
    /// Whether it is in a container or pod, and was therefore started by a daemon for an unknown user.
    pub contained: bool,
}

impl<'a> From<&'a Facts> for Members<'a> {
    fn from(facts: &'a Facts) -> Self {
        Self {
            key: facts.key,
            uid: facts.uid,
            claim: &facts.claim,
            ancestors: facts.ancestors.as_deref(),
            stands_for_others: facts.role.is_some(),
            contained: facts.place.is_contained(),
        }
    }
}

impl<'a> Members<'a> {
    /// Returns the properties of a process in the stream; `None` if `/proc` did not confirm the process.
    pub fn of_wire(process: &'a wire::Process) -> Option<Self> {
        let facts = process.facts.as_ref()?;
        Some(Self {
            key: process.key()?,
            uid: facts.uid,
            claim: &facts.claim,
            ancestors: facts.ancestors.as_deref(),
            stands_for_others: facts.role.is_some(),
            contained: facts.place.is_contained(),
        })
    }

    /// Iterates over the process and its known ancestors.
    fn line(&self) -> impl Iterator<Item = ProcessKey> {
        std::iter::once(self.key).chain(self.ancestors.unwrap_or_default().iter().copied())
    }
}

/// Result of attributing a process on a GPU to a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribution<'a> {
    /// The GPU is leased to the process.
    Lease(&'a Held),
    /// A GPU.py client took the GPU for the process, according to the pid in its record.
    Legacy(&'a Record),
    /// The GPU is not leased, or is leased to another holder.
    Nothing,
    /// Unknown, for this reason.
    Unknown(&'static str),
}

impl Attribution<'_> {
    /// Whether the GPU is leased to the process.
    pub const fn truth(&self) -> Truth {
        match self {
            Self::Lease(_) | Self::Legacy(_) => Truth::True,
            Self::Nothing => Truth::False,
            Self::Unknown(_) => Truth::Unknown,
        }
    }
}

impl Leases {
    /// Returns the lease that a process has for a GPU that it uses.
    ///
    /// The pool and the GPU are read shortly after each other. A process that received its lease in between
    /// would appear to have none. [`Attribution::Nothing`] is therefore returned only if the previous sample
    /// showed the same state of the GPU and the process started before that sample. The check is repeated
    /// with the next sample before an action.
    pub fn lease_of(&self, members: &Members<'_>, gpu: Option<&PoolGpu>) -> Attribution<'_> {
        let Some(gpu) = gpu.and_then(|gpu| self.gpus.iter().find(|ours| ours.id == gpu.id)) else {
            return Attribution::Unknown("the GPU is not in the pool");
        };
        let attribution = match (gpu.gpu_state, &gpu.record) {
            (GpuState::Leased, _) => self.attribute_to_lease(members, gpu),
            (GpuState::Legacy, Some(record)) => attribute_to_record(members, record),
            (GpuState::Idle, None) => Attribution::Nothing,
            _ => Attribution::Unknown("the GPU is being reassigned or is not leased out"),
        };
        match attribution {
            Attribution::Nothing if members.stands_for_others => {
                Attribution::Unknown("the process is an MPS process, which acts for its clients")
            }
            Attribution::Nothing if gpu.since_ms == 0 || !self.is_settled(members) => Attribution::Unknown(
                "the process, or the GPU's state in the pool, is newer than the previous sample",
            ),
            attribution => attribution,
        }
    }

    /// Returns whether the process was running when the pool was read for the previous sample.
    fn is_settled(&self, members: &Members<'_>) -> bool {
        self.before_ms.is_some_and(|before| members.key.started() < Duration::from_millis(before))
    }

    fn attribute_to_lease(&self, members: &Members<'_>, gpu: &PoolGpu) -> Attribution<'_> {
        let Some(held) = self.holding(gpu) else {
            return Attribution::Unknown("the lease that holds the GPU is unknown");
        };
        match held.has(members) {
            Truth::True => Attribution::Lease(held),
            Truth::False => Attribution::Nothing,
            Truth::Unknown => Attribution::Unknown(
                "neither the environment nor the ancestors of the process show whether it has the lease",
            ),
        }
    }
}

impl Held {
    /// Returns whether a process belongs to the lease, by its ancestors (itself included) or its environment.
    pub fn has(&self, members: &Members<'_>) -> Truth {
        let holds = |key| self.holder == Some(key) || self.chain.contains(&key);
        if members.line().any(holds) {
            return Truth::True;
        }
        let others = self.uid.zip(members.uid).map(|(holder, owner)| holder != owner);
        match members.claim {
            // Any user can put the name of another user's lease into an environment.
            Claim::Lease(name) if *name == self.lease => {
                if others == Some(true) {
                    Truth::Unknown
                } else {
                    Truth::True
                }
            }
            Claim::Unread => Truth::Unknown,
            // A process that a daemon starts for the holder (in a container, a multiplexer or by a timer) has
            // neither the holder as an ancestor nor its environment. A holder in its own PID namespace is not
            // found at all. A GPU.py script may have taken the GPU in a subshell that has exited.
            Claim::Lease(_) | Claim::Nothing => {
                let known = self.holder.is_some() && members.ancestors.is_some() && !self.is_compat();
                if known && others == Some(true) && !members.contained {
                    Truth::False
                } else {
                    Truth::Unknown
                }
            }
        }
    }
}

/// Attributes a GPU by the record of a GPU.py client. The record can prove that a process has the GPU, but
/// cannot refute it: its pid may be that of an exited subshell, and the start time is known only if an agent
/// saw the process. Pid 1 is ignored: it is every process's ancestor and the pid in containers' records.
fn attribute_to_record<'a>(members: &Members<'_>, record: &'a Record) -> Attribution<'a> {
    let is_meant = |key: ProcessKey, pid| {
        key.pid == pid && record.start_ticks.is_none_or(|start_ticks| key.start_ticks == start_ticks)
    };
    match record.pid.filter(|pid| *pid > 1) {
        Some(pid) if members.line().any(|key| is_meant(key, pid)) => Attribution::Legacy(record),
        _ => Attribution::Unknown(
            "a client of GPU.py holds the GPU, but its record does not show for which process",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: ProcessKey = ProcessKey { pid: 100, start_ticks: 500 };
    const PROCESS: ProcessKey = ProcessKey { pid: 200, start_ticks: 600 };
    const INIT: ProcessKey = ProcessKey { pid: 1, start_ticks: 1 };

    fn gpu(gpu_state: GpuState) -> PoolGpu {
        PoolGpu { id: "0".into(), gpu_state, since_ms: 5000, ..PoolGpu::default() }
    }

    /// Returns a pool with one GPU, which is leased to the holder.
    fn pool() -> Leases {
        let held = Held {
            lease: "ours".into(),
            gpus: vec!["0".into()],
            uid: Some(1000),
            mode: Some("run".into()),
            holder: Some(HOLDER),
            alive: Truth::True,
            ..Held::default()
        };
        let leased = PoolGpu { lease: Some("ours".into()), ..gpu(GpuState::Leased) };
        Leases {
            boot_ms: 105_000,
            before_ms: Some(100_000),
            gpus: vec![leased],
            held: vec![held],
            ..Leases::default()
        }
    }

    fn record(pid: Option<u32>) -> Record {
        Record { pid, time: "2026-11-21 06:29:57".into(), ..Record::default() }
    }

    fn claims(name: &str) -> Claim {
        Claim::Lease(name.to_owned())
    }

    struct Case {
        key: ProcessKey,
        uid: Option<u32>,
        claim: Claim,
        ancestors: Option<Vec<ProcessKey>>,
        role: bool,
        contained: bool,
    }

    /// Returns a fully known process of another user, which has no connection to the lease.
    fn stranger() -> Case {
        Case {
            key: PROCESS,
            uid: Some(1001),
            claim: Claim::Nothing,
            ancestors: Some(vec![ProcessKey { pid: 150, start_ticks: 2 }, INIT]),
            role: false,
            contained: false,
        }
    }

    fn truth(pool: &Leases, case: &Case) -> Truth {
        let members = Members {
            key: case.key,
            uid: case.uid,
            claim: &case.claim,
            ancestors: case.ancestors.as_deref(),
            stands_for_others: case.role,
            contained: case.contained,
        };
        pool.lease_of(&members, pool.gpus.first()).truth()
    }

    #[test]
    fn leased_gpu_is_attributed_to_its_holder() {
        use Truth::{False, True, Unknown};
        let below = Some(vec![HOLDER, INIT]);
        let reused = Some(vec![ProcessKey { start_ticks: 501, ..HOLDER }, INIT]);
        let cases = [
            ("the holder itself", Case { key: HOLDER, ..stranger() }, True),
            ("below the holder", Case { ancestors: below.clone(), ..stranger() }, True),
            (
                "descendant, environment unread",
                Case { ancestors: below, claim: Claim::Unread, ..stranger() },
                True,
            ),
            (
                "its environment says so",
                Case { claim: claims("ours"), ancestors: None, uid: Some(1000), ..stranger() },
                True,
            ),
            ("and its owner is not known", Case { claim: claims("ours"), uid: None, ..stranger() }, True),
            ("another user says so", Case { claim: claims("ours"), ..stranger() }, Unknown),
            ("a stranger", stranger(), False),
            ("the holder's own, from elsewhere", Case { uid: Some(1000), ..stranger() }, Unknown),
            ("unknown owner", Case { uid: None, ..stranger() }, Unknown),
            ("in a container", Case { contained: true, ..stranger() }, Unknown),
            ("of another lease", Case { claim: claims("theirs"), ..stranger() }, False),
            ("below another process of the holder's pid", Case { ancestors: reused, ..stranger() }, False),
            ("environment unread", Case { claim: Claim::Unread, ..stranger() }, Unknown),
            ("ancestors unread", Case { ancestors: None, ..stranger() }, Unknown),
            (
                "younger than the previous sample",
                Case { key: ProcessKey { start_ticks: 10_000, ..PROCESS }, ..stranger() },
                Unknown,
            ),
            ("an MPS server", Case { role: true, ..stranger() }, Unknown),
        ];
        for (name, case, expected) in cases {
            assert_eq!(truth(&pool(), &case), expected, "{name}");
        }
    }

    #[test]
    fn what_is_not_known_of_a_lease_refutes_nothing() {
        let changed = |change: fn(&mut Leases)| {
            let mut pool = pool();
            change(&mut pool);
            truth(&pool, &stranger())
        };
        assert_eq!(changed(|_| {}), Truth::False);
        assert_eq!(
            changed(|pool| pool.held[0].holder = None),
            Truth::Unknown,
            "a holder in another namespace"
        );
        assert_eq!(
            changed(|pool| pool.held[0].mode = Some("compat".into())),
            Truth::Unknown,
            "of GPU.py's rules"
        );
        assert_eq!(changed(|pool| pool.held.clear()), Truth::Unknown, "no such lease is held");
        assert_eq!(
            changed(|pool| pool.gpus[0].since_ms = 0),
            Truth::Unknown,
            "leased since the previous sample"
        );
        assert_eq!(changed(|pool| pool.before_ms = None), Truth::Unknown, "the first sample");
        assert_eq!(changed(|pool| pool.gpus.clear()), Truth::Unknown, "a GPU that is not of the pool");
    }

    #[test]
    fn gpu_without_lease_is_attributed_by_its_record() {
        use Truth::{False, True, Unknown};
        let with = |gpu_state, record: Option<Record>| Leases {
            gpus: vec![PoolGpu { record, ..gpu(gpu_state) }],
            ..pool()
        };
        let record = |pid| Some(record(pid));
        let began = |ticks| Some(Record { pid: Some(150), start_ticks: Some(ticks), ..Record::default() });
        let cases = [
            ("idle", with(GpuState::Idle, None), False),
            ("idle, with a record", with(GpuState::Idle, record(Some(9))), Unknown),
            ("GPU.py's, for its parent", with(GpuState::Legacy, record(Some(150))), True),
            ("GPU.py's, for itself", with(GpuState::Legacy, record(Some(200))), True),
            ("GPU.py's, for an earlier process of that pid", with(GpuState::Legacy, began(8)), Unknown),
            ("GPU.py's, for just this one", with(GpuState::Legacy, began(2)), True),
            (
                "GPU.py's, for a subshell that may have ended",
                with(GpuState::Legacy, record(Some(9))),
                Unknown,
            ),
            ("GPU.py's, of a container's first process", with(GpuState::Legacy, record(Some(1))), Unknown),
            ("GPU.py's, and no pid", with(GpuState::Legacy, record(None)), Unknown),
            ("gathered", with(GpuState::Gathering, None), Unknown),
            ("withheld", with(GpuState::Quarantined, None), Unknown),
            ("behind the barrier", with(GpuState::Barrier, None), Unknown),
            ("nowhere", with(GpuState::Unknown, None), Unknown),
        ];
        for (name, pool, expected) in cases {
            assert_eq!(truth(&pool, &stranger()), expected, "{name}");
        }
    }
}
