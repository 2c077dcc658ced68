//! Daemon: one loop that handles one event at a time and blocks on nothing else.

mod doing;
mod events;
mod notice;
mod reload;
mod requests;
mod rights;
mod state;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_http::listen;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_lifecycle::control;
use bailiff_lifecycle::exit::Stop;
use bailiff_lifecycle::heap;
use bailiff_lifecycle::signals::Hangups;
use bailiff_lifecycle::socket::{Clients, Socket};
use bailiff_lifecycle::systemd;
use bailiff_snapshot::{ProcessKey, SubordinateUids};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use self::events::{Event, Sources, Taken, UserRequests};
use self::requests::{ControlHandler, ControlRequest, Origin};
use crate::actions::notices::{Delivery, NoticeSettings, Notices};
use crate::actions::{self, Executor};
use crate::agent::{Agent, AgentEvent, Orders};
use crate::audit::{self, Audit};
use crate::clock::{Deadline, now};
use crate::policy_file;
use crate::privileged;
use crate::settings::Settings;
use crate::status::tally::{LeaseAct, Skipped};
use crate::status::{Open, PolicyStatus, Status};
use crate::stream::{self, Arrival};
use crate::web::{Reload, Routes};
use bailiff_engine::engine::{Engine, Skip};
use bailiff_engine::policy::{Mode, Policy};
use bailiff_engine::verdict::{Hold, Verdict};
use bailiff_engine::view::{TargetId, View};

/// Interval of periodic checks: whether the audit log can be written, the age of the snapshot.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of a user's clients on the users' socket.
const CLIENTS_OF_USER: usize = 4;
/// How long the subordinate uids count as current.
const SUBORDINATE_UIDS_FOR: Duration = Duration::from_mins(1);
/// Maximum number of queued snapshots; more would be too old when they are evaluated.
const ARRIVALS: usize = 4;

/// Holds that stop the lease agent. Other holds affect only rules, because they cast no doubt on the exit of a
/// lease holder.
const HOLDS: [Hold; 4] = [Hold::Paused, Hold::InvalidFile, Hold::Audit, Hold::Untrusted];

/// State of the daemon.
pub struct Daemon {
    settings: Settings,
    engine: Engine,
    executor: Executor,
    /// Lease agent, and the last orders that were sent to it.
    agent: Agent,
    ordered: Orders,
    notices: Notices,
    audit: Audit,
    boot_id: Option<String>,
    /// SHA-256 of the rules file at its last read; `None` if it could not be read.
    read_sha256: Option<String>,
    rereads: UnboundedSender<reload::Condition>,
    view: Option<Arc<View>>,
    /// Process that serves the stream, as of the last connection.
    exporter: Option<ProcessKey>,
    /// This program and its ancestors.
    ours: BTreeSet<ProcessKey>,
    /// Verdict of the action in flight, which is in the status.
    request: Option<Verdict>,
    /// Whether a write of the state was attempted before the SIGKILL of the action in flight.
    tried_to_save: bool,
    /// Subordinate uids, for the sockets.
    subordinate: watch::Sender<SubordinateUids>,
    /// When the subordinate uids are read again.
    subordinate_uids_until: Deadline,
    flagged: status::Flagged,
    /// When an Event said last that the eviction of a pod is blocked, since boot.
    blocked: BTreeMap<TargetId, Duration>,
    status: Status,
    shown: watch::Sender<Arc<Status>>,
    state_writer: state::StateWriter,
}

/// Channels from the threads to the daemon.
struct Threads {
    reports: actions::Channels,
    /// Results of notifications.
    deliveries: UnboundedReceiver<Delivery>,
    leases: UnboundedReceiver<AgentEvent>,
}

