//! Reading the exporter's snapshot stream with a deadline.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::socket::Timed;
use bailiff_snapshot::wire::{self, Snapshot, WireError};

/// The maximum length of a snapshot line; 16,384 processes need a tenth of it.
const MAX_LINE: u64 = 64 << 20;
/// Bytes per read.
const CHUNK: usize = 64 << 10;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// No process listens on the socket.
    #[error("no process listens on the socket")]
    NotListening,
    /// This user may not read the socket.
    #[error("permission denied: only the socket's owner and group may read it")]
    Denied,
    /// No snapshot arrived before the deadline.
    #[error("no snapshot before the deadline")]
    Timeout,
    /// The stream ended, or another I/O error.
    #[error("{}", plain(.0))]
    Failed(io::Error),
    /// The line is not a valid snapshot.
    #[error(transparent)]
    Invalid(#[from] WireError),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NotListening,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Failed(error),
        }
    }
}

/// A connection to the exporter's stream.
#[derive(Debug)]
pub(crate) struct Stream(BufReader<Timed>);

impl Stream {
    /// Connects within the timeout.
    pub(crate) fn open(path: &Path, timeout: Duration) -> Result<Self, StreamError> {
        Ok(Self(BufReader::with_capacity(CHUNK, Timed::connect(path, timeout)?)))
    }

    /// Returns the next snapshot. The first is the newest one, which the exporter sends immediately.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Snapshot, StreamError> {
        self.0.get_mut().expect_within(timeout);
        let mut line = Vec::new();
        let length = self.0.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => Ok(wire::parse(&line)?),
            _ if length as u64 == MAX_LINE => Err(StreamError::Failed(io::ErrorKind::InvalidData.into())),
            _ => Err(StreamError::Failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Returns the newest snapshot.
pub(crate) fn newest(path: &Path, timeout: Duration) -> Result<Snapshot, StreamError> {
    Stream::open(path, timeout)?.next(timeout)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const LINE: &str = r#"{"version":1,"seq":7,"wall_ms":0,"boot_ms":0,"interval_ms":1,"pid_namespace":"host","sources":{},"gpus":[],"processes":[]}"#;
    const LONG: Duration = Duration::from_mins(1);

    /// Reads from a stream that contains these bytes and stays open.
    fn read_bytes(bytes: &[u8], timeout: Duration) -> (Result<Snapshot, StreamError>, Stream, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let mut stream = Stream(BufReader::new(Timed::of(ours, timeout)));
        (stream.next(timeout), stream, theirs)
    }

    #[test]
    fn stream_with_two_lines_yields_each() {
        let next = LINE.replace("\"seq\":7", "\"seq\":8");
        let (first, mut stream, mut theirs) = read_bytes(format!("{LINE}\n{next}\n{{\"ver").as_bytes(), LONG);
        assert_eq!(first.unwrap().seq, 7);
        assert_eq!(stream.next(LONG).unwrap().seq, 8);
        theirs.write_all(b"sion\":2}\n").unwrap();
        assert!(matches!(stream.next(LONG), Err(StreamError::Invalid(WireError::Version { found: 2 }))));
        drop(theirs);
        assert!(matches!(stream.next(LONG), Err(StreamError::Failed(_))), "the stream has ended");
    }

    #[test]
    fn partial_line_times_out() {
        let (snapshot, _stream, _theirs) = read_bytes(&LINE.as_bytes()[..40], Duration::from_millis(20));
        assert!(matches!(snapshot, Err(StreamError::Timeout)));
    }

    #[test]
    fn missing_listener_differs_from_silent_listener() {
        let directory = std::env::temp_dir().join(format!("bailiff-stream-{}", std::process::id()));
        let _ = std::fs::remove_file(&directory);
        assert!(matches!(newest(&directory, LONG), Err(StreamError::NotListening)));
        let silent = UnixListener::bind(&directory).unwrap();
        assert!(matches!(newest(&directory, Duration::from_millis(20)), Err(StreamError::Timeout)));
        drop(silent);
        assert!(
            matches!(newest(&directory, LONG), Err(StreamError::NotListening)),
            "the stale socket file remains"
        );
        std::fs::remove_file(&directory).unwrap();
    }
}
