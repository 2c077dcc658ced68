//! Client of the control socket: one request, one response, with a deadline.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use crate::exit::plain;
use crate::socket::Timed;

/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of a response.
const ANSWER_BYTES: u64 = 64 << 20;

/// Sends a request to a daemon and waits at most 10 s for its response.
///
/// # Errors
/// If the daemon does not respond, or the response is not a line of JSON.
pub fn query(path: &Path, question: &Value) -> Result<Value> {
    query_within(path, question, DEADLINE)
}

/// Sends a request to a daemon and waits at most `limit` for its response.
///
/// # Errors
/// If the daemon does not respond, or the response is not a line of JSON.
pub fn query_within(path: &Path, question: &Value, limit: Duration) -> Result<Value> {
    let name = path.display();
    let stream =
        Timed::connect(path, limit).map_err(|error| anyhow!("cannot query {name}: {}", why(&error)))?;
    let line =
        exchange(stream, question).map_err(|error| anyhow!("no response from {name}: {}", why(&error)))?;
    if line.is_empty() {
        bail!("no response from {name}: the daemon closed the connection");
    }
    serde_json::from_slice(&line).map_err(|error| anyhow!("the response from {name} is not JSON: {error}"))
}

fn exchange(mut stream: Timed, question: &Value) -> io::Result<Vec<u8>> {
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES)).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("{}; check that the daemon is running and that this is its control socket", plain(error))
        }
        io::ErrorKind::PermissionDenied => {
            format!("{}; only root and the socket's group can connect", plain(error))
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it did not respond in time".to_owned(),
        _ => plain(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;

    #[test]
    fn error_names_cause() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("control.sock");
        let error_within =
            |limit| query_within(&path, &json!({}), limit).expect_err("no daemon is running").to_string();
        assert!(
            error_within(DEADLINE).contains("no such file or directory; check that the daemon is running"),
            "{path:?}"
        );
        let deaf = UnixListener::bind(&path).expect("the path is free");
        let short = Duration::from_millis(20);
        assert!(
            error_within(short).ends_with("it did not respond in time"),
            "the connection is never accepted"
        );
        drop(deaf);
        assert!(error_within(DEADLINE).contains("connection refused; check that the daemon is running"));
    }
}
