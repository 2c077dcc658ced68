//! Which answer a request gets.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bailiff_exposition::own::Own;
use bailiff_lifecycle::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use bailiff_lifecycle::negotiate::{self, Encoding, Media};
use bailiff_lifecycle::server::Handler;
use bailiff_lifecycle::{Body, HeaderMap, Method, Request, Response, StatusCode};

use crate::beat::Latest;
use crate::clock::now;
use crate::health::Vitals;
use crate::landing;
use crate::page::{self, Format, Moment};
use crate::published::{Form, Published};
use crate::record::Failures;
use crate::requests::{Page, Requests};
use crate::stream::Clients;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// The page needs no script, no picture and no other page.
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");

/// What answers are made of.
#[derive(Debug)]
pub struct Routes {
    /// The newest snapshot.
    pub latest: Latest,
    /// The path of the page of metrics.
    pub telemetry: String,
    /// The beat's period, and how long a look may wait.
    pub patience: (Duration, Duration),
    /// When the exporter began.
    pub started: Instant,
    /// Clients of the stream; `None` without one.
    pub clients: Option<Clients>,
    /// Failures of the record; `None` without one.
    pub failures: Option<Failures>,
    /// Answers so far.
    pub requests: Requests,
}

impl Handler for Routes {
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send {
        ready(self.respond(request))
    }

    fn refused(&self) {
        self.requests.refuse();
    }
}

impl Routes {
    fn respond(&self, request: &Request<()>) -> Response<Body> {
        let page = Page::of(request.uri().path(), &self.telemetry);
        let mut response = match (page, request.method()) {
            (Page::Other, _) => text(StatusCode::NOT_FOUND, "no such page; / has links to those there are"),
            (_, &Method::GET | &Method::HEAD) => self.page(page, request.headers()),
            _ => with(text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"), ALLOW, "GET, HEAD"),
        };
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        self.requests.count(page, response.status());
        response
    }

    fn page(&self, page: Page, headers: &HeaderMap) -> Response<Body> {
        match page {
            Page::Telemetry => self.telemetry(headers),
            Page::Landing => self.landing(),
            Page::Healthy => told(self.vitals().healthy(), "healthy"),
            Page::Ready => told(self.vitals().ready(), "ready"),
            Page::Other => text(StatusCode::NOT_FOUND, "no such page"),
        }
    }

    fn telemetry(&self, headers: &HeaderMap) -> Response<Body> {
        let published = self.newest();
        let form = form(headers, published.is_some());
        let moment = self.moment(published.as_deref());
        let body = match &published {
            Some(published) => published.page(form, &moment),
            None => first_page(form.format, &moment),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        let kind = if form.format == Format::Text { TEXT } else { OPEN_METRICS };
        let mut response = with(respond(StatusCode::OK, kind, body), VARY, "Accept, Accept-Encoding");
        if form.encoding == Encoding::Gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    fn landing(&self) -> Response<Body> {
        let published = self.newest();
        let age = published.as_ref().map(|published| published.age(now()));
        let view = landing::View { published: published.as_deref(), age, telemetry: &self.telemetry };
        let mut response = respond(StatusCode::OK, HTML, view.html().into());
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
        with(response, CACHE_CONTROL, "no-store")
    }

    fn newest(&self) -> Option<Arc<Published>> {
        self.latest.borrow().clone()
    }

    fn moment(&self, published: Option<&Published>) -> Moment {
        Moment {
            age: published.map(|published| published.age(now())),
            requests: Some(self.requests.counts(&self.telemetry)),
            refused: self.requests.refused(),
            stream_clients: self.clients.as_ref().map(Clients::count),
            record_failures: self.failures.as_ref().map(Failures::count),
            own: Own::read(),
        }
    }

    fn vitals(&self) -> Vitals {
        let newest = self.newest();
        let age = newest.as_ref().map(|published| published.age(now()));
        let (interval, deadline) = self.patience;
        let since_start = || now().saturating_duration_since(self.started);
        Vitals { age: age.unwrap_or_else(since_start), seen: newest.is_some(), interval, deadline }
    }
}

/// `OpenMetrics` for those who name it and like it no less; the text form for everybody else, whatever they
/// accept: a page that is not quite liked is better than none.
fn form(headers: &HeaderMap, packable: bool) -> Form {
    let open = Media { name: "application/openmetrics-text", version: "1.0.0" };
    let plain = Media { name: "text/plain", version: "0.0.4" };
    let (open, plain) = (negotiate::wish(headers, open), negotiate::wish(headers, plain));
    let chosen = open.named && open.quality > 0 && open.quality >= plain.quality;
    Form {
        format: if chosen { Format::OpenMetrics } else { Format::Text },
        encoding: if packable { negotiate::encoding(headers) } else { Encoding::Identity },
    }
}

fn first_page(format: Format, moment: &Moment) -> std::io::Result<Body> {
    let mut out = Vec::new();
    page::write(None, format, &mut out)?;
    page::write_tail(moment, format, &mut out)?;
    Ok(Body::from_iter([out]))
}

fn told(verdict: Result<(), String>, good: &str) -> Response<Body> {
    match verdict {
        Ok(()) => text(StatusCode::OK, good),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

fn text(status: StatusCode, line: &str) -> Response<Body> {
    respond(status, PLAIN, format!("{line}\n").into())
}

fn respond(status: StatusCode, kind: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn with(mut response: Response<Body>, name: HeaderName, value: &'static str) -> Response<Body> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
