//! The exporter: takes samples at an interval, and publishes them as metrics, a status page, a stream and a
//! record. Sampling itself is the task of bailiff-sampler.

pub mod flags;
pub mod gzip;
pub mod health;
pub mod kubelet;
pub mod leases;
pub mod metrics;
pub mod mps;
pub mod once;
pub mod page;
pub mod published;
pub mod record;
pub mod requests;
pub mod routes;
pub mod schedule;
pub mod selection;
pub mod settings;
pub mod status_page;
pub mod stream;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bailiff_http::listen;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_lifecycle::socket::Socket;
use bailiff_lifecycle::systemd;
use bailiff_proc::clock;
use bailiff_sampler::Supervisor;
use bailiff_snapshot::Sample;
use tokio::task::JoinSet;

use crate::leases::Leasing;
use crate::mps::Watching;
use crate::record::Record;
use crate::requests::Requests;
use crate::routes::Routes;
use crate::schedule::Latest;
use crate::settings::Settings;
use crate::stream::Clients;

/// Source of samples. A call may take as long as the source's own deadlines allow.
pub trait SampleSource: Send {
    /// Takes the sample with the sequence number `seq`; `None` if no further sample is possible.
    fn sample(&mut self, seq: u64) -> Option<Sample>;
}

impl SampleSource for Supervisor {
    fn sample(&mut self, seq: u64) -> Option<Sample> {
        Self::sample(self, seq)
    }
}

/// Serves until shutdown, or prints one page with `--once`.
///
/// # Errors
/// If an address, socket or file cannot be opened, or sampling ends by itself.
pub async fn run(
    settings: Settings,
    source: Box<dyn SampleSource>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let Some(format) = settings.once else {
        // Opened before any thread is started, because it can change the user, which threads do not share.
        let exporter = Exporter::open(settings)?;
        let source = with_leases_and_mps(source, &exporter.settings)?;
        return exporter.serve(source, shutdown).await;
    };
    let source = with_leases_and_mps(source, &settings)?;
    once::run(settings.schedule, format, source, shutdown).await
}

fn with_leases_and_mps(source: Box<dyn SampleSource>, settings: &Settings) -> Result<Box<dyn SampleSource>> {
    let source = match settings.leases.clone() {
        Some(pool) => {
            Box::new(Leasing::start(source, pool).context("cannot start the thread that queries leases")?)
        }
        None => source,
    };
    Ok(Box::new(Watching::new(source, settings.mps.clone())))
}

/// An exporter whose sockets and files are open.
#[derive(Debug)]
pub struct Exporter {
    settings: Settings,
    web: Web,
    listeners: Vec<TcpListener>,
    socket: Option<Socket>,
    record: Option<Record>,
}

impl Exporter {
    /// Opens the listeners, the stream's socket and the record file, changes to the user of the settings, and opens
    /// the web configuration.
    ///
    /// # Errors
    /// If one of them cannot be opened, or the user cannot be changed.
    pub fn open(settings: Settings) -> Result<Self> {
        let (web, outlets) = (&settings.web, &settings.outlets);
        let listeners = listen::open(&web.listen)?;
        let socket = outlets.stream.as_deref().map(|path| Socket::open(path, "stream")).transpose()?;
        let record = outlets.record.as_deref().map(Record::open).transpose()?;
        if let Some(user) = web.user {
            user.assume().context("cannot change to the user of --web.user")?;
        }
        // The file is read again at each request, so the user must be allowed to read it.
        let web = Web::open(web.config.as_deref(), web.permissions)?;
        Ok(Self { settings, web, listeners, socket, record })
    }

    /// Returns the addresses of all listeners.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        self.listeners.iter().map(|listener| Ok(listener.local_addr()?)).collect()
    }

    /// Samples and serves until `shutdown` is ready, then lets requests in progress finish.
    ///
    /// # Errors
    /// If sampling ends by itself.
    pub async fn serve(
        self,
        source: Box<dyn SampleSource>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        let (interval, latest) =
            schedule::start(source, self.settings.schedule).context("cannot start sampling")?;
        let routes = Arc::new(self.routes(&latest));
        for address in self.addresses()? {
            tracing::info!(%address, path = routes.telemetry, "serving");
        }
        let limits = self.limits();
        let mut outlets = JoinSet::new();
        if let (Some(socket), Some(clients)) = (self.socket, &routes.clients) {
            outlets.spawn(stream::serve(socket, latest.clone(), clients.clone()));
        }
        if let Some(record) = self.record {
            outlets.spawn(record.run(latest.clone()));
        }
        if let Some(often) = systemd::watchdog() {
            outlets.spawn(say_alive(Arc::clone(&routes), often));
        }
        let site = Site { listeners: self.listeners, web: self.web, hosts: self.settings.web.hosts };
        systemd::ready();
        let died = server::serve(site, routes, limits, until(shutdown, latest)).await?;
        systemd::stopping();
        drop(interval);
        outlets.shutdown().await;
        ensure!(!died, "the sampling thread stopped; its error is logged above");
        Ok(())
    }

    fn routes(&self, latest: &Latest) -> Routes {
        Routes {
            latest: latest.clone(),
            telemetry: self.settings.web.telemetry.clone(),
            enforcer: self.settings.web.enforcer.clone(),
            node: self.settings.node.clone(),
            patience: (self.settings.schedule.interval, self.settings.sampler.deadline),
            started: clock::running(),
            clients: self.socket.as_ref().map(|_| Clients::default()),
            failures: self.record.as_ref().map(Record::failures),
            requests: Requests::default(),
        }
    }

    const fn limits(&self) -> Limits {
        Limits {
            connections: self.settings.web.max_connections,
            header: Duration::from_secs(10),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}

/// Notifies systemd's watchdog while the exporter is healthy.
async fn say_alive(routes: Arc<Routes>, often: Duration) {
    let mut interval = tokio::time::interval(often);
    loop {
        interval.tick().await;
        if routes.health().healthy().is_ok() {
            systemd::alive();
        }
    }
}

/// Waits for the shutdown request or the end of the sampling thread; returns true for the latter.
async fn until(shutdown: impl Future<Output = ()>, mut latest: Latest) -> bool {
    tokio::select! {
        () = shutdown => false,
        _ = latest.wait_for(|_| false) => true,
    }
}
