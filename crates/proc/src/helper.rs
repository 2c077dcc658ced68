//! Helper process: keeps the capabilities that this program has dropped, and reads for it what the kernel denies to
//! it. A request contains an open `/proc/PID`, so the answer is about that process even if its pid is reused.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{
    MemfdFlags, Mode, PROC_SUPER_MAGIC, SeekFrom, fstatfs, memfd_create, openat, readlinkat, seek,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Deadline;
use crate::directory::{Attributes, Directory, FILE};
use crate::process::{Descriptor, descriptors_of};
use crate::{ReadError, readable};

/// Maximum size of a message. Longer answers are passed as files.
const LONGEST: usize = 64 << 10;
/// Time limit of a read. A process can make the kernel block while its files are opened.
const PATIENCE: Duration = Duration::from_secs(1);

/// The helper that reads for this program, if there is one.
static READER: OnceLock<Channel> = OnceLock::new();

/// Connection to a helper process. Requests are sent one at a time.
#[derive(Debug)]
pub struct Channel(Mutex<Requests>);

#[derive(Debug)]
struct Requests {
    socket: OwnedFd,
    /// Number of the last request. An answer to an earlier request, whose deadline had passed, is discarded.
    number: u64,
}

/// Number of a request with its content, or with the answer to it.
#[derive(Serialize, Deserialize)]
struct Message<T>(u64, T);

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
        send(&requests.socket, &Message(number, request), descriptor)?;
        let deadline = Deadline::after(patience);
        loop {
            if !readable(&[requests.socket.as_fd()], Some(deadline))?.contains(&true) {
                return Err(Errno::TIMEDOUT);
            }
            let (Message(of, answer), file) = receive::<Message<A>>(&requests.socket)?.ok_or(Errno::PIPE)?;
            if of == number {
                return Ok((answer, file));
            }
        }
    }
}

/// What a helper does.
pub trait Service {
    /// Request of the program.
    type Request: DeserializeOwned;
    /// Answer to it.
    type Answer: Serialize;

    /// Answers a request that may have a file attached.
    fn answer(&mut self, request: Self::Request, file: Option<OwnedFd>) -> (Self::Answer, Option<OwnedFd>);

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
        let Some((Message(number, request), file)) = receive(&socket)? else { return Ok(()) };
        let (answer, file) = service.answer(request, file);
        send(&socket, &Message(number, answer), file.as_ref().map(AsFd::as_fd))?;
    }
}

/// What is read in a `/proc/PID` or `/proc/PID/task/TID`.
#[derive(Debug, Serialize, Deserialize)]
pub enum Read {
    /// Opens a file.
    Open(String),
    /// Reads the target of a link.
    Link(String),
    /// Reads the attributes of a file.
    Attributes(String),
    /// Reads the links of all descriptors.
    Descriptors,
}

/// Answer to a [`Read`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The attached file.
    File,
    /// Target of the link.
    Link(String),
    /// Attributes of the file.
    Attributes(Attributes),
    /// Number of the error.
    Error(i32),
}

/// Sets the channel to the helper that reads what the kernel denies to this program.
pub fn read_through(channel: Channel) {
    // There is one helper, which is started once.
    let _ = READER.set(channel);
}

/// Reads through the helper; fails with `denied` if there is none.
fn ask(directory: &Directory, read: &Read, denied: Errno) -> Result<(Answer, Option<OwnedFd>), Errno> {
    let channel = READER.get().ok_or(denied)?;
    match channel.call(read, Some(directory.as_fd()), PATIENCE)? {
        (Answer::Error(number), _) => Err(Errno::from_raw_os_error(number)),
        answer => Ok(answer),
    }
}

pub(crate) fn open(directory: &Directory, name: &str, denied: Errno) -> Result<OwnedFd, Errno> {
    ask(directory, &Read::Open(name.to_owned()), denied)?.1.ok_or(Errno::BADMSG)
}

pub(crate) fn link(directory: &Directory, name: &str, denied: Errno) -> Result<String, Errno> {
    match ask(directory, &Read::Link(name.to_owned()), denied)? {
        (Answer::Link(target), _) => Ok(target),
        _ => Err(Errno::BADMSG),
    }
}

