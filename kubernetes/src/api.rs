//! Client of the API server.

use std::fs;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bailiff_snapshot::pod_api::{PodAnswer, PodRequest};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::flags::Settings;
use crate::json::{Item, Object, Pod, Status, each_item, event, eviction, path_of};
use crate::owner::{self, Reads};

/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Query parameter with the same time limit for the API server, which otherwise may carry out a change up to a minute later.
const ON_SERVER: &str = "timeout=20s";
/// Maximum size of an answer in bytes. An object has at most 1.5 MiB in etcd, and JSON has up to six bytes for one.
const LONGEST: u64 = 10 << 20;
/// The same of a list, of which one object at a time is kept. Annotations of a pod have at most 256 KiB.
const LONGEST_LIST: u64 = 256 << 20;
/// Field selector of pods that have not finished, encoded for a URL.
const UNFINISHED: &str = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
/// Media type of a list that contains only the metadata of its objects.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
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

/// A connection with the service account that was just read.
struct Session<'a> {
    settings: &'a Settings,
    namespace: String,
    bearer: String,
    agent: Agent,
}

/// An answer of the API server.
struct Reply {
    status: u16,
    retry_after: Option<u64>,
    /// What it says, or why it cannot be read: it may be too long.
    text: Result<Status, String>,
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
        let mut answer = self.try_once(request);
        // The token may have been replaced just now.
        if answer.status == Some(401) {
            answer = self.try_once(request);
        }
        let status = answer.status.unwrap_or_default();
        let (pod, verb) = (request.pod(), request.verb());
        tracing::info!(verb, %pod, uid = pod.uid(), status, message = answer.message, "asked the API server");
        answer
    }

    fn try_once(&self, request: &PodRequest) -> PodAnswer {
        let account = match self.account() {
            Ok(account) => account,
            Err(message) => return PodAnswer { message, ..PodAnswer::default() },
        };
        let left = request.until().map_or(PATIENCE, |until| until.saturating_sub(since_boot())).min(PATIENCE);
        if left.is_zero() {
            return PodAnswer { message: "not sent: it took too long".to_owned(), ..PodAnswer::default() };
        }
        let session = Session {
            settings: &self.settings,
            namespace: account.namespace,
            bearer: format!("Bearer {}", account.token),
            agent: agent(account.authorities, left),
        };
        session.answer(request).unwrap_or_else(|answer| *answer)
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
}

/// An answer that ends a request early.
type Early = Box<PodAnswer>;

impl Session<'_> {
    fn answer(&self, request: &PodRequest) -> Result<PodAnswer, Early> {
        let pod = request.pod();
        let path = path_of(pod);
        let query = |dry_run: bool| format!("?{}{ON_SERVER}", if dry_run { "dryRun=All&" } else { "" });
        let reply = match request {
            PodRequest::Get { annotation, .. } => {
                let found: Pod = self.object(&path)?;
                let here = (self.settings.node.as_str(), self.namespace.as_str());
                let facts = found.facts((pod, annotation.as_deref()), here);
                let facts = facts.ok_or_else(|| unusable(Some(200), "the answer is another pod"))?;
                return Ok(PodAnswer { status: Some(200), pod: Some(facts), ..PodAnswer::default() });
            }
            PodRequest::Owner { .. } => {
                let owner = owner::find(pod, self)?;
                return Ok(PodAnswer { status: Some(200), owner, ..PodAnswer::default() });
            }
            PodRequest::Evict { dry_run, .. } => {
                self.post(&format!("{path}/eviction{}", query(*dry_run)), &eviction(pod))?
            }
            PodRequest::Stop { owner, dry_run, .. } => {
                let (path, body) = owner::stop(owner, SystemTime::now()).ok_or_else(|| {
                    unusable(Some(422), &format!("{} cannot be stopped", owner.kind.escape_default()))
                })?;
                self.patch(&format!("{path}{}", query(*dry_run)), &body)?
            }
            PodRequest::Event { reason, note, .. } => {
                let path = format!("apis/events.k8s.io/v1/namespaces/{}/events", pod.namespace());
                self.post(&path, &event(pod, (*reason, note), &self.settings.node, SystemTime::now()))?
            }
        };
        Ok(outcome(&reply))
    }

    /// Reads an object. If the answer cannot be used, its author may be the cause, so this is no failure of the API server.
    fn object<T: DeserializeOwned>(&self, path: &str) -> Result<T, Early> {
        parse(&mut self.get(path, "application/json")?)
            .map_err(|why| unusable(Some(200), &format!("the answer is not such an object: {why}")))
    }

    /// Returns the answer to a request that reads, if it has status 200.
    fn get(&self, path: &str, accept: &str) -> Result<Response<Body>, Early> {
        let get = |url: String| {
            self.agent.get(url).header("Authorization", &self.bearer).header("Accept", accept).call()
        };
        let response = self.send(get, path)?;
        if response.status() == 200 {
            return Ok(response);
        }
        let reply = Reply::from(response);
        let answer = outcome(&reply);
        // For a resource of a group that it does not know, the API server answers with text. Whoever writes a pod can name one.
        let is_unknown = reply.status == 404 && path.starts_with("apis/");
        let status = answer.status.or(Some(reply.status).filter(|_| is_unknown));
        Err(Box::new(PodAnswer { status, ..answer }))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Reply, Early> {
        let post = |url: String| {
            let post = self.agent.post(url).header("Authorization", &self.bearer);
            post.content_type("application/json").send(body.to_string())
        };
        self.send(post, path).map(Reply::from)
    }

    fn patch(&self, path: &str, body: &Value) -> Result<Reply, Early> {
        let patch = |url: String| {
            let patch = self.agent.patch(url).header("Authorization", &self.bearer);
            patch.content_type("application/merge-patch+json").send(body.to_string())
        };
        self.send(patch, path).map(Reply::from)
    }

    fn send(
        &self,
        call: impl Fn(String) -> Result<Response<Body>, ureq::Error>,
        path: &str,
    ) -> Result<Response<Body>, Early> {
        let response = call(format!("{}/{path}", self.settings.api_server));
        response.map_err(|error| unusable(None, &error.to_string()))
    }
}

