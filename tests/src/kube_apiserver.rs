//! A real API server of Kubernetes with its own etcd, and a proxy in front of it: that of `tests/kube-apiserver`, or the program that
//! `KUBE_APISERVER` names. There is no kubelet and no controller, so the test writes what they would write.

use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api_server::{ApiRequest, ApiServer, TOKEN};
use crate::programs;
use crate::wait::until;

/// Token of a user who may do everything.
const ADMIN: &str = "admin-token";
/// The account of `bailiff-kubernetes`.
const CLIENT: &str = "system:serviceaccount:bailiff:bailiff";

/// The server, ended with its test.
pub struct KubeApiServer {
    address: String,
    /// Minor version.
    minor: u32,
    _directory: TempDir,
    children: Vec<Child>,
}

/// Returns a free port. Another program could take it before it is used.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Returns the minor version of a program that prints `Kubernetes v1.36.2`.
fn minor_version(program: &Path) -> u32 {
    let version = Command::new(program).arg("--version").output();
    let version = version.unwrap_or_else(|error| panic!("{}: {error}", program.display())).stdout;
    let minor = String::from_utf8_lossy(&version).split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.expect("a version")
}

impl KubeApiServer {
    /// Starts an API server. A client with the token [`TOKEN`] has its rights in namespace `team`.
    ///
    /// # Panics
    /// If it is not built (`tests/kube-apiserver`), or does not start.
    pub fn start() -> Self {
        let built = programs::root().join("target/kube-apiserver/kube-apiserver");
        let program = env::var_os("KUBE_APISERVER").map_or(built, PathBuf::from);
        let minor = minor_version(&program);
        let directory = tempfile::tempdir().expect("a directory");
        let (path, [store, peer, secure]) = (directory.path(), [port(), port(), port()]);
        let tokens = format!("{ADMIN},admin,1,system:masters\n{TOKEN},{CLIENT},2\n");
        fs::write(path.join("tokens.csv"), tokens).expect("a file");
        let key = Command::new("openssl").args(["genrsa", "-out"]).arg(path.join("sa.key")).output();
        assert!(key.expect("openssl starts").status.success());
        let log = |name: &str| fs::File::create(path.join(name)).expect("a file");
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = Command::new("etcd")
            .args(["--listen-client-urls", &url(store), "--advertise-client-urls", &url(store)])
            .args(["--listen-peer-urls", &url(peer), "--data-dir"])
            .arg(path.join("etcd"))
            .stderr(log("etcd.log"))
            .spawn()
            .expect("etcd starts");
        let flag = |name: &str, file: &str| format!("--{name}={}", path.join(file).display());
        let server = Command::new(program)
            .args([format!("--etcd-servers={}", url(store)), format!("--secure-port={secure}")])
            .args(["--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24"])
            .args((minor < 24).then_some("--insecure-port=0"))
            // The controller that creates service accounts does not run.
            .arg("--disable-admission-plugins=ServiceAccount")
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=Node,RBAC",
            ])
            .args([flag("cert-dir", "certs"), flag("token-auth-file", "tokens.csv")])
            .args([
                flag("service-account-key-file", "sa.key"),
                flag("service-account-signing-key-file", "sa.key"),
            ])
            .stderr(log("kube-apiserver.log"))
            .spawn()
            .expect("kube-apiserver starts");
        let address = format!("https://127.0.0.1:{secure}");
        let this = Self { address, minor, _directory: directory, children: vec![server, etcd] };
        until("the API server is ready", || {
            let ready = request(&this.address, ADMIN, ("GET", "/readyz"), None);
            (ready.0 == 200).then_some(())
        });
        for name in ["team", "bailiff"] {
            this.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
        }
        this
    }

    /// Returns whether it has admission policies, and tokens with the name of a node.
    pub const fn is_current(&self) -> bool {
        self.minor >= 30
    }

    /// Creates a role, and binds it to the client in namespace `team`.
    pub fn bind(&self, role: &Value) {
        let (group, name) = ("rbac.authorization.k8s.io", &role["metadata"]["name"]);
        let path = format!("/apis/{group}/v1");
        self.create(&format!("{path}/clusterroles"), role);
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": CLIENT}],
        });
        self.create(&format!("{path}/namespaces/team/rolebindings"), &binding);
    }

    /// Sends a request with a client's token, and returns the status and the body.
    pub fn as_client(&self, token: &str, what: (&str, &str), body: &Value) -> (u16, Value) {
        request(&self.address, token, what, Some(body))
    }

    /// Creates an object as the administrator, and returns it.
    ///
    /// # Panics
    /// If the API server refuses.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        let (status, created) = request(&self.address, ADMIN, ("POST", path), Some(object));
        assert!(status == 201, "{path}: {status} {created}");
        created
    }

    /// The same.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn try_create(&self, path: &str, object: &Value) -> Result<Value, u16> {
        let (status, created) = request(&self.address, ADMIN, ("POST", path), Some(object));
        if status == 201 { Ok(created) } else { Err(status) }
    }

    /// Deletes a pod at once.
    pub fn delete(&self, path: &str) {
        request(&self.address, ADMIN, ("DELETE", path), Some(&json!({"gracePeriodSeconds": 0})));
    }

    /// Changes an object as the administrator.
    ///
    /// # Panics
    /// If the API server refuses.
    pub fn patch(&self, path: &str, change: &Value) {
        let (status, answer) = request(&self.address, ADMIN, ("PATCH", path), Some(change));
        assert!(status == 200, "{path}: {status} {answer}");
    }

    /// Returns an object, as the administrator sees it.
    pub fn get(&self, path: &str) -> Value {
        request(&self.address, ADMIN, ("GET", path), None).1
    }

    /// Returns a server in front of this one for clients. Before version 1.22, evictions are known only as `policy/v1beta1`.
    pub fn for_clients(&self) -> ApiServer {
        let (address, is_current) = (self.address.clone(), self.is_current());
        ApiServer::answering(move |received: &ApiRequest, token: &str| {
            let (method, path) = received.what.split_once(' ')?;
            let mut body = received.body.clone();
            if body["apiVersion"] == "policy/v1" && !is_current {
                body["apiVersion"] = json!("policy/v1beta1");
            }
            let body = Some(body).filter(|body| !body.is_null());
            let (status, answer) = request(&address, token, (method, path), body.as_ref());
            Some((status, "", answer))
        })
    }
}

/// Sends a request with curl, and returns the status and the body.
fn request(address: &str, token: &str, (method, path): (&str, &str), body: Option<&Value>) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--insecure", "--request", method, "--write-out", "\n%{http_code}"]);
    curl.args(["--header", &format!("Authorization: Bearer {token}")]);
    let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
    curl.args(["--header", &format!("Content-Type: application/{kind}"), "--data-binary", "@-"]);
    curl.arg(format!("{address}{path}")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = curl.spawn().expect("curl starts");
    let text = body.map(ToString::to_string).unwrap_or_default();
    child.stdin.take().expect("stdin is piped").write_all(text.as_bytes()).expect("curl reads");
    let output = child.wait_with_output().expect("curl ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_default();
    let body = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
    (status.parse().unwrap_or_default(), body)
}

impl Drop for KubeApiServer {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