pub(crate) fn attributes(directory: &Directory, name: &str, denied: Errno) -> Result<Attributes, Errno> {
    match ask(directory, &Read::Attributes(name.to_owned()), denied)? {
        (Answer::Attributes(attributes), _) => Ok(attributes),
        _ => Err(Errno::BADMSG),
    }
}

pub(crate) fn descriptors(directory: &Directory, denied: Errno) -> Result<Vec<Descriptor>, ReadError> {
    let file = ask(directory, &Read::Descriptors, denied)?.1.ok_or(Errno::BADMSG)?;
    let links: Vec<(u32, Result<String, i32>)> =
        serde_json::from_reader(File::from(file)).map_err(|_| ReadError::Malformed)?;
    let error = |number| ReadError::from(Errno::from_raw_os_error(number));
    Ok(links.into_iter().map(|(number, link)| (number, link.map_err(error))).collect())
}

/// Reads for another program, in the helper. Other files than those that the program needs are refused.
#[derive(Debug)]
pub struct Reader;

impl Service for Reader {
    type Request = Read;
    type Answer = Answer;

    fn answer(&mut self, read: Read, directory: Option<OwnedFd>) -> (Answer, Option<OwnedFd>) {
        let answer = directory.ok_or(Errno::BADF).and_then(|it| read_in(&Directory::from(it), &read));
        answer.unwrap_or_else(|error| (Answer::Error(error.raw_os_error()), None))
    }
}

fn read_in(directory: &Directory, read: &Read) -> Result<(Answer, Option<OwnedFd>), Errno> {
    if fstatfs(directory)?.f_type != PROC_SUPER_MAGIC {
        return Err(Errno::BADF);
    }
    match read {
        Read::Open(name)
            if matches!(of_thread(name), "environ" | "fdinfo") || name.starts_with("fdinfo/") =>
        {
            Ok((Answer::File, Some(openat(directory, name, FILE, Mode::empty())?)))
        }
        Read::Link(name) if matches!(name.as_str(), "exe" | "ns/pid") => {
            let target = readlinkat(directory, name, Vec::new())?;
            Ok((Answer::Link(target.to_string_lossy().into_owned()), None))
        }
        Read::Attributes(name)
            if ["exe", "fd/", "root/", "self/root/"].iter().any(|start| name.starts_with(start)) =>
        {
            Ok((Answer::Attributes(Attributes::cached(directory, name)?), None))
        }
        Read::Descriptors => Ok((Answer::File, Some(listed(directory)?))),
        _ => Err(Errno::PERM),
    }
}

/// Removes `task/TID/` from the name of a file.
fn of_thread(name: &str) -> &str {
    let of_task = name.strip_prefix("task/").and_then(|rest| rest.split_once('/'));
    of_task.filter(|(thread, _)| thread.parse::<u32>().is_ok()).map_or(name, |(_, file)| file)
}

/// Writes the links of all descriptors to a file in memory.
fn listed(directory: &Directory) -> Result<OwnedFd, Errno> {
    let links = descriptors_of(directory).map_err(ReadError::errno)?;
    let links: Vec<(u32, Result<String, i32>)> = links
        .into_iter()
        .map(|(number, link)| (number, link.map_err(|error| error.errno().raw_os_error())))
        .collect();
    let file = memfd_create(c"descriptors", MemfdFlags::CLOEXEC)?;
    let mut out = BufWriter::new(File::from(file));
    serde_json::to_writer(&mut out, &links).map_err(|_| Errno::IO)?;
    let file = OwnedFd::from(out.into_inner().map_err(|_| Errno::IO)?);
    seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}

fn send(socket: impl AsFd, message: &impl Serialize, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        attached.push(SendAncillaryMessage::ScmRights(files));
    }
    let pieces = [IoSlice::new(&text)];
    retry_on_intr(|| sendmsg(&socket, &pieces, &mut attached, SendFlags::NOSIGNAL)).map(drop)
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
