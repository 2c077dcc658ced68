//! Client of the API server.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bailiff_snapshot::pod_api::{PodAnswer, PodRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::flags::Settings;
use crate::json::{Pod, Status, event, eviction};

/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of an answer in bytes. An object has at most 1.5 MiB in etcd, and JSON has up to six bytes for one.
const LONGEST: u64 = 10 << 20;
/// Maximum length of a text for people, in characters.
const LONGEST_MESSAGE: usize = 512;

/// The API server.
#[derive(Debug)]
pub(crate) struct Api {
    settings: Settings,
}

/// What a service account consists of.
struct Account {
    token: String,
    authorities: Vec<ureq::tls::Certificate<'static>>,
    namespace: String,
}

impl Api {
    pub(crate) const fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Checks that the service account can be read.
    ///
    /// # Errors
    /// If a file is missing or not valid.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.account().map(drop)
    }

    /// Answers a request.
    pub(crate) fn query(&self, request: &PodRequest) -> PodAnswer {
        let verb = match request {
            PodRequest::Get { .. } => "get",
            PodRequest::Event { .. } => "event",
            PodRequest::Evict { dry_run: true, .. } => "evict (dry run)",
            PodRequest::Evict { .. } => "evict",
        };
        let mut answer = self.try_once(request);
        // The token may have been replaced just now.
        if answer.status == Some(401) {
            answer = self.try_once(request);
        }
        let status = answer.status.unwrap_or_default();
        let pod = request.pod();
        tracing::info!(verb, %pod, uid = pod.uid(), status, message = answer.message, "asked the API server");
        answer
    }

    fn try_once(&self, request: &PodRequest) -> PodAnswer {
        let tried = self.account().and_then(|account| {
            let response = self.send(request, &account).map_err(|error| error.to_string())?;
            Ok(self.answer(request, &account, response))
        });
        tried.unwrap_or_else(|message| PodAnswer { message, ..PodAnswer::default() })
    }

    /// Reads the service account. The kubelet replaces its files.
    fn account(&self) -> Result<Account, String> {
        let at = |name: &str| self.settings.service_account.join(name);
        let text = |name| {
            let path = at(name);
            read(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let (token, authorities, namespace) = (text("token")?, text("ca.crt")?, text("namespace")?);
        let certificates = parse_pem(authorities.as_bytes()).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let authorities: Vec<_> = certificates.collect();
        if authorities.is_empty() {
            return Err(format!("{}: no certificate", at("ca.crt").display()));
        }
        let token = token.trim().to_owned();
        let is_plain = |token: &str| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(&token) {
            return Err(format!("{}: not a token", at("token").display()));
        }
        Ok(Account { token, authorities, namespace: namespace.trim().to_owned() })
    }

    fn send(&self, request: &PodRequest, account: &Account) -> Result<Response<Body>, ureq::Error> {
        let agent = agent(account.authorities.clone());
        let Settings { api_server, node, .. } = &self.settings;
        let pod = request.pod();
        let (namespace, bearer) = (pod.namespace(), format!("Bearer {}", account.token));
        let url = format!("{api_server}/api/v1/namespaces/{namespace}/pods/{}", pod.name());
        let post = |url: String, body: Value| {
            let post = agent.post(url).header("Authorization", &bearer);
            post.content_type("application/json").send(body.to_string())
        };
        match request {
            PodRequest::Get { .. } => agent.get(url).header("Authorization", &bearer).call(),
            PodRequest::Evict { dry_run, .. } => {
                let test = if *dry_run { "?dryRun=All" } else { "" };
                post(format!("{url}/eviction{test}"), eviction(pod))
            }
            PodRequest::Event { reason, note, .. } => {
                let url = format!("{api_server}/apis/events.k8s.io/v1/namespaces/{namespace}/events");
                post(url, event(pod, (*reason, note), node, SystemTime::now()))
            }
        }
    }

    fn answer(&self, request: &PodRequest, account: &Account, mut response: Response<Body>) -> PodAnswer {
        let status = response.status().as_u16();
        let retry_after = response.headers().get("Retry-After").and_then(|it| it.to_str().ok()?.parse().ok());
        let body = response.body_mut().with_config().limit(LONGEST).read_to_vec();
        let body = match body {
            Ok(body) => body,
            Err(error) => return unusable(request, status, &error.to_string()),
        };
        if let (200, PodRequest::Get { pod, annotation }) = (status, request)
            && let Some(found) = parse::<Pod>(&body)
        {
            let here = (self.settings.node.as_str(), account.namespace.as_str());
            let pod = found.facts((pod, annotation.as_deref()), here);
            return PodAnswer { status: Some(status), pod, ..PodAnswer::default() };
        }
        // Errors and evictions are answered with a `Status`. Anything else did not come from an API server.
        let Some(text) = parse::<Status>(&body) else {
            let why = format!("the answer, with status {status}, is not that of an API server");
            return unusable(request, status, &why);
        };
        PodAnswer {
            status: Some(status),
            by_budget: status == 429 && text.is_by_budget(),
            retry_after: text.retry_after().or(retry_after),
            message: short(&text.message),
            pod: None,
        }
    }
}

/// Returns an answer that cannot be understood. If it was to be a pod, only this pod may be the cause.
fn unusable(request: &PodRequest, status: u16, why: &str) -> PodAnswer {
    let status = Some(status).filter(|status| *status == 200 && matches!(request, PodRequest::Get { .. }));
    PodAnswer { status, message: short(why), ..PodAnswer::default() }
}

/// Reads a small text file.
fn read(path: &Path) -> io::Result<String> {
    let text = fs::read(path)?;
    if text.len() as u64 > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

fn short(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

/// Returns a client that trusts these authorities, uses no proxy and follows no redirect.
fn agent(authorities: Vec<ureq::tls::Certificate<'static>>) -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .https_only(true)
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .tls_config(tls)
        .user_agent("bailiff-kubernetes");
    config.build().into()
}
