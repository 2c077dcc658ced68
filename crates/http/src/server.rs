//! An HTTP/1 server with limits on the duration of a handshake and a request, on the time for reading the
//! response, and on the number of connections.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as Opened};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::hosts::Hosts;
use crate::shares::Shares;
use crate::visit::{self, Handler, Visit};
use crate::web::Web;
use crate::write_deadline::WriteDeadline;

/// Number of polled tasks between two checks for new connections, requests and time limits.
const EVENT_INTERVAL: u32 = 8;
/// Maximum size of a request's line and headers.
const HEADER_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// Time for a refused client to read the refusal.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause after an error of `accept` that the client has not caused, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections, summed over all addresses. One client gets at most half of them.
    pub connections: usize,
    /// Time limit for the handshake and for each request's headers. An idle connection is closed after this
    /// time.
    pub header: Duration,
    /// Time limit for the client to read a response.
    pub write: Duration,
    /// Time limit for requests in progress at shutdown.
    pub drain: Duration,
}

/// Listeners, the web config and the names of the server.
#[derive(Debug)]
pub struct Site {
    /// Open sockets.
    pub listeners: Vec<Opened>,
    /// The web config.
    pub web: Web,
    /// Names under which pages are served.
    pub hosts: Hosts,
}

/// Serves until `shutdown` completes, lets requests in progress finish, and returns the output of `shutdown`. Clients
/// are served by a thread of their own, so that very many requests do not delay `shutdown`, which is the rest of the
/// program.
///
/// # Errors
/// If the thread cannot be started, or a listener cannot be used.
pub async fn serve<T>(
    site: Site,
    handler: Arc<impl Handler>,
    limits: Limits,
    shutdown: impl Future<Output = T>,
) -> io::Result<T> {
    let (end, ended) = oneshot::channel::<()>();
    let (report, mut reported) = oneshot::channel();
    let run = move || {
        let runtime = Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()?;
        let result = runtime.block_on(serve_here(site, handler, limits, ended));
        runtime.shutdown_background();
        result
    };
    std::thread::Builder::new().name("http".to_owned()).spawn(move || report.send(run()))?;
    let over = |_| io::Error::other("the HTTP thread has exited");
    let output = tokio::select! {
        output = shutdown => output,
        result = &mut reported => {
            return Err(result.map_err(over)?.err().unwrap_or_else(|| io::Error::other("the HTTP thread has ended")));
        }
    };
    drop(end);
    reported.await.map_err(over)?.map(|()| output)
}

async fn serve_here(
    site: Site,
    handler: Arc<impl Handler>,
    limits: Limits,
    mut ended: oneshot::Receiver<()>,
) -> io::Result<()> {
    let admission = Admission {
        handler,
        web: site.web,
        hosts: Arc::new(site.hosts),
        limits,
        shares: Shares::new(limits.connections),
        room: Arc::new(Semaphore::new(limits.connections)),
        refusals: Arc::new(Semaphore::new(limits.connections)),
    };
    let (bring, mut brought) = mpsc::channel(1);
    let mut accepting = JoinSet::new();
    for listener in site.listeners {
        accepting.spawn(accept(TcpListener::from_std(listener)?, bring.clone()));
    }
    let connections = GracefulShutdown::new();
    loop {
        tokio::select! {
            _ = &mut ended => break,
            Some(connection) = brought.recv() => admission.admit(connection, connections.watcher()),
        }
    }
    drop(brought);
    accepting.shutdown().await;
    if timeout(limits.drain, connections.shutdown()).await.is_err() {
        tracing::warn!(after = ?limits.drain, "closed connections whose clients did not finish in time");
    }
    Ok(())
}

struct Admission<H> {
    handler: Arc<H>,
    web: Web,
    hosts: Arc<Hosts>,
    limits: Limits,
    shares: Shares,
    room: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

async fn accept(listener: TcpListener, bring: mpsc::Sender<(TcpStream, SocketAddr)>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                if bring.send(connection).await.is_err() {
                    return;
                }
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

impl<H: Handler> Admission<H> {
    fn admit(&self, (stream, client): (TcpStream, SocketAddr), watcher: Watcher) {
        if let Some(share) = self.shares.take(client.ip(), stream.local_addr().ok().map(|server| server.ip()))
            && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
        {
            let (handler, hosts) = (Arc::clone(&self.handler), Arc::clone(&self.hosts));
            let (web, limits) = (self.web.clone(), self.limits);
            tokio::spawn(async move {
                let _held = (permit, share);
                let stream = WriteDeadline::new(stream, limits.write);
                if let Some((visit, stream)) =
                    visit::enter(stream, (handler, hosts, web), (client.ip(), limits.header)).await
                {
                    converse(visit, stream, (limits, watcher)).await;
                }
            });
            return;
        }
        self.handler.refused();
        // Further connections are dropped without a response, because responses cost memory. The same applies
        // to connections that would need a TLS handshake first.
        if self.web.answers_without_handshake()
            && let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned()
        {
            tokio::spawn(async move {
                let _permit = permit;
                let _ = timeout(REFUSAL, refuse(stream)).await;
            });
        }
    }
}

async fn converse<H: Handler>(visit: Visit<H>, stream: visit::Stream, (limits, watcher): (Limits, Watcher)) {
    let visit = Arc::new(visit);
    let service = service_fn(move |request: Request<_>| {
        let visit = Arc::clone(&visit);
        async move {
            // Otherwise, up to 16 requests that a client sent at once are answered before other clients have their turn.
            tokio::task::yield_now().await;
            visit.answer(&request.map(drop)).await
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Sends a refusal, then reads what the client sends. Closing a socket with unread bytes would reset the
/// connection, and the client might not receive the refusal.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
        Content-Length: 21\r\nRetry-After: 1\r\nConnection: close\r\n\r\ntoo many connections\n";
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}
