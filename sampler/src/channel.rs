#![expect(clippy::disallowed_methods, reason = "a deadline is compared with the clock here, and only here")]
//! Lines over a socket, with a deadline on each.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A line longer than this is not one of ours.
const LONGEST: usize = 64 << 20;

/// One end of the talk between supervisor and worker.
pub(crate) struct Channel {
    stream: UnixStream,
    buffer: Vec<u8>,
    searched: usize,
}

/// What waiting for a message came to.
pub(crate) enum Heard<T> {
    /// A message.
    Message(T),
    /// Nothing by the deadline.
    Silence,
    /// The other side has ended, or does not make sense.
    Ended,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: Vec::new(), searched: 0 })
    }

    /// Sends one message. It fits into the socket's buffer, or the other side is not reading.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Waits for one message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, deadline: Instant) -> Heard<T> {
        loop {
            if let Some(line) = self.line() {
                return serde_json::from_slice(&line).map_or(Heard::Ended, Heard::Message);
            }
            match self.wait(deadline) {
                Ok(true) => {}
                Ok(false) => return Heard::Silence,
                Err(_) => return Heard::Ended,
            }
            if !self.fill() {
                return Heard::Ended;
            }
        }
    }

    /// Whether the other side has ended.
    pub(crate) fn ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::empty())];
        let hung_up = PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(hung_up)
    }

    fn wait(&self, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_hours(1));
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(!left.is_zero()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what is there; false at the end.
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

    fn line(&mut self) -> Option<Vec<u8>> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            return None;
        };
        self.searched = 0;
        let rest = self.buffer.split_off(end + 1);
        Some(std::mem::replace(&mut self.buffer, rest))
    }
}
