//! HTTP routes: the response to each request.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use bailiff_exposition::html;
use bailiff_exposition::own::Own;
use bailiff_http::Handler;
use bailiff_http::header::{CONTENT_ENCODING, VARY};
use bailiff_http::negotiate::{self, Encoding};
use bailiff_http::{Body, HeaderMap, Method, Request, Response, StatusCode, reply};
use bailiff_proc::clock::{running, since_boot};

use crate::health::Health;
use crate::page::{self, Format, Moment};
use crate::published::{Form, Published};
use crate::record::Failures;
use crate::requests::{Page, Requests};
use crate::schedule::Latest;
use crate::status_page::{Links, View};
use crate::stream::Clients;

/// State that responses are made from.
#[derive(Debug)]
pub struct Routes {
    /// Receiver of the newest snapshot.
    pub latest: Latest,
    /// Path of the metrics page.
    pub telemetry: String,
    /// URL of the enforcer's page.
    pub enforcer: Option<String>,
    /// Name of the node.
    pub node: String,
    /// Sampling interval, and maximum time that a sample waits for the driver.
    pub patience: (Duration, Duration),
    /// Start time of the exporter, as [`running`] time.
    pub started: Duration,
    /// Number of stream clients; `None` without a stream.
    pub clients: Option<Clients>,
    /// Number of record failures; `None` without a record.
    pub failures: Option<Failures>,
    /// Response counts.
    pub requests: Requests,
}

impl Handler for Routes {
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send {
        ready(self.respond(request))
    }

    fn is_for_programs(&self, request: &Request<()>) -> bool {
        let page = Page::of(request.uri().path(), &self.telemetry);
        matches!(page, Page::Telemetry | Page::Healthy | Page::Ready)
    }

    fn refused(&self) {
        self.requests.refuse();
    }

    fn turned_away(&self, request: &Request<()>, status: StatusCode) {
        self.requests.count(Page::of(request.uri().path(), &self.telemetry), status);
    }
}

impl Routes {
    fn respond(&self, request: &Request<()>) -> Response<Body> {
        let page = Page::of(request.uri().path(), &self.telemetry);
        let response = match (page, request.method()) {
            (Page::Other, _) => {
                reply::text(StatusCode::NOT_FOUND, "no such page; see / for links to all pages")
            }
            (_, &Method::GET | &Method::HEAD) => self.page(page, request),
            _ => reply::only("GET, HEAD"),
        };
        self.requests.count(page, response.status());
        response
    }

    fn page(&self, page: Page, request: &Request<()>) -> Response<Body> {
        match page {
            Page::Telemetry => self.telemetry(request.headers()),
            Page::Landing => self.status_page(request.uri().query() != Some("still")),
            Page::Healthy => reply::health(self.health().healthy(), "healthy"),
            Page::Ready => reply::health(self.health().ready(), "ready"),
            Page::Other => reply::text(StatusCode::NOT_FOUND, "no such page"),
        }
    }

    fn telemetry(&self, headers: &HeaderMap) -> Response<Body> {
        let newest = self.newest();
        let health = self.health();
        let current = newest.as_deref().filter(|_| health.current());
        let form = form(headers, current.is_some());
        let moment = self.moment(newest.as_deref());
        let body = match current {
            Some(published) => published.page(form, &moment),
            None => page_without_samples(newest.as_deref(), form.format, &moment),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return reply::text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        let response = reply::page(form.format.content_type(), body);
        let response = reply::with(response, VARY, "Accept, Accept-Encoding");
        match form.encoding {
            Encoding::Gzip => reply::with(response, CONTENT_ENCODING, "gzip"),
            Encoding::Identity => response,
        }
    }

    fn status_page(&self, refreshes: bool) -> Response<Body> {
        let published = self.newest();
        let links = Links { telemetry: &self.telemetry, enforcer: self.enforcer.as_deref() };
        let health = self.health();
        let snapshot = published.as_deref().map(|published| &published.snapshot);
        let view = View { snapshot, health, links, node: &self.node, refreshes };
        reply::html(view.html(), html::POLICY)
    }

    fn newest(&self) -> Option<Arc<Published>> {
        self.latest.borrow().clone()
    }

    fn moment(&self, published: Option<&Published>) -> Moment {
        Moment {
            age: published.map(|published| published.age(since_boot())),
            requests: Some(self.requests.counts(&self.telemetry)),
            refused: self.requests.refused(),
            stream_clients: self.clients.as_ref().map(Clients::count),
            record_failures: self.failures.as_ref().map(Failures::count),
            own: Own::read(),
        }
    }

    pub(crate) fn health(&self) -> Health {
        let newest = self.newest();
        let age = newest.as_ref().map(|published| published.age(since_boot()));
        let (interval, deadline) = self.patience;
        let since_start = || running().saturating_sub(self.started);
        Health { age: age.unwrap_or_else(since_start), seen: newest.is_some(), interval, deadline }
    }
}

fn form(headers: &HeaderMap, packable: bool) -> Form {
    Form {
        format: if negotiate::wants_open_metrics(headers) { Format::OpenMetrics } else { Format::Text },
        encoding: if packable { negotiate::encoding(headers) } else { Encoding::Identity },
    }
}

/// Returns the metrics page without samples, used before the first snapshot and while the newest is outdated.
fn page_without_samples(
    outdated: Option<&Published>,
    format: Format,
    moment: &Moment,
) -> std::io::Result<Body> {
    let mut out = Vec::new();
    page::write_outdated(outdated.map(|published| &published.snapshot), format, &mut out)?;
    page::write_tail(moment, format, &mut out)?;
    Ok(Body::from_iter([out]))
}
