//! An API server of Kubernetes over TLS that knows pods, evictions and owners. Its answers have the form of those of real API servers
//! (1.20 and 1.36).

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::{ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::tls;

/// The token that the server accepts.
pub const TOKEN: &str = "test-token";

/// Longest grace period in the answers: RFC 3339 ends with the year 9999.
const MOST_SECONDS: u64 = 100_000_000_000;

/// A request that the server received.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// Method and target, such as `POST /api/v1/namespaces/a/pods/b/eviction?dryRun=All`.
    pub what: String,
    /// Whether the API server is told how long the request may take. `what` is without that.
    pub is_limited: bool,
    /// Body.
    pub body: Value,
}

/// What the server does with the next eviction or change of an object, other than to carry it out.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers with this status, header lines and body.
    With(u16, &'static str, Value),
    /// Carries it out, and closes the connection without an answer.
    Lost,
    /// Carries it out, and answers after this time.
    Late(Duration),
}

#[derive(Default)]
struct State {
    /// Pods and other objects by the path of their URL.
    objects: BTreeMap<String, Value>,
    replies: VecDeque<Reply>,
    requests: Vec<ApiRequest>,
    token: String,
    refuses_events: bool,
}

/// The server, with the service account of a client. The state is that of the made-up server.
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    account: TempDir,
    address: String,
}

fn path((namespace, name): (&str, &str)) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// Returns a `Status` of a failure.
pub fn failure(code: u16, reason: &str, message: &str, details: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code,
    })
}

impl ApiServer {
    /// Starts a server without pods.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State { token: TOKEN.to_owned(), ..State::default() }));
        let shared = Arc::clone(&state);
        let answers = move |request: &ApiRequest, token: &str| answer(request, token, &shared);
        Self { state, ..Self::answering(answers) }
    }

    /// Starts a server with these answers.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn answering(
        answers: impl Fn(&ApiRequest, &str) -> Option<ApiAnswer> + Send + Sync + 'static,
    ) -> Self {
        let (authority, account) = (Authority::new("cluster"), tempfile::tempdir().expect("a directory"));
        for (name, text) in [("token", TOKEN), ("ca.crt", &authority.pem()), ("namespace", "bailiff")] {
            fs::write(account.path().join(name), text).expect("a file");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let config = tls::server(&authority.signs(&["127.0.0.1"]));
        let answers = Arc::new(answers);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                let answers = Arc::clone(&answers);
                // A client that gives up is its own test's concern.
                std::thread::spawn(move || serve(StreamOwned::new(connection, stream), &*answers));
            }
        });
        Self { state: Arc::default(), account, address }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the directory of the client's service account.
    pub fn account(&self) -> PathBuf {
        self.account.path().to_owned()
    }

    /// Adds a running pod of node `node-1`; `change` changes it.
    pub fn add_pod(&self, (namespace, name, uid): (&str, &str, &str), change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 1, "restartPolicy": "Always"},
            "status": {"phase": "Running"},
        });
        change(&mut pod);
        self.state().objects.insert(path((namespace, name)), pod);
    }

    /// Adds an object, or replaces it. The version is that of the object.
    pub fn add(&self, path: &str, object: Value) {
        self.state().objects.insert(path.to_owned(), object);
    }

    /// Returns an object.
    pub fn object(&self, path: &str) -> Value {
        self.state().objects.get(path).cloned().unwrap_or_default()
    }

    /// Removes a pod.
    pub fn remove_pod(&self, pod: (&str, &str)) {
        self.state().objects.remove(&path(pod));
    }

    /// Sets what the server does with the next changes of objects.
    pub fn reply(&self, replies: &[Reply]) {
        self.state().replies = replies.iter().cloned().collect();
    }

    /// Refuses Events from now on.
    pub fn refuse_events(&self) {
        self.state().refuses_events = true;
    }

    /// Sets the token that the server accepts from now on.
    pub fn accept(&self, token: &str) {
        token.clone_into(&mut self.state().token);
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.state().requests.clone()
    }

    /// Returns the Events so far.
    pub fn events(&self) -> Vec<Value> {
        let all = self.requests().into_iter();
        all.filter(|request| request.what.ends_with("/events")).map(|request| request.body).collect()
    }

    /// Returns the changes of objects so far that were no dry runs.
    pub fn patches(&self) -> Vec<ApiRequest> {
        let all = self.requests().into_iter();
        all.filter(|request| request.what.starts_with("PATCH ") && !request.what.contains("dryRun")).collect()
    }

    /// Returns the evictions so far that were no dry runs.
    pub fn evictions(&self) -> Vec<ApiRequest> {
        let all = self.requests().into_iter();
        all.filter(|request| request.what.ends_with("/eviction") && !request.what.contains("dryRun"))
            .collect()
    }
}

