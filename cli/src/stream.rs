//! The exporter's stream, read with a deadline.

#![expect(clippy::disallowed_methods, reason = "a deadline needs a clock")]

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::socket::connect;
use bailiff_snapshot::wire::{self, Snapshot, WireError};

/// A snapshot is never longer; 16,384 processes take a tenth of it.
const LONGEST_LINE: usize = 64 << 20;
/// So much is read at once.
const CHUNK: usize = 64 << 10;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// Nobody listens there.
    #[error("nobody listens")]
    Nobody,
    /// It is not ours to read.
    #[error("it may be read by its owner and group alone")]
    Denied,
    /// Nothing came in time.
    #[error("it told nothing in time")]
    Late,
    /// It ended, or something else failed.
    #[error("{}", plain(.0))]
    Failed(io::Error),
    /// What came is no snapshot.
    #[error(transparent)]
    Strange(#[from] WireError),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::Nobody,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Failed(error),
        }
    }
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    /// What came after the last line.
    rest: Vec<u8>,
}

impl Stream {
    /// Connects, within so much time.
    pub(crate) fn open(path: &Path, patience: Duration) -> Result<Self, StreamError> {
        Ok(Self { socket: connect(path, patience)?, rest: Vec::new() })
    }

    /// The next snapshot; the first is the newest there is, which the exporter sends at once.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Snapshot, StreamError> {
        let until = Instant::now() + patience;
        let mut looked = 0;
        loop {
            if let Some(end) = self.rest.iter().skip(looked).position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=looked + end).collect();
                return Ok(wire::parse(&line)?);
            }
            looked = self.rest.len();
            if looked > LONGEST_LINE {
                return Err(StreamError::Failed(io::ErrorKind::InvalidData.into()));
            }
            self.read(until)?;
        }
    }

    fn read(&mut self, until: Instant) -> Result<(), StreamError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StreamError::Late);
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut part = vec![0; CHUNK];
        match self.socket.read(&mut part) {
            Ok(0) => Err(StreamError::Failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.rest.extend_from_slice(part.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The newest snapshot.
pub(crate) fn newest(path: &Path, patience: Duration) -> Result<Snapshot, StreamError> {
    Stream::open(path, patience)?.next(patience)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    const LINE: &str = r#"{"version":1,"seq":7,"wall_ms":0,"boot_ms":0,"interval_ms":1,"pid_namespace":"host","sources":{},"gpus":[],"processes":[]}"#;
    const LONG: Duration = Duration::from_mins(1);

    /// What a stream tells of which a reader gets this; it stays open.
    fn told(bytes: &[u8], patience: Duration) -> (Result<Snapshot, StreamError>, Stream, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let mut stream = Stream { socket: ours, rest: Vec::new() };
        (stream.next(patience), stream, theirs)
    }

    #[test]
    fn lines_come_one_by_one() {
        let next = LINE.replace("\"seq\":7", "\"seq\":8");
        let (first, mut stream, mut theirs) = told(format!("{LINE}\n{next}\n{{\"ver").as_bytes(), LONG);
        assert_eq!(first.unwrap().seq, 7);
        assert_eq!(stream.next(LONG).unwrap().seq, 8);
        theirs.write_all(b"sion\":2}\n").unwrap();
        assert!(matches!(stream.next(LONG), Err(StreamError::Strange(WireError::Version { found: 2 }))));
        drop(theirs);
        assert!(matches!(stream.next(LONG), Err(StreamError::Failed(_))), "it has ended");
    }

    #[test]
    fn silence_has_an_end() {
        let (told, _stream, _theirs) = told(&LINE.as_bytes()[..40], Duration::from_millis(20));
        assert!(matches!(told, Err(StreamError::Late)));
    }

    #[test]
    fn nobody_is_told_from_a_deaf_one() {
        let directory = std::env::temp_dir().join(format!("bailiff-stream-{}", std::process::id()));
        let _ = std::fs::remove_file(&directory);
        assert!(matches!(newest(&directory, LONG), Err(StreamError::Nobody)));
        let deaf = UnixListener::bind(&directory).unwrap();
        assert!(matches!(newest(&directory, Duration::from_millis(20)), Err(StreamError::Late)));
        drop(deaf);
        assert!(matches!(newest(&directory, LONG), Err(StreamError::Nobody)), "its file was left behind");
        std::fs::remove_file(&directory).unwrap();
    }
}
