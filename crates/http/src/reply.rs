//! The kinds of responses: a line of text, a page for programs, and a page for people.

use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::Body;

const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// Returns a line of text.
pub fn text(status: StatusCode, line: &str) -> Response<Body> {
    let mut response = page(PLAIN, format!("{line}\n").into());
    *response.status_mut() = status;
    response
}

/// Returns a page with this media type.
pub fn page(kind: &'static str, body: Body) -> Response<Body> {
    let response = with(Response::new(body), CONTENT_TYPE, kind);
    with(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// Returns an HTML page that must not be cached, with this content security policy.
pub fn html(page_text: String, policy: &'static str) -> Response<Body> {
    let response = with(page(HTML, page_text.into()), CONTENT_SECURITY_POLICY, policy);
    let response = with(response, REFERRER_POLICY, "no-referrer");
    with(response, CACHE_CONTROL, "no-store")
}

/// Returns the result of a health check: 200 with this text, or 503 with the reason.
pub fn health(verdict: Result<(), String>, good: &str) -> Response<Body> {
    match verdict {
        Ok(()) => text(StatusCode::OK, good),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

/// Returns the response to a request whose method is not one of these.
pub fn only(methods: &'static str) -> Response<Body> {
    with(
        text(StatusCode::METHOD_NOT_ALLOWED, &format!("only {}", methods.replace(", ", " and "))),
        ALLOW,
        methods,
    )
}

/// Adds a header.
pub fn with(mut response: Response<Body>, name: HeaderName, value: &'static str) -> Response<Body> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
