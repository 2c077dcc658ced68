//! A real Prometheus server.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::{http, programs};

/// A running server, terminated with its test.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes an exporter every second.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn scraping(target: SocketAddr) -> Self {
        Self::scraping_each(target, "1s")
    }

    /// Starts a server that scrapes an exporter at this interval.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn scraping_each(target: SocketAddr, interval: &str) -> Self {
        Self::of(&format!(
            "global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n\
             scrape_configs:\n  - job_name: bailiff\n    static_configs: [{{targets: ['{target}']}}]\n"
        ))
    }

    /// Starts a server with this configuration.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn of(config: &str) -> Self {
        Self::start(config, tempfile::tempdir().expect("a file, a directory and a port"))
    }

    /// Starts a server that scrapes nothing and has these samples, in `OpenMetrics` with timestamps.
    ///
    /// # Panics
    /// If the samples are invalid, or the server does not start.
    pub fn filled(samples: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("samples");
        fs::write(&file, samples).expect("a file");
        let output = Command::new(programs::tool("promtool"))
            .args(["tsdb", "create-blocks-from", "openmetrics"])
            .args([&file, &directory.path().join("data")])
            .output()
            .expect("promtool must be installed: run `tests/setup prometheus`");
        assert!(output.status.success(), "{output:?}");
        Self::start("global: {scrape_interval: 1m}\n", directory)
    }

    fn start(config: &str, directory: tempfile::TempDir) -> Self {
        let file = directory.path().join("prometheus.yml");
        fs::write(&file, config).expect("a file, a directory and a port");
        let address = TcpListener::bind("127.0.0.1:0")
            .expect("a file, a directory and a port")
            .local_addr()
            .expect("a file, a directory and a port");
        let child = Command::new(programs::tool("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed: run `tests/setup prometheus`");
        Self { child, address, _directory: directory }
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the values of an instant query, or `None` if the server does not respond yet.
    pub fn query(&self, query: &str) -> Option<Vec<Value>> {
        Some(self.get(&format!("query?query={}", encoded(query)))?["result"].as_array()?.clone())
    }

    /// Returns the response below `/api/v1/`, or `None` if the server does not respond yet.
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = http::get(self.address, &format!("/api/v1/{path}"), &[]).ok()?;
        let body = String::from_utf8(answer.body).ok()?;
        let json = body.get(body.find('{')?..=body.rfind('}')?)?;
        let value: Value = serde_json::from_str(json).ok()?;
        Some(value["data"].clone())
    }

    /// Returns the first value of an instant query.
    pub fn number(&self, query: &str) -> Option<f64> {
        self.query(query)?.first()?["value"][1].as_str()?.parse().ok()
    }
}

fn encoded(query: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    query.bytes().map(byte).collect::<Vec<_>>().concat()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
