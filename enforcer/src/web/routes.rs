//! HTTP routes: pages, and a reload if it is enabled.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bailiff_exposition::Format;
use bailiff_exposition::html::POLICY;
use bailiff_exposition::own::Own;
use bailiff_http::Handler;
use bailiff_http::header::{HOST, ORIGIN, RETRY_AFTER, VARY};
use bailiff_http::{Body, HeaderMap, Method, Request, Response, StatusCode, negotiate, reply};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::html;
use super::page::{self, Moment};
use crate::clock::now;
use crate::status::tally::Reloaded;
use crate::status::{NOT_LOADED, Status};

/// Deadline of a reload, which reads one file.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to reload the policy file.
#[derive(Debug)]
pub struct Reload(pub oneshot::Sender<Outcome>);

/// Result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The policy with this SHA-256 is in force.
    Applied(String),
    /// The file has not changed.
    Unchanged,
    /// The file was not loaded, with one line per error; the previous rules stay in force.
    Refused(Vec<String>),
}

impl Outcome {
    /// Returns the outcome without its details.
    pub const fn result(&self) -> Reloaded {
        match self {
            Self::Applied(_) => Reloaded::Applied,
            Self::Unchanged => Reloaded::Unchanged,
            Self::Refused(_) => Reloaded::Refused,
        }
    }
}

/// Data of the responses.
#[derive(Debug)]
pub struct Routes {
    /// Status of the enforcer.
    pub status: watch::Receiver<Arc<Status>>,
    /// Receiver of reload requests; `None` without `--web.enable-lifecycle`.
    pub reloads: Option<mpsc::Sender<Reload>>,
}

impl Handler for Routes {
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let posts = request.method() == Method::POST;
        let path = request.uri().path();
        let known = match path {
            "/-/reload" if posts && is_of_another_site(request) => {
                Some(reply::text(StatusCode::FORBIDDEN, "cross-site request refused"))
            }
            "/-/reload" if posts => None,
            "/-/reload" => Some(reply::only("POST")),
            "/" | "/metrics" | "/-/healthy" | "/-/ready" if !reads => Some(reply::only("GET, HEAD")),
            _ => Some(self.page(path, request)),
        };
        async move {
            match known {
                Some(response) => response,
                None => self.reload().await,
            }
        }
    }

    fn is_for_programs(&self, request: &Request<()>) -> bool {
        matches!(request.uri().path(), "/metrics" | "/-/healthy" | "/-/ready")
    }
}

/// Returns whether a browser sent the request from a page of another site (`Origin`, RFC 6454), possibly with a
/// stored password.
fn is_of_another_site(request: &Request<()>) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else { return false };
    let asked = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let from = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, from)| from);
    from.is_none() || from != asked
}

impl Routes {
    fn page(&self, path: &str, request: &Request<()>) -> Response<Body> {
        match path {
            "/" => {
                let refreshes = request.uri().query() != Some("still");
                reply::html(html::page(&self.newest(), moment(), refreshes), POLICY)
            }
            "/metrics" => self.metrics(request.headers()),
            "/-/healthy" => reply::health(self.healthy(), "healthy"),
            "/-/ready" => reply::health(ready(&self.newest(), now().boot), "ready"),
            _ => reply::text(StatusCode::NOT_FOUND, "no such page; see / for links to all pages"),
        }
    }

    fn newest(&self) -> Arc<Status> {
        self.status.borrow().clone()
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        let open = negotiate::wants_open_metrics(headers);
        let format = if open { Format::OpenMetrics } else { Format::Text };
        let mut text = Vec::new();
        match page::write(&self.newest(), &moment(), format, &mut text) {
            Ok(()) => {
                let response = reply::page(format.content_type(), Body::from_iter([text]));
                reply::with(response, VARY, "Accept")
            }
            Err(error) => reply::text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    fn healthy(&self) -> Result<(), String> {
        match self.status.has_changed() {
            Ok(_) => Ok(()),
            Err(_) => Err("the evaluation loop has stopped".to_owned()),
        }
    }

    async fn reload(&self) -> Response<Body> {
        let Some(reloads) = &self.reloads else {
            return reply::text(
                StatusCode::FORBIDDEN,
                "reloading over HTTP is disabled; enable it with --web.enable-lifecycle, or send SIGHUP",
            );
        };
        let (answer, answered) = oneshot::channel();
        if reloads.try_send(Reload(answer)).is_err() {
            return busy("a reload is already in progress");
        }
        match timeout(PATIENCE, answered).await {
            Ok(Ok(outcome)) => reload_response(&outcome),
            Ok(Err(_)) => busy("the enforcer is shutting down; nothing was reloaded"),
            Err(_) => busy("the reload is still running; see / or the log for its outcome"),
        }
    }
}

fn moment() -> Moment {
    Moment { now: now(), own: Own::read() }
}

fn reload_response(outcome: &Outcome) -> Response<Body> {
    match outcome {
        Outcome::Applied(sha256) => reply::text(StatusCode::OK, &format!("in force: {sha256}")),
        Outcome::Unchanged => reply::text(StatusCode::OK, "unchanged"),
        Outcome::Refused(faults) => {
            reply::text(StatusCode::BAD_REQUEST, &format!("{NOT_LOADED}\n{}", faults.join("\n")))
        }
    }
}

fn busy(why: &str) -> Response<Body> {
    reply::with(reply::text(StatusCode::SERVICE_UNAVAILABLE, why), RETRY_AFTER, "5")
}

fn ready(status: &Status, boot: Duration) -> Result<(), String> {
    if status.policy.sha256.is_none() {
        return Err("no policy is in force yet".to_owned());
    }
    if status.stream.seq.is_none() {
        let why = status.stream.error.as_deref().unwrap_or("no snapshot was received yet");
        return Err(format!("no snapshot has been evaluated: {why}"));
    }
    if status.stream.is_stale(boot) {
        return Err("the last evaluated snapshot is too old to act on".to_owned());
    }
    Ok(())
}