/// Runs the daemon until shutdown.
///
/// # Errors
/// If the policy is invalid, or a socket, directory or signal is not available.
pub async fn run(settings: Settings, shutdown: impl Future<Output = ()>) -> Result<(), Stop> {
    let (policy, policy_status, stamp) = reload::first(&settings.rules, settings.permissions)?;
    let web = Web::open(settings.web.config.as_deref(), settings.permissions)?;
    let hosts = settings.web.hosts.clone();
    let listeners = listen::open(&settings.web.listen).context("cannot serve")?;
    let control = Socket::open(&settings.control, "control").context("cannot open the control socket")?;
    let users = Socket::open_for(Clients::All, &settings.users(), "users'")
        .context("cannot open the users' socket")?;
    let group = control.group().context("cannot read the group of the control socket")?;
    let (rereads, asked_to_read) = unbounded_channel();
    let (daemon, threads) = Daemon::open(settings, (policy, policy_status), rereads)?;
    let (reloads_to, reloads) = channel(1);
    let (asked_to, asked) = channel(16);
    let (users_to, user_requests) = channel(16);
    let (arrivals_to, arrivals) = channel(ARRIVALS);
    let (reads_to, reads) = channel(1);
    let acks = daemon.state_writer.acks();
    let mut tasks = JoinSet::new();
    tasks.spawn(stream::follow(daemon.settings.stream.clone(), arrivals_to));
    let file = (daemon.settings.rules.clone(), daemon.settings.permissions);
    tasks.spawn(policy_file::follow((file, stamp), asked_to_read, reads_to));
    let limits_of_users = control::Limits { clients_of_user: CLIENTS_OF_USER, ..control::Limits::default() };
    let handler = daemon.handler(Origin::Control, asked_to);
    tasks.spawn(control::serve(control, handler, control::Limits::default()));
    tasks.spawn(control::serve(users, daemon.handler(Origin::User, users_to), limits_of_users));
    let routes = Arc::new(Routes {
        status: daemon.shown.subscribe(),
        reloads: daemon.settings.web.lifecycle.then_some(reloads_to.clone()),
    });
    for listener in &listeners {
        let address = listener.local_addr().context("cannot read its listening address")?;
        tracing::info!(%address, "serving");
    }
    let mut interval = interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let hangups = Hangups::listen().context("cannot listen to signals")?;
    let taken = Taken::default();
    let users = UserRequests::new(user_requests);
    let sources = Sources { arrivals, reads, hangups, reloads, asked, users, threads, taken, acks, interval };
    systemd::ready();
    let judging = daemon.judge(sources, (shutdown, group));
    let site = Site { listeners, web, hosts };
    server::serve(site, routes, limits(), judging).await.context("cannot serve")?;
    drop(reloads_to);
    tasks.shutdown().await;
    Ok(())
}

const fn limits() -> Limits {
    Limits {
        connections: 64,
        header: Duration::from_secs(10),
        write: Duration::from_secs(30),
        drain: Duration::from_secs(2),
    }
}

impl Daemon {
    /// Returns the handler of a socket, which sends requests to this channel.
    fn handler(&self, origin: Origin, asked: Sender<ControlRequest>) -> Arc<ControlHandler> {
        let (acks, audit) = (self.state_writer.acks(), self.settings.audit.clone());
        let subordinate = self.subordinate.subscribe();
        let next_search = Arc::new(Mutex::new(Instant::now()));
        Arc::new(ControlHandler { origin, asked, acks, audit, subordinate, next_search })
    }

    fn open(
        settings: Settings,
        (policy, policy_status): (Arc<Policy>, PolicyStatus),
        rereads: UnboundedSender<reload::Condition>,
    ) -> Result<(Self, Threads)> {
        let boot_id = rights::boot_id(&settings.executor.procfs);
        let about = audit::About { node: settings.node.clone(), boot_id: boot_id.clone() };
        let audit = Audit::open(settings.audit.clone(), about, crate::actions::continue_stopped)
            .context("cannot start the thread of the audit log")?;
        let (executor, reports) = Executor::start(settings.executor.clone(), audit.clone())
            .context("cannot start the executor thread")?;
        let (agent, leases) =
            Agent::start(audit.clone(), rights::in_host_namespace(&settings), &settings.executor.devices)
                .context("cannot start the thread of the lease agent")?;
        let notices = NoticeSettings {
            permissions: settings.permissions,
            mail: Some(settings.state.clone()),
            node: settings.node.clone(),
            ..NoticeSettings::default()
        };
        let (mut notices, deliveries) = Notices::new(notices);
        notices.keep(&policy.channels);
        let (shown, _) = watch::channel(Arc::new(Status::default()));
        let mut engine = Engine::new(policy, settings.most);
        engine.booted(boot_id.clone());
        state::restore(&mut engine, &settings.state);
        let mut daemon = Self {
            engine,
            executor,
            agent,
            ordered: Orders::default(),
            notices,
            audit,
            boot_id,
            read_sha256: policy_status.sha256.clone(),
            rereads,
            view: None,
            exporter: None,
            ours: rights::ourselves(&settings.executor.procfs),
            request: None,
            tried_to_save: false,
            subordinate: watch::Sender::default(),
            subordinate_uids_until: Deadline::after(Duration::ZERO),
            flagged: status::Flagged::new(),
            blocked: BTreeMap::new(),
            status: status::begin(&settings, policy_status),
            shown,
            state_writer: state::StateWriter::start(&settings.state),
            settings,
        };
        daemon.begin();
        Ok((daemon, Threads { reports, deliveries, leases }))
    }

