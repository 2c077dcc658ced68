//! A connection to Redis that limits the size of replies and the time until they are complete, because any program may
//! listen at the server's address.

#![expect(clippy::disallowed_methods, reason = "every request has a deadline")]

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo, ConnectionLike, ErrorKind, Parser, RedisConnectionInfo};
use redis::{RedisError, RedisResult, Value, cmd};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The most bytes of all replies to a request. Each line also counts as a parsed value, because values of few bytes
/// need much more memory than their text.
const MOST_BYTES: usize = 8 << 20;

/// A connection that is open until a request fails.
pub(crate) struct Connection {
    stream: Stream,
    parser: Parser,
    /// How many more bytes may be received.
    left: usize,
    /// How long the replies to a request may take.
    pub(crate) patience: Option<Duration>,
    db: i64,
    open: bool,
}

impl Connection {
    /// Connects and authenticates.
    pub(crate) fn open(server: &ConnectionInfo, patience: Duration) -> RedisResult<Self> {
        let settings = server.redis_settings();
        let mut connection = Self {
            stream: Stream::open(server.addr(), patience)?,
            parser: Parser::new(),
            left: MOST_BYTES,
            patience: Some(patience),
            db: settings.db(),
            open: true,
        };
        connection.set_up(settings)?;
        Ok(connection)
    }

    fn set_up(&mut self, settings: &RedisConnectionInfo) -> RedisResult<()> {
        let (user, password) = (settings.username(), settings.password());
        if settings.protocol().supports_resp3() {
            let login = password.map(|password| ["AUTH", user.unwrap_or("default"), password]);
            cmd("HELLO").arg(3).arg(login.as_ref().map(<[_; 3]>::as_slice)).exec(self)?;
        } else if let Some(password) = password {
            cmd("AUTH").arg(user).arg(password).exec(self).or_else(|error| match error.detail() {
                _ if !self.open => Err(error),
                // Servers before Redis 6 have no users.
                Some(why) if why.contains("wrong number of arguments") => {
                    cmd("AUTH").arg(password).exec(self)
                }
                _ => Err((ErrorKind::AuthenticationFailed, "Password authentication failed").into()),
            })?;
        }
        if self.db != 0 {
            cmd("SELECT").arg(self.db).exec(self)?;
        }
        // The server may refuse this. It must respond, though.
        let named = cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("bailiff").exec(self);
        named.or_else(|error| if self.open { Ok(()) } else { Err(error) })
    }

    /// Waits up to `at_most` for a message that the server sends without a request.
    pub(crate) fn push(&mut self, at_most: Duration) -> RedisResult<Value> {
        self.stream.socket().until = Some(Instant::now() + at_most);
        let message = self.receive()?;
        // The parser keeps an incomplete message, so the limit applies until the message is complete.
        self.left = MOST_BYTES;
        Ok(message)
    }

    fn send(&mut self, request: &[u8]) -> RedisResult<()> {
        self.left = MOST_BYTES;
        self.stream.socket().until = self.patience.map(|patience| Instant::now() + patience);
        let sent = self.stream.write_all(request).and_then(|()| self.stream.flush());
        self.open &= sent.is_ok();
        Ok(sent?)
    }

    fn receive(&mut self) -> RedisResult<Value> {
        let limited = Limited { stream: &mut self.stream, left: &mut self.left };
        let received = self.parser.parse_value(limited);
        self.open &= received.is_ok();
        received.map_err(|error| if self.left == 0 { too_large() } else { error })
    }

    /// Receives a reply, and ignores messages that are not replies.
    fn reply(&mut self) -> RedisResult<Value> {
        loop {
            match self.receive()? {
                Value::Push { .. } => {}
                reply => return Ok(reply),
            }
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, request: &[u8]) -> RedisResult<Value> {
        self.send(request)?;
        self.reply()
    }

    fn req_packed_commands(
        &mut self,
        requests: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send(requests)?;
        let mut replies = (0..offset + count).map(|_| self.reply()).collect::<RedisResult<Vec<_>>>()?;
        Ok(replies.split_off(offset))
    }

    fn get_db(&self) -> i64 {
        self.db
    }

    fn check_connection(&mut self) -> bool {
        cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.open
    }
}

fn too_large() -> RedisError {
    (ErrorKind::Parse, "invalid reply", "the reply is larger than 8 MiB".to_owned()).into()
}

/// A stream of which only `left` bytes can be read.
struct Limited<'a> {
    stream: &'a mut Stream,
    left: &'a mut usize,
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        let lines = buffer[..count].iter().map(|byte| usize::from(*byte == b'\n')).sum::<usize>();
        *self.left = self.left.saturating_sub(count + lines * size_of::<Value>());
        if *self.left == 0 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(count) }
    }
}

enum Stream {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

impl Stream {
    fn open(address: &ConnectionAddr, patience: Duration) -> RedisResult<Self> {
        let until = Some(Instant::now() + patience);
        let tcp =
            |host: &str, port: u16| io::Result::Ok(Socket { stream: tcp(host, port, patience)?, until });
        match address {
            ConnectionAddr::Unix(path) => {
                Ok(Self::Plain(Socket { stream: UnixStream::connect(path)?.into(), until }))
            }
            ConnectionAddr::Tcp(host, port) => Ok(Self::Plain(tcp(host, *port)?)),
            ConnectionAddr::TcpTls { host, port, insecure: false, .. } => {
                let tls =
                    ClientConnection::new(Arc::new(tls_config()?), ServerName::try_from(host.clone())?)?;
                Ok(Self::Tls(Box::new(StreamOwned::new(tls, tcp(host, *port)?))))
            }
            _ => {
                Err((ErrorKind::InvalidClientConfig, "a connection without verification is not supported")
                    .into())
            }
        }
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &mut tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// A socket with a deadline for all reads and writes together, so that a slow peer cannot extend it.
struct Socket {
    stream: OwnedFd,
    until: Option<Instant>,
}

impl Socket {
    fn limit(&self, what: Timeout) -> io::Result<()> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(&self.stream, what, left)?)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit(Timeout::Recv)?;
        Ok(retry_on_intr(|| recv(&self.stream, &mut *buffer, RecvFlags::empty()))?.1)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit(Timeout::Send)?;
        Ok(send(&self.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to the first address of a host that responds.
fn tcp(host: &str, port: u16, patience: Duration) -> io::Result<OwnedFd> {
    let mut failed = io::Error::other("the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream.into()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Trusts the system's certificate authorities.
fn tls_config() -> RedisResult<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.into_iter().next() {
        return Err(error.into());
    }
    for certificate in found.certs {
        roots.add(certificate)?;
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}