/// Answers one request.
fn serve(
    mut stream: StreamOwned<ServerConnection, TcpStream>,
    answers: &impl Fn(&ApiRequest, &str) -> Option<ApiAnswer>,
) -> io::Result<()> {
    stream.sock.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(&mut stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let header = |name: &str| {
        let all = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
        all.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let what = lines.first().and_then(|line| line.strip_suffix(" HTTP/1.1")).unwrap_or_default().to_owned();
    let unlimited = what.replace("?timeout=20s", "").replace("&timeout=20s", "");
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let request = ApiRequest { is_limited: unlimited != what, what: unlimited, body };
    let authorization = header("authorization").unwrap_or_default();
    let token = authorization.strip_prefix("Bearer ").unwrap_or_default();
    let Some((status, headers, body)) = answers(&request, token) else { return Ok(()) };
    let body = if body.is_string() { body.as_str().unwrap_or_default().to_owned() } else { body.to_string() };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}"
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// Status, header lines and body of an answer.
pub type ApiAnswer = (u16, &'static str, Value);

/// Returns an answer of the made-up API server; `None` for no answer.
fn answer(request: &ApiRequest, token: &str, state: &Mutex<State>) -> Option<ApiAnswer> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.requests.push(request.clone());
    if token != state.token {
        return Some((401, "", failure(401, "Unauthorized", "Unauthorized", &Value::Null)));
    }
    let (method, target) = request.what.split_once(' ')?;
    if method == "POST" && target.starts_with("/apis/events.k8s.io/v1/namespaces/") {
        let refused = || failure(403, "Forbidden", "no role for Events", &Value::Null);
        return Some(if state.refuses_events {
            (403, "", refused())
        } else {
            (201, "", request.body.clone())
        });
    }
    let (target, query) = target.split_once('?').unwrap_or((target, ""));
    let (evicts, patches) = (method == "POST" && target.ends_with("/eviction"), method == "PATCH");
    if (evicts || patches) && !request.is_limited {
        return Some((400, "", failure(400, "BadRequest", "a change without a time limit", &Value::Null)));
    }
    let reply = if evicts || patches { state.replies.pop_front() } else { None };
    if let Some(Reply::With(status, headers, body)) = reply {
        return Some((status, headers, body));
    }
    let answer = object(&mut state.objects, (method, target, query), &request.body);
    drop(state);
    match reply {
        Some(Reply::Lost) => return None,
        Some(Reply::Late(time)) => std::thread::sleep(time),
        _ => {}
    }
    Some(answer)
}

/// Returns an object, or changes it.
fn object(
    objects: &mut BTreeMap<String, Value>,
    (method, target, query): (&str, &str, &str),
    body: &Value,
) -> ApiAnswer {
    let (evicts, patches) = (target.ends_with("/eviction"), method == "PATCH");
    let path = target.trim_end_matches("/eviction").trim_end_matches("/scale");
    if method == "GET" && path.ends_with("/pods") {
        return (200, "", list((path, query), objects));
    }
    // Nothing is known of a resource without a definition.
    let is_known = |group: &str| !path.starts_with(group) || objects.keys().any(|key| key.starts_with(group));
    if !is_known("/apis/kubeflow.org/") {
        return (404, "", json!("404 page not found\n"));
    }
    let Some(pod) = objects.get_mut(path) else {
        let details = json!({"kind": "pods"});
        return (404, "", failure(404, "NotFound", "not found", &details));
    };
    if patches {
        return patch(pod, body, query.is_empty());
    }
    if !evicts {
        return (200, "", pod.clone());
    }
    if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"] {
        let message = "Operation cannot be fulfilled on pods: Precondition failed: UID in precondition";
        return (409, "", failure(409, "Conflict", message, &Value::Null));
    }
    if query.is_empty() {
        let grace = pod["spec"]["terminationGracePeriodSeconds"].clone();
        let until =
            SystemTime::now() + Duration::from_secs(grace.as_u64().unwrap_or_default().min(MOST_SECONDS));
        pod["metadata"]["deletionTimestamp"] = json!(humantime::format_rfc3339_seconds(until).to_string());
        pod["metadata"]["deletionGracePeriodSeconds"] = grace;
    }
    let created =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    (201, "", created)
}

/// Returns the metadata of the pods of a namespace; with a field selector, only of those that have not finished.
fn list((path, query): (&str, &str), objects: &BTreeMap<String, Value>) -> Value {
    let is_unfinished = |phase: &Value| {
        let is_asked = |not: &str| query.contains(&format!("status.phase%21%3D{not}"));
        ["Succeeded", "Failed"].into_iter().all(|finished| *phase != finished || !is_asked(finished))
    };
    let is_listed = |(name, pod): &(&String, &Value)| {
        name.starts_with(&format!("{path}/")) && is_unfinished(&pod["status"]["phase"])
    };
    let items = objects.iter().filter(is_listed).map(|(_, pod)| json!({"metadata": pod["metadata"]}));
    json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": items.collect::<Vec<Value>>()})
}

/// Changes an object as a merge patch does. An API server refuses another UID and another version.
fn patch(object: &mut Value, change: &Value, carry_out: bool) -> ApiAnswer {
    for key in ["uid", "resourceVersion"] {
        let (wanted, found) = (&change["metadata"][key], &object["metadata"][key]);
        if !wanted.is_null() && wanted != found {
            let message = format!("Operation cannot be fulfilled: {key} is {found}, not {wanted}");
            return (409, "", failure(409, "Conflict", &message, &Value::Null));
        }
    }
    let mut changed = object.clone();
    merge(&mut changed, change);
    if carry_out {
        object.clone_from(&changed);
    }
    (200, "", changed)
}

fn merge(into: &mut Value, change: &Value) {
    match (into.as_object_mut(), change.as_object()) {
        (Some(into), Some(change)) => {
            for (key, value) in change {
                merge(into.entry(key.clone()).or_insert(json!({})), value);
            }
        }
        _ => into.clone_from(change),
    }
}
