//! The thread that reads the pool periodically and acts on it.

mod taken;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::audit::{Audit as Pooled, Gpu, Lease, Record};
use bailiff_lease::holder::{Life, LocalHost};
use bailiff_lease::legacy::{Case, Judgement, Limits, Use, evaluate};
use bailiff_lease::{EXEC_DELAY, LeaseError, Pool};
use bailiff_lifecycle::file;
use bailiff_proc::{Pidfd, lives, may_live};
use bailiff_snapshot::ProcessKey;
use tokio::sync::mpsc::UnboundedSender;

use super::actions::{AgentEvent, LeaseAction, LeaseExecutor, owner};
use super::evidence::{Evidence, On};
use super::mailbox::{Orders, Shared};
use super::memory::Memory;
use super::status::{AgentStatus, Judged};
use crate::audit::Audit;
use crate::clock;
use bailiff_engine::engine::STALE_INTERVALS;
use bailiff_engine::policy::{Address, Leases};

/// Maximum time between two readings of the pool.
const INTERVAL: Duration = Duration::from_secs(1);
/// Deadline of a Redis query.
const PATIENCE: Duration = Duration::from_secs(2);
/// For this long after its last registration, other hosts leave exited holders to this agent.
const WORD: Duration = Duration::from_secs(5);
/// Duration for which a lease is renewed on behalf of a holder that cannot renew it.
const LEASE: Duration = Duration::from_mins(1);
/// Maximum size of a file with an address.
const LONGEST: u64 = 64 << 10;
/// Maximum number of holders whose exit is awaited; the others are checked in every pass.
const MOST_HANDLES: usize = 512;

/// Runs until shutdown.
pub(super) fn run(
    shared: &Shared,
    log: &Audit,
    (events, (host_namespace, devices)): (&UnboundedSender<AgentEvent>, (bool, &str)),
) {
    let mut reconciler = Reconciler {
        shared,
        log,
        events,
        local_host: LocalHost::read(),
        host_namespace,
        devices,
        memory: Memory::default(),
        link: None,
        reported: None,
        handles: Vec::new(),
        living: HashMap::new(),
        unreported: HashMap::new(),
    };
    while !shared.stopped() {
        reconciler.once();
        shared.wait(&reconciler.handles, INTERVAL);
    }
    reconciler.leave();
}

/// Connects to the pool of a policy.
pub(crate) fn open(leases: &Leases) -> Result<Pool, LeaseError> {
    let address = match &leases.redis {
        Address::Url(url) => url.clone(),
        Address::File(path) => file::first_line(path, LONGEST)
            .map_err(|error| LeaseError::Address(format!("{} ({error})", path.display())))?
            .unwrap_or_default(),
    };
    Pool::open(&address, &leases.prefix, PATIENCE)
}

/// State of the thread.
struct Reconciler<'a> {
    shared: &'a Shared,
    log: &'a Audit,
    events: &'a UnboundedSender<AgentEvent>,
    local_host: LocalHost,
    host_namespace: bool,
    devices: &'a str,
    memory: Memory,
    link: Option<(Arc<Leases>, Pool)>,
    /// Status that was reported last.
    reported: Option<AgentStatus>,
    /// Processes whose exit ends a lease.
    handles: Vec<Pidfd>,
    /// Running holder of each lease.
    living: HashMap<String, ProcessKey>,
    /// Records whose writing was not reported, by GPU.
    unreported: HashMap<String, Record>,
}

/// Data of one pass over the pool.
struct Pass<'a> {
    audit: &'a Pooled,
    evidence: Option<Evidence<'a>>,
    leases: &'a Leases,
    /// Whether all users of this pool are on this host, as far as is known.
    local: bool,
}

