//! Notifications as an HTTP POST of JSON. The address is a secret, so it never appears in errors or logs.

use std::time::Duration;

use bailiff_lifecycle::file;
use bailiff_proc::readable;
use ureq::Agent;

use crate::clock::Deadline;
use bailiff_engine::policy::Address;

/// Maximum size of a file with an address, in bytes.
const MOST: u64 = 4096;
/// Number of retries after a failure that may be temporary.
const RETRIES: u32 = 2;
/// Wait before each retry.
const PAUSE: Duration = Duration::from_millis(500);

/// Error of a POST.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookError {
    #[error("cannot read the file with the URL")]
    NoFile,
    #[error("the URL does not begin with http:// or https://")]
    NoAddress,
    #[error("the server did not respond in time")]
    Late,
    #[error("the host name cannot be resolved")]
    NoHost,
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("cannot connect")]
    NoConnection,
    #[error("the server responded with {0}")]
    Status(u16),
    #[error("cannot send the request")]
    Other,
}

impl WebhookError {
    const fn may_pass(&self) -> bool {
        matches!(self, Self::Late | Self::NoConnection | Self::Status(500..=599))
    }
}

/// Posts `body`. Retries temporary failures unless `stopped` returns true.
pub(super) fn post(
    address: &Address,
    body: &[u8],
    deadline: Duration,
    stopped: impl Fn() -> bool,
) -> Result<(), WebhookError> {
    let url = url(address)?;
    let agent = agent(deadline);
    let mut tries = 0;
    loop {
        match once(&agent, &url, body) {
            Err(failed) if failed.may_pass() && tries < RETRIES && !stopped() => tries += 1,
            other => return other,
        }
        drop(readable(&[], Some(Deadline::after(PAUSE))));
    }
}

fn agent(deadline: Duration) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(deadline))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .tls_config(bailiff_prometheus::tls())
        .user_agent("bailiff-enforcer");
    config.build().into()
}

fn once(agent: &Agent, url: &str, body: &[u8]) -> Result<(), WebhookError> {
    let answer = agent.post(url).content_type("application/json").send(body).map_err(|error| why(&error))?;
    match answer.status().as_u16() {
        200..=299 => Ok(()),
        status => Err(WebhookError::Status(status)),
    }
}

fn why(error: &ureq::Error) -> WebhookError {
    match error {
        ureq::Error::Timeout(_) => WebhookError::Late,
        ureq::Error::HostNotFound => WebhookError::NoHost,
        ureq::Error::ConnectionFailed | ureq::Error::Io(_) => WebhookError::NoConnection,
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => WebhookError::NoAddress,
        ureq::Error::Tls(why) => WebhookError::Tls((*why).to_owned()),
        ureq::Error::Rustls(error) => WebhookError::Tls(error.to_string()),
        _ => WebhookError::Other,
    }
}

fn url(address: &Address) -> Result<String, WebhookError> {
    let url = match address {
        Address::Url(url) => url.clone(),
        Address::File(path) => file::first_line(path, MOST).ok().flatten().ok_or(WebhookError::NoFile)?,
    };
    if url.starts_with("http://") || url.starts_with("https://") {
        Ok(url)
    } else {
        Err(WebhookError::NoAddress)
    }
}
