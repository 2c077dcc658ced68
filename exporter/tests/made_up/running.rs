//! A running exporter whose samples come from the test, with functions to query it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use bailiff_exporter::flags::Flags;
use bailiff_exporter::settings::Settings;
use bailiff_exporter::{Exporter, SampleSource};
use bailiff_snapshot::Sample;
use clap::Parser;
use tokio::sync::oneshot;

/// A sampler that returns only the samples that the test sends, and that panics on request.
struct Handed(Receiver<Option<Sample>>);

impl SampleSource for Handed {
    fn sample(&mut self, _: u64) -> Option<Sample> {
        loop {
            match self.0.recv() {
                Ok(seen) => return Some(seen.expect("the test wants a panic")),
                Err(_) => thread::park(),
            }
        }
    }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) show: Sender<Option<Sample>>,
    shutdown: oneshot::Sender<()>,
    exporter: JoinHandle<anyhow::Result<()>>,
}

/// A response: status line and headers in lower case, and the body.
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn settings(flags: &[&str]) -> Settings {
    let fixed = ["bailiff-exporter", "--web.listen-address=127.0.0.1:0", "--interval=10ms"];
    let flags = Flags::try_parse_from([fixed.as_slice(), flags].concat()).expect("the flags are valid");
    Settings::try_from(flags).expect("the flags are valid")
}

pub(crate) fn start(flags: &[&str]) -> Running {
    let exporter = Exporter::open(settings(flags)).expect("the exporter opens all files");
    let address = exporter.addresses().expect("the listener is bound")[0];
    let (show, shown) = channel();
    let (shutdown, receiver) = oneshot::channel();
    let exporter = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served =
            runtime.block_on(exporter.serve(Box::new(Handed(shown)), async { drop(receiver.await) }));
        runtime.shutdown_background();
        served
    });
    Running { address, show, shutdown, exporter }
}

impl Running {
    /// Sends a sample to the exporter, and waits until it is on the page.
    pub(crate) fn show(&self, sample: Sample) {
        let line = format!("bailiff_snapshots_total {}\n", sample.seq);
        self.show.send(Some(sample)).expect("the exporter accepts samples");
        while !self.get("/metrics", "").text().contains(&line) {}
    }

    /// Sends one request on a new connection. Each of `headers` ends with a line break.
    pub(crate) fn query(&self, request: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        let end = "Host: localhost\r\nConnection: close\r\n\r\n";
        write!(stream, "{request} HTTP/1.1\r\n{headers}{end}").expect("the connection is open");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the server responds");
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("headers end");
        let head = String::from_utf8_lossy(&bytes[..end + 4]).to_lowercase();
        Answer { head, body: bytes.split_off(end + 4) }
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Answer {
        self.query(&format!("GET {path}"), headers)
    }

    /// Requests shutdown and waits until the exporter has exited.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let _ = self.shutdown.send(());
        self.exporter.join().expect("the thread does not panic")
    }

    /// Waits until the exporter exits on its own.
    pub(crate) fn ended(self) -> anyhow::Result<()> {
        self.exporter.join().expect("the thread does not panic")
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the text is UTF-8")
    }

    pub(crate) fn code(&self) -> &str {
        self.head.split(' ').nth(1).expect("a status line has a code")
    }

    pub(crate) fn has(&self, header: &str) -> bool {
        self.head.contains(&format!("\r\n{header}\r\n"))
    }
}

#[expect(clippy::disallowed_methods, reason = "reads what the exporter recorded")]
pub(crate) fn recorded(path: &Path) -> String {
    std::fs::read_to_string(path).expect("the file exists")
}
