//! Messages over a socket with deadlines: four bytes of length, then the message in postcard format.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bailiff_proc::clock::Deadline;
use bailiff_proc::readable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a message in bytes.
const LONGEST: usize = 64 << 20;
const HEAD: usize = size_of::<u32>();

/// Encodes a message with its length prefix.
pub(crate) fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; HEAD]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - HEAD).map_err(io::Error::other)?;
    bytes[..HEAD].copy_from_slice(&length.to_ne_bytes());
    Ok(bytes)
}

/// Reads a message without a deadline; `None` at the end of the stream.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; HEAD];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut bytes = vec![0; (u32::from_ne_bytes(head) as usize).min(LONGEST)];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

/// One end of the socket between supervisor and worker.
pub(crate) struct Channel {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Result of waiting for a message.
pub(crate) enum Heard<T> {
    /// A message.
    Message(T),
    /// No message arrived before the deadline.
    Silence,
    /// The other side has exited, or sent an invalid message.
    Ended,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a message. It must fit into the socket's buffer; otherwise the other side is not reading.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        self.stream.write_all(&frame(message)?)
    }

    /// Waits for a message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, deadline: Deadline) -> Heard<T> {
        loop {
            if let Some(end) = self.whole() {
                let message = postcard::from_bytes(&self.buffer[HEAD..end]);
                self.buffer.drain(..end);
                return message.map_or(Heard::Ended, Heard::Message);
            }
            match readable(&[self.stream.as_fd()], Some(deadline)).as_deref() {
                Ok([false]) => return Heard::Silence,
                Ok(_) if self.fill() => {}
                _ => return Heard::Ended,
            }
        }
    }

    /// Reads available data; returns false at the end of the stream.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                self.buffer.len() <= LONGEST
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Returns the end of the first complete message in the buffer.
    fn whole(&self) -> Option<usize> {
        let head = self.buffer.first_chunk::<HEAD>()?;
        let end = HEAD + u32::from_ne_bytes(*head) as usize;
        (self.buffer.len() >= end).then_some(end)
    }
}
