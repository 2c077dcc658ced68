//! A kubelet that serves the pod-resources API with gRPC's own implementation, and the directories that it leaves on a node.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::programs;

/// A node's kubelet, terminated with its test.
pub struct Kubelet {
    directory: TempDir,
    server: Option<Child>,
}

impl Kubelet {
    /// Starts a kubelet with these answers (`tests/fixtures/kubelet.py`).
    pub fn start(answers: &Value) -> Self {
        let mut kubelet =
            Self { directory: tempfile::tempdir().expect("a temporary directory"), server: None };
        for directory in ["pods", "containers"] {
            fs::create_dir(kubelet.path(directory)).expect("a directory");
        }
        kubelet.answer(answers);
        kubelet.restart();
        kubelet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.path("kubelet.sock")
    }

    /// Returns the flags of an exporter that asks this kubelet often.
    pub fn flags(&self) -> Vec<String> {
        let of = |flag: &str, path: PathBuf| format!("--{flag}={}", path.display());
        vec![
            of("pod-resources", self.socket()),
            of("pods", self.path("pods")),
            of("containers", self.path("containers")),
            "--pod-resources.interval=100ms".to_owned(),
        ]
    }

    /// Changes what the kubelet answers.
    pub fn answer(&self, answers: &Value) {
        fs::write(self.path("next"), answers.to_string()).expect("answers can be written");
        fs::rename(self.path("next"), self.path("answers.json")).expect("answers can be replaced");
    }

    /// Returns the number of calls of a method so far.
    pub fn calls(&self, method: &str) -> usize {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        calls.lines().filter(|call| *call == method).count()
    }

    /// Adds the directory of a pod's logs in namespace `team`, and a link to those of its container `main`.
    pub fn add_pod(&self, pod: &str, uid: &str, container: &str) {
        fs::create_dir(self.path("pods").join(format!("team_{pod}_{uid}"))).expect("a directory");
        let link = self.path("containers").join(format!("{pod}_team_main-{container}.log"));
        symlink("/nowhere", link).expect("a link");
    }

    /// Ends the kubelet, and removes its socket.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().expect("our own child can be ended");
            server.wait().expect("our own child can be waited for");
        }
        let _ = fs::remove_file(self.socket());
    }

    /// Ends the kubelet, and starts one with a new socket.
    pub fn restart(&mut self) {
        self.stop();
        let mut command = Command::new(programs::python());
        command.arg(programs::root().join("tests/fixtures/kubelet.py")).arg(self.directory.path());
        let mut server = command.stdout(Stdio::piped()).spawn().expect("python starts");
        let mut line = String::new();
        let stdout = server.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        self.server = Some(server);
        assert_eq!(line, "listening\n");
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a listed pod in namespace `team`, with these device ids of NVIDIA's resource in its container `main`.
pub fn pod(name: &str, ids: &[&str]) -> Value {
    let devices = json!([{"resource_name": "nvidia.com/gpu", "device_ids": ids}]);
    json!({"name": name, "namespace": "team", "containers": [{"name": "main", "devices": devices}]})
}

/// Returns the answers of a kubelet with these pods and allocatable device ids.
pub fn answers(pods: &[Value], allocatable: &[&str]) -> Value {
    let devices = json!([{"resource_name": "nvidia.com/gpu", "device_ids": allocatable}]);
    json!({"list": {"pod_resources": pods}, "allocatable": {"devices": devices}})
}