impl Reconciler<'_> {
    fn once(&mut self) {
        let orders = self.shared.orders();
        let Some(leases) = &orders.leases else {
            self.leave();
            self.say(None);
            return;
        };
        if self.link.as_ref().is_some_and(|(known, _)| known != leases) {
            self.leave();
        }
        let linked = match self.link.take() {
            Some(link) => Ok(link),
            None => open(leases).map(|pool| (Arc::clone(leases), pool)),
        };
        let outcome = linked.and_then(|(leases, mut pool)| {
            let judged = self.pass(&leases, &mut pool, &orders);
            if judged.is_ok() {
                self.link = Some((leases, pool));
            }
            judged
        });
        let status = match outcome {
            Ok(judged) => AgentStatus { up: true, error: None, acts: orders.acts && leases.reap, judged },
            Err(error) => {
                self.handles.clear();
                AgentStatus { error: Some(error.to_string()), ..AgentStatus::default() }
            }
        };
        self.say(Some(status));
    }

    fn say(&mut self, status: Option<AgentStatus>) {
        if self.reported != status {
            if let Some(error) = status.as_ref().and_then(|status| status.error.as_ref()) {
                tracing::warn!(error, "the lease agent cannot check the leases");
            }
            drop(self.events.send(AgentEvent::Status(status.clone())));
            self.reported = status;
        }
    }

    /// Unregisters the agent, so that others may release leases of exited holders.
    fn leave(&mut self) {
        if let Some((_, mut pool)) = self.link.take()
            && self.reported.as_ref().is_some_and(|reported| reported.acts)
        {
            // If this fails, the registration expires by itself.
            drop(pool.register_agent(&self.local_host, Duration::ZERO));
        }
        self.memory = Memory::default();
        self.handles.clear();
        self.living.clear();
        self.unreported.clear();
    }

    fn pass(&mut self, leases: &Leases, pool: &mut Pool, orders: &Orders) -> Result<Vec<Judged>, LeaseError> {
        let acts = orders.acts && leases.reap;
        if acts {
            pool.register_agent(&self.local_host, WORD)?;
        }
        let audit = pool.audit()?;
        self.forget_others(&audit);
        let now = clock::since_boot();
        self.memory.read_pool(now, &audit);
        let view = self.shared.mailbox().view.clone();
        let fresh = view.as_deref().filter(|view| {
            view.trusted() && now.saturating_sub(view.boot()) <= view.interval() * STALE_INTERVALS
        });
        let evidence = fresh.map(|view| Evidence { view, may_live: &may_live });
        if let Some(evidence) = &evidence {
            let on = audit.gpus.iter().map(|gpu| (gpu.id.clone(), evidence.on(gpu)));
            self.memory.see((evidence.view.boot(), evidence.view.interval()), on);
        }
        let pass = Pass { audit: &audit, evidence, leases, local: self.is_local(pool, &audit) };
        let mut actor = LeaseExecutor { pool, log: self.log, policy: &orders.policy, events: self.events };
        self.holders(&pass, &mut actor, (acts, orders.acts))?;
        if acts {
            self.clear(&pass, &mut actor)?;
        }
        self.records(&pass, &mut actor, acts)
    }

    /// Forgets GPUs that are not in the pool, so that ids that clients of Redis make up use no memory for long.
    fn forget_others(&mut self, audit: &Pooled) {
        let ids: BTreeSet<&str> = audit.gpus.iter().map(|gpu| gpu.id.as_str()).collect();
        self.unreported.retain(|id, _| ids.contains(id.as_str()));
        self.shared.mailbox().witnesses.retain(|id, _| ids.contains(id.as_str()));
        self.memory.forget_others(&ids);
    }

    /// Returns whether no other host is known, and the Redis server runs on this host.
    fn is_local(&self, pool: &Pool, audit: &Pooled) -> bool {
        let of_leases = audit.leases.iter().filter_map(|lease| Some((lease.get("host")?, lease.get("boot"))));
        let of_agents = audit.agents.iter().map(|agent| (agent.host.as_str(), Some(agent.boot.as_str())));
        pool.is_local()
            && of_leases.chain(of_agents).all(|(host, boot)| self.local_host.is_machine(Some(host), boot))
    }

    /// Checks the holders: releases the leases of exited holders, and renews the leases of holders that cannot.
    fn holders(
        &mut self,
        pass: &Pass<'_>,
        actor: &mut LeaseExecutor<'_>,
        (frees, acts): (bool, bool),
    ) -> Result<(), LeaseError> {
        let audit = pass.audit;
        let checked: Vec<(&Lease, Life, Option<ProcessKey>)> = audit
            .leases
            .iter()
            .map(|lease| {
                // To find a process that an exited holder started, all processes must be read.
                let known = self
                    .living
                    .get(&lease.lease)
                    .copied()
                    .filter(|known| lives(*known).is_ok_and(|lives| lives));
                let (life, process) = match known {
                    Some(known) => (Life::Alive, Some(known)),
                    None => self.local_host.find_living(lease),
                };
                (lease, life, process)
            })
            .collect();
        let living =
            checked.iter().filter_map(|(lease, _, process)| Some((lease.lease.clone(), (*process)?)));
        self.living = living.collect();
        self.handles =
            self.living.values().take(MOST_HANDLES).filter_map(|process| Pidfd::of(*process).ok()?).collect();
        late(&checked, pass, actor, (frees, acts))?;
        let dead: Vec<&Lease> =
            checked.iter().filter(|(_, life, _)| *life == Life::Dead).map(|(lease, _, _)| *lease).collect();
        if dead.is_empty() || !frees {
            return Ok(());
        }
        std::thread::park_timeout(EXEC_DELAY);
        for lease in dead.into_iter().filter(|lease| self.local_host.life(lease) == Life::Dead) {
            actor.end(
                (LeaseAction::ReapDead, lease),
                &pass.busy(lease),
                "the holder and all processes that it started have exited",
            )?;
        }
        Ok(())
    }

    /// Returns quarantined GPUs that are no longer in use.
    fn clear(&self, pass: &Pass<'_>, actor: &mut LeaseExecutor<'_>) -> Result<(), LeaseError> {
        for gpu in &pass.audit.gpus {
            let busy = gpu.quarantine.as_deref().filter(|why| why.starts_with("busy:"));
            if let Some(why) = busy
                && pass.on(gpu) == On::Unused
                && self.memory.seen_since_withheld(&gpu.id)
            {
                actor.clear(gpu, why)?;
            }
        }
        Ok(())
    }

    /// Decides for each GPU that a client of `GPU.py` took, or that is lost (recorded neither as idle nor as
    /// taken), whether it should return to the pool. If `acts` is set, attempts to return it.
    fn records(
        &mut self,
        pass: &Pass<'_>,
        actor: &mut LeaseExecutor<'_>,
        acts: bool,
    ) -> Result<Vec<Judged>, LeaseError> {
        let limits = Limits { idle: pass.leases.legacy_idle_grace, nowhere: pass.leases.lost_after };
        let mut judged = Vec::new();
        for gpu in &pass.audit.gpus {
            let Some(taken) = self.taken(pass, gpu, (actor, acts))? else { continue };
            let usage = match self.memory.usage(&gpu.id, pass.on(gpu)) {
                Use::Quiet(_) if taken.has_ended() && self.is_open(pass, gpu, &taken) => Use::Open,
                usage => usage,
            };
            let case = Case {
                taker: taken.by,
                usage,
                single_host: pass.is_local_host(gpu),
                host_namespace: self.host_namespace,
            };
            let judgement = evaluate(&case, &limits);
            judged.push(Judged::new(&gpu.id, judgement, clock::since_boot()));
            if acts {
                act(judgement, (gpu, pass.audit), actor)?;
            }
        }
        Ok(judged)
    }
}

