//! The effective web config: how connections are accepted, and which requests are served.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use tokio::time::Instant;

use super::fault::ConfigError;
use super::files::Files;
use super::rate::Bucket;
use super::tls::Tls;
use super::users::Users;
use super::written::File;
use super::{headers, tls};
use crate::{Body, reply};

/// The effective web config. The default is plain HTTP without authentication.
#[derive(Default)]
pub(crate) struct Config {
    pub(crate) tls: Option<Tls>,
    headers: HeaderMap,
    users: Option<Users>,
    rate: Option<Bucket>,
}

impl Config {
    pub(super) fn understood(text: &[u8], files: &mut Files) -> Result<Self, ConfigError> {
        let written: Option<File> = serde_saphyr::from_slice(text)?;
        let written = written.unwrap_or_default();
        let http = written.http_server_config.unwrap_or_default();
        if let Some(http2) = http.http2.filter(|http2| http2.value) {
            let why = "HTTP/2 is not supported; set it to false, or remove the key";
            return Err(ConfigError::at(&http2, "http_server_config.http2", why));
        }
        Ok(Self {
            tls: written.tls_server_config.map(|section| tls::understood(&section, files)).transpose()?,
            headers: headers::understood(&http.headers)?,
            users: written.basic_auth_users.as_ref().map(Users::new).transpose()?,
            rate: written.rate_limit.as_ref().map(Bucket::new).transpose()?.flatten(),
        })
    }

    /// Returns a requirement on clients that `before` has and this config does not have.
    pub(super) fn relaxes(&self, before: &Self) -> Option<&'static str> {
        let required_before = before.tls.as_ref().map(|tls| tls.clients).unwrap_or_default();
        let required = self.tls.as_ref().map(|tls| tls.clients).unwrap_or_default();
        if before.tls.is_some() && self.tls.is_none() {
            Some("tls_server_config was removed")
        } else if required < required_before {
            Some("client certificates are checked less strictly than before")
        } else if before.users.is_some() && self.users.is_none() {
            Some("basic_auth_users was removed")
        } else {
            None
        }
    }

    /// Copies the remembered passwords from another config for users whose hashes are unchanged.
    pub(super) fn remember(&mut self, before: &Self) {
        if let (Some(users), Some(before)) = (&mut self.users, &before.users) {
            users.remember(before);
        }
    }

    /// Returns the response with which a request is refused, or `None` if the request is accepted.
    pub(crate) async fn refusal(&self, request: &Request<()>, client: IpAddr) -> Option<Response<Body>> {
        if self.rate.as_ref().is_some_and(|rate| !rate.take(Instant::now())) {
            return Some(reply::text(StatusCode::TOO_MANY_REQUESTS, "too many requests"));
        }
        match &self.users {
            Some(users) if !users.admit(request.headers(), client).await => Some(unauthorized()),
            _ => None,
        }
    }

    /// Adds the configured headers to a response, and replaces headers with the same name.
    pub(crate) fn dress(&self, mut answer: Response<Body>) -> Response<Body> {
        for (name, value) in &self.headers {
            answer.headers_mut().insert(name, value.clone());
        }
        answer
    }
}

fn unauthorized() -> Response<Body> {
    let mut answer = reply::text(StatusCode::UNAUTHORIZED, "unauthorized");
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"GPU Bailiff\""));
    answer
}
