//! An accepted connection: its handshake and its requests.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::hosts::Hosts;
use crate::web::{Config, Web};
use crate::write_deadline::WriteDeadline;
use crate::{Body, reply};

/// Handles requests. Pages are in memory; a handler that waits for something must limit the wait.
pub trait Handler: Send + Sync + 'static {
    /// Returns the response. Request bodies are ignored.
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send;

    /// Called for each connection that was refused because there were too many connections.
    fn refused(&self) {}

    /// Returns whether a request is for a page that programs read, such as metrics. Browsers get it only under a known
    /// name, programs under any.
    fn is_for_programs(&self, _request: &Request<()>) -> bool {
        false
    }

    /// Called for each request that was refused because of its host or the web config, with the status of the response.
    fn turned_away(&self, _request: &Request<()>, _status: StatusCode) {}
}

/// A stream of plain bytes, over TCP or TLS.
pub(crate) trait Clear: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Clear for T {}

/// One type for all connections, so that the HTTP code is compiled once.
pub(crate) type Stream = Box<dyn Clear>;

/// A connection, and the web config that accepted it.
pub(crate) struct Visit<H> {
    handler: Arc<H>,
    hosts: Arc<Hosts>,
    web: Web,
    config: Arc<Config>,
    client: IpAddr,
}

/// Error: the web config has changed since the connection was accepted. The connection is closed without
/// a response, and the client retries on a new connection.
#[derive(Debug, thiserror::Error)]
#[error("the web config changed")]
pub(crate) struct Outdated;

/// Performs the TLS handshake, if configured. Returns `None` if the handshake fails or takes too long.
pub(crate) async fn enter<H>(
    stream: WriteDeadline<TcpStream>,
    (handler, hosts, web): (Arc<H>, Arc<Hosts>, Web),
    (client, limit): (IpAddr, Duration),
) -> Option<(Visit<H>, Stream)> {
    // An invalid config contains no certificate to present. The reason is in the log.
    let config = web.now().await.ok()?;
    match timeout(limit, shake(stream, &config)).await {
        Ok(Ok(stream)) => Some((Visit { handler, hosts, web, config, client }, stream)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("TLS handshake timed out");
            None
        }
    }
}

async fn shake(stream: WriteDeadline<TcpStream>, config: &Config) -> io::Result<Stream> {
    match &config.tls {
        None => Ok(Box::new(stream)),
        Some(tls) => Ok(Box::new(tls.acceptor.accept(stream).await?)),
    }
}

impl<H: Handler> Visit<H> {
    /// Returns the response to a request.
    pub(crate) async fn answer(&self, request: &Request<()>) -> Result<Response<Body>, Outdated> {
        // The host is checked first, so that pages of other sites cannot cause password checks.
        let refusal = match self.hosts.refusal(request, self.handler.is_for_programs(request)) {
            None => self.config.refusal(request, self.client).await,
            refusal => refusal,
        };
        // The password may be revoked while it is being checked, so the config is read again afterwards.
        match self.web.now().await {
            Err(_) => Ok(self.turn_away(request, broken())),
            Ok(now) if !Arc::ptr_eq(&now, &self.config) => Err(Outdated),
            Ok(config) => {
                let answer = match refusal {
                    Some(refusal) => self.turn_away(request, refusal),
                    None => self.handler.answer(request).await,
                };
                Ok(config.dress(answer))
            }
        }
    }

    fn turn_away(&self, request: &Request<()>, answer: Response<Body>) -> Response<Body> {
        self.handler.turned_away(request, answer.status());
        answer
    }
}

fn broken() -> Response<Body> {
    let mut answer = reply::text(StatusCode::INTERNAL_SERVER_ERROR, "the web config is invalid; see the log");
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