impl From<Response<Body>> for Reply {
    fn from(mut response: Response<Body>) -> Self {
        let status = response.status().as_u16();
        let retry_after = response.headers().get("Retry-After").and_then(|it| it.to_str().ok()?.parse().ok());
        Self { status, retry_after, text: parse(&mut response) }
    }
}

impl Reads for Session<'_> {
    fn object(&self, path: &str) -> Result<Object, Early> {
        Session::object(self, path)
    }

    fn each_pod(&self, namespace: &str, see: &mut dyn FnMut(Item)) -> Result<(), Early> {
        let path = format!("api/v1/namespaces/{namespace}/pods?fieldSelector={UNFINISHED}");
        let mut response = self.get(&path, METADATA)?;
        let body = BufReader::new(response.body_mut().with_config().limit(LONGEST_LIST).reader());
        if each_item(body, see) {
            return Ok(());
        }
        Err(unusable(Some(200), "the list of its namespace's pods cannot be read"))
    }
}

/// Returns what the answer to a change says, or an error. Both are answered with a `Status` or an object. Anything else did not
/// come from an API server.
fn outcome(reply: &Reply) -> PodAnswer {
    let status = reply.status;
    let text = match &reply.text {
        Ok(text) => text,
        Err(why) => {
            let why = format!("the answer, with status {status}, is not that of an API server: {why}");
            return *unusable(None, &why);
        }
    };
    PodAnswer {
        status: Some(status),
        by_budget: status == 429 && text.is_by_budget(),
        retry_after: text.retry_after().or(reply.retry_after),
        message: short(&text.message),
        ..PodAnswer::default()
    }
}

/// Returns the answer to a request that has no usable one.
fn unusable(status: Option<u16>, why: &str) -> Early {
    Box::new(PodAnswer { status, message: short(why), ..PodAnswer::default() })
}

/// Reads a small text file.
fn read(path: &Path) -> io::Result<String> {
    let text = fs::read(path)?;
    if text.len() as u64 > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads an answer, of which it keeps only what is needed.
fn parse<T: DeserializeOwned>(response: &mut Response<Body>) -> Result<T, String> {
    let body = response.body_mut().with_config().limit(LONGEST).reader();
    serde_json::from_reader(BufReader::new(body)).map_err(|error| error.to_string())
}

fn short(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::MAX)
}

/// Returns a client that trusts these authorities, uses no proxy and follows no redirect. It has this time until it has connected.
fn agent(authorities: Vec<ureq::tls::Certificate<'static>>, left: Duration) -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .timeout_resolve(Some(left / 2))
        .timeout_connect(Some(left / 2))
        .https_only(true)
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .tls_config(tls)
        .user_agent("bailiff-kubernetes");
    config.build().into()
}