    /// Handles events one at a time until shutdown, then saves the state and closes the log.
    async fn judge(mut self, mut sources: Sources, (shutdown, group): (impl Future<Output = ()>, u32)) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let event = tokio::select! {
                () = &mut shutdown => break,
                event = sources.next() => event,
            };
            self.take(event, group);
        }
        systemd::stopping();
        self.end(sources.threads.deliveries).await;
    }

    fn take(&mut self, event: Event, group: u32) {
        match event {
            Event::Arrival(Arrival::Snapshot(snapshot)) => self.see(*snapshot),
            Event::Arrival(arrival) => self.hear(arrival),
            Event::Read(read) => self.reread(read),
            Event::Hangup => self.ask_to_read("SIGHUP", oneshot::channel().0),
            Event::Reload(Reload(answer)) => self.ask_to_read("requested over HTTP", answer),
            Event::ControlRequest(asked) if asked.origin == Origin::User => {
                if !self.answer_user(asked) {
                    return;
                }
            }
            Event::ControlRequest(asked) => {
                drop(asked.answer.send(self.answer(&asked.peer, &asked.question, group)));
            }
            Event::ActionReport(report) => self.completed(&report),
            Event::Question(question) => self.permit(question),
            Event::Delivered(deliveries) => deliveries.iter().for_each(|delivery| self.delivered(delivery)),
            Event::Leases(events) => self.heard(events),
            Event::Kept => self.check_state(),
            Event::Interval => {
                self.check();
                systemd::alive();
            }
        }
        self.order_the_agent();
        self.show();
    }

    /// Sets the initial holds and status, before the first snapshot.
    fn begin(&mut self) {
        for (hold, holds, why) in rights::missing(&self.settings) {
            self.engine.hold(hold, holds);
            tracing::warn!(hold = hold.name(), why, "destructive steps are withheld");
        }
        if !privileged::may_kill() {
            let uid = rustix::process::geteuid().as_raw();
            self.engine.limit_to(uid);
            tracing::warn!(uid, "CAP_KILL is missing: the enforcer acts only on processes of its own user");
        }
        self.engine.exempt(self.ours.clone());
        self.renew_subordinate_uids();
        status::begin_counts(&mut self.status.counters, &self.engine);
        // Breakers that an earlier run opened are already in the audit log.
        self.status.breakers = status::breakers(&self.engine, &[]);
        self.save();
        self.record_change(("start", "done"), "");
        self.order_the_agent();
        self.show();
    }

    /// Reads the subordinate uids, which change with the accounts of the machine.
    pub(super) fn renew_subordinate_uids(&mut self) {
        let uids = bailiff_proc::subordinate_uids();
        self.subordinate.send_replace(uids.clone());
        self.engine.set_subordinate(uids);
        self.subordinate_uids_until = Deadline::after(SUBORDINATE_UIDS_FOR);
    }

    /// Evaluates a snapshot, unless it is skipped.
    fn see(&mut self, snapshot: bailiff_snapshot::wire::Snapshot) {
        if self.boot_id.is_some() && snapshot.boot_id.is_some() && snapshot.boot_id != self.boot_id {
            self.status.counters.skipped.count(Skipped::OtherBoot);
            return;
        }
        let began = now();
        self.hold_if(Hold::Stale, false);
        self.check_state();
        if self.subordinate_uids_until.passed() {
            self.renew_subordinate_uids();
        }
        let view = Arc::new(View::between(self.view.as_deref(), snapshot));
        match self.engine.tick(began, Arc::clone(&view)) {
            Ok(verdicts) => {
                self.executor.seen(Arc::clone(&view));
                self.agent.seen(Arc::clone(&view));
                // The old view is freed last, because freeing thousands of processes delays the verdicts.
                let _before = self.view.replace(Arc::clone(&view));
                for verdict in &verdicts {
                    self.carry(verdict);
                }
                let stream = &mut self.status.stream;
                stream.seq = Some(view.snapshot.seq);
                stream.seen_boot_ms = Some(view.snapshot.boot_ms);
                stream.interval_ms = Some(view.snapshot.interval_ms);
                stream.silent = status::silent(&view);
                stream.tick_seconds = Some(now().boot.saturating_sub(began.boot).as_secs_f64());
                self.status.counters.snapshots += 1;
                self.state_writer.save_sometimes(&self.engine, now().boot);
                heap::give_back();
            }
            Err(skip) => self.status.counters.skipped.count(skipped(skip)),
        }
    }

    fn hear(&mut self, arrival: Arrival) {
        let stream = &mut self.status.stream;
        match arrival {
            Arrival::Connected(exporter) => {
                stream.connected = true;
                stream.error = None;
                let pid = exporter.map(|exporter| exporter.pid);
                tracing::info!(path = stream.path, pid, "reading the exporter's stream");
                self.exporter = exporter;
                self.engine.exempt(self.ours.iter().copied().chain(exporter).collect());
            }
            Arrival::Lost(error) => {
                let text = error.to_string();
                self.status.counters.refused.count(error.reason().name().to_owned());
                if stream.connected || stream.error.as_ref() != Some(&text) {
                    tracing::warn!(why = text, "no exporter stream; rules are not evaluated");
                }
                stream.connected = false;
                stream.error = Some(text);
            }
            Arrival::Malformed(why) => {
                self.status.counters.skipped.count(Skipped::Malformed);
                tracing::warn!(why, "a line of the stream is not a valid snapshot");
            }
            Arrival::Snapshot(_) => {}
        }
    }

    /// Sends the lease settings, and whether the agent may act, to the lease agent if they have changed.
    pub(super) fn order_the_agent(&mut self) {
        let holds = self.engine.holds();
        let policy = self.engine.policy();
        let orders = Orders {
            leases: policy.leases.clone(),
            policy: policy.sha256.as_str().into(),
            acts: self.settings.most == Mode::Enforce && HOLDS.iter().all(|hold| !holds.contains(hold)),
        };
        if self.ordered != orders {
            self.ordered = orders.clone();
            self.agent.order(orders);
        }
    }

    pub(super) fn heard(&mut self, events: AgentEvent) {
        match events {
            AgentEvent::Status(status) => self.status.leases = status,
            AgentEvent::LeaseAction(act, result) => {
                self.status.counters.leases.count(LeaseAct { act, result });
            }
        }
    }

    /// Checks the conditions that no event reports.
    fn check(&mut self) {
        self.check_audit_log();
        self.hold_if(Hold::Stale, self.status.stream.is_stale(now().boot));
        self.check_state();
        self.status.counters.audit_failures = self.audit.status.failures();
        self.state_writer.save_sometimes(&self.engine, now().boot);
    }

    /// Publishes the current status.
    fn show(&mut self) {
        let before = self.status.breakers.clone();
        status::refresh(&mut self.status, &self.engine, &self.flagged);
        self.record_breakers(&before, &self.status.breakers);
        self.shown.send_replace(Arc::new(self.status.clone()));
    }

    /// Records in the audit log which breakers have opened and closed.
    fn record_breakers(&self, before: &[Open], now: &[Open]) {
        let changes = [(now, before, "opened"), (before, now, "closed")];
        for (these, others, result) in changes {
            for open in these.iter().filter(|open| !others.contains(open)) {
                tracing::warn!(breaker = open.breaker.name(), open.detail, "breaker {result}");
                self.record_change(("breaker", result), &format!("{}: {}", open.breaker.name(), open.detail));
            }
        }
    }

    /// Saves the state; returns its version.
    fn save(&mut self) -> u64 {
        let version = self.state_writer.save(&self.engine);
        self.check_state();
        version
    }

    fn check_state(&mut self) {
        self.hold_if(Hold::State, !self.state_writer.well());
    }

    fn check_audit_log(&mut self) {
        self.hold_if(Hold::Audit, !self.audit.status.writable());
    }

    async fn end(self, mut deliveries: UnboundedReceiver<Delivery>) {
        self.state_writer.save_at_the_end(&self.engine);
        let Self { mut executor, mut agent, notices, audit, engine, state_writer, .. } = self;
        // The executor finishes its current step, so that the result is logged before the last line.
        let mut finishing = spawn_blocking(move || {
            executor.finish();
            agent.finish();
            drop(notices);
        });
        while timeout(INTERVAL, &mut finishing).await.is_err() && !audit.status.hangs() {}
        while let Ok(delivery) = deliveries.try_recv() {
            notice::record(&audit, &engine.policy().sha256, &delivery);
        }
        audit.later(&doing::change(&engine.policy().sha256, ("end", "done"), ""));
        state_writer.finish().await;
        if spawn_blocking(move || audit.close()).await.is_err() {
            tracing::error!("the audit log was not closed");
        }
    }
}

const fn skipped(skip: Skip) -> Skipped {
    match skip {
        Skip::Duplicate => Skipped::Duplicate,
        Skip::Stale => Skipped::Stale,
        Skip::Future => Skipped::Future,
        Skip::NoInterval => Skipped::Malformed,
    }
}