impl Pass<'_> {
    fn on(&self, gpu: &Gpu) -> On {
        self.evidence.as_ref().map_or(On::Unknown, |evidence| evidence.on(gpu))
    }

    /// Returns the GPUs of a lease that are in use.
    fn busy(&self, lease: &Lease) -> Vec<String> {
        self.evidence.as_ref().map(|evidence| evidence.busy(self.audit, lease)).unwrap_or_default()
    }

    fn is_local_host(&self, gpu: &Gpu) -> bool {
        let named = self.evidence.as_ref().is_some_and(|evidence| evidence.is_ours(gpu));
        named || gpu.uuid.is_none() && self.local
    }
}

fn act(
    judgement: Judgement,
    (gpu, audit): (&Gpu, &Pooled),
    actor: &mut LeaseExecutor<'_>,
) -> Result<(), LeaseError> {
    match judgement {
        Judgement::Keep(_) | Judgement::Suspect(..) => Ok(()),
        Judgement::Lost => actor.resolve(
            LeaseAction::PutBackLost,
            gpu,
            "for too long, it was unused and was recorded neither as idle nor as taken",
        ),
        Judgement::Orphaned => {
            let why = "the process that took it has exited, and the GPU was unused for long enough";
            match owner(audit, gpu) {
                Some(lease) => actor.end((LeaseAction::FreeOrphaned, lease), &[], why),
                None => actor.resolve(LeaseAction::FreeOrphaned, gpu, why),
            }
        }
    }
}

/// Renews leases of running holders that cannot renew, and releases unrenewed leases of holders unknown to this
/// node.
fn late(
    checked: &[(&Lease, Life, Option<ProcessKey>)],
    pass: &Pass<'_>,
    actor: &mut LeaseExecutor<'_>,
    (frees, acts): (bool, bool),
) -> Result<(), LeaseError> {
    let late: HashSet<&str> = pass.audit.late().map(|lease| lease.lease.as_str()).collect();
    for (lease, life, _) in checked.iter().filter(|(lease, ..)| late.contains(lease.lease.as_str())) {
        let why = match life {
            Life::Alive if lease.is_acknowledged() => {
                if acts {
                    actor.pool.touch(&lease.lease, LEASE, None)?;
                }
                continue;
            }
            Life::Alive if lease.state == "held" => "the holder did not confirm the lease",
            Life::Elsewhere if !pass.audit.has_agent(lease) => "the lease was not renewed in time",
            Life::Timed => "the lease has expired",
            _ => continue,
        };
        if frees {
            actor.end((LeaseAction::ReapLate, lease), &pass.busy(lease), why)?;
        }
    }
    Ok(())
}
