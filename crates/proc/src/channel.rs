//! Requests to a helper process over an inherited socket, each with at most one attached file.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Deadline;
use crate::poll::readable;

/// Maximum size of a message. Longer answers are passed as files.
const LONGEST: usize = 160 << 10;
/// Time for which the client waits after the deadline for the answer to a request that was executed just in time.
const MARGIN: Duration = Duration::from_millis(20);

/// Connection to a helper process. Requests are sent one at a time.
#[derive(Debug)]
pub struct Channel(Mutex<Requests>);

#[derive(Debug)]
struct Requests {
    socket: OwnedFd,
    /// Number of the last request. An answer to an earlier request, whose deadline had passed, is discarded.
    number: u64,
}

/// Number of a request with its deadline and content, or with the answer to it.
#[derive(Serialize, Deserialize)]
struct Message<T> {
    number: u64,
    until: Deadline,
    content: T,
}

impl Channel {
    /// Creates a channel, and the socket for the helper's standard input or output.
    ///
    /// # Errors
    /// If the kernel has no free descriptor.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(Mutex::new(Requests { socket: ours, number: 0 })), theirs))
    }

    /// Sends a request with a descriptor, and returns the answer.
    ///
    /// # Errors
    /// If the helper has exited (`EPIPE`, `ECONNRESET`), or did not answer in time (`ETIMEDOUT`).
    pub fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        request: &Q,
        descriptor: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<(A, Option<OwnedFd>), Errno> {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.number += 1;
        let number = requests.number;
        let message = Message { number, until: Deadline::after(patience), content: request };
        // The socket is full if the helper hangs.
        send(&requests.socket, &message, descriptor, SendFlags::DONTWAIT)
            .map_err(|error| if error == Errno::AGAIN { Errno::TIMEDOUT } else { error })?;
        let deadline = Deadline::after(patience + MARGIN);
        loop {
            if !readable(&[requests.socket.as_fd()], Some(deadline))?.contains(&true) {
                return Err(Errno::TIMEDOUT);
            }
            let (answer, file) = receive::<Message<A>>(&requests.socket)?.ok_or(Errno::PIPE)?;
            if answer.number == number {
                return Ok((answer.content, file));
            }
        }
    }
}

/// A request as the helper receives it.
#[derive(Debug)]
pub struct Request<T> {
    /// What is requested.
    pub content: T,
    /// The attached file.
    pub file: Option<OwnedFd>,
    /// After this time, the program no longer waits for the answer, so the request must not take effect.
    pub until: Deadline,
}

/// What a helper does.
pub trait Service {
    /// Request of the program.
    type Request: DeserializeOwned;
    /// Answer to it.
    type Answer: Serialize;

    /// Answers a request that may have a file attached.
    fn answer(&mut self, request: Request<Self::Request>) -> (Self::Answer, Option<OwnedFd>);

    /// Time after which [`Self::silent`] is called if no request arrives.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Acts on the silence of the program.
    fn silent(&mut self) {}
}

/// Answers requests until the program has closed its end of the socket.
///
/// # Errors
/// If the socket fails.
pub fn serve(socket: impl AsFd, service: &mut impl Service) -> io::Result<()> {
    loop {
        if let Some(patience) = service.patience()
            && !readable(&[socket.as_fd()], Some(Deadline::after(patience)))?.contains(&true)
        {
            service.silent();
        }
        let Some((message, file)) = receive(&socket)? else { return Ok(()) };
        let Message { number, until, content } = message;
        let (content, file) = service.answer(Request { content, file, until });
        let answer = Message { number, until, content };
        send(&socket, &answer, file.as_ref().map(AsFd::as_fd), SendFlags::empty())?;
    }
}

fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<(), Errno> {
    let text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    if text.len() > LONGEST {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        attached.push(SendAncillaryMessage::ScmRights(files));
    }
    let pieces = [IoSlice::new(&text)];
    retry_on_intr(|| sendmsg(&socket, &pieces, &mut attached, flags | SendFlags::NOSIGNAL)).map(drop)
}

/// Receives a message; `None` if the other end is closed.
fn receive<T: DeserializeOwned>(socket: impl AsFd) -> Result<Option<(T, Option<OwnedFd>)>, Errno> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let received = {
        let mut pieces = [IoSliceMut::new(&mut text)];
        retry_on_intr(|| recvmsg(&socket, &mut pieces, &mut attached, RecvFlags::CMSG_CLOEXEC))?
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    let files = attached.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().last();
    let message = serde_json::from_slice(text.get(..received.bytes).unwrap_or_default());
    message.map(|message| Some((message, file))).map_err(|_| Errno::BADMSG)
}
