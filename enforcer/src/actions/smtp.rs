//! Sends a message to a mail server, which is not trusted: it can use up neither time nor memory.

use std::io::{Error as IoError, Result as IoResult};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bailiff_engine::policy::mail::{Encryption, Mail};
use bailiff_lifecycle::file;
use futures_io::{AsyncRead as _, AsyncWrite as _};
use lettre::message::Message;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
#[expect(deprecated, reason = "the only way to a connection that begins with TLS and has a limit")]
use lettre::transport::smtp::client::AsyncNetworkStream;
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// Time limit until the server has accepted the connection and the login, and of a whole message.
const CONNECT: Duration = Duration::from_secs(15);
const WHOLE: Duration = Duration::from_secs(30);
/// How often a shutdown is checked meanwhile.
const CHECK: Duration = Duration::from_millis(200);
/// Maximum number of bytes that are read from the server for a message.
const MOST_RECEIVED: usize = 1 << 20;
/// Maximum size of the file with the password, in bytes.
const MOST: u64 = 4096;

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MailError {
    /// The server cannot be reached, so no message can be sent.
    Server(String),
    /// This message may be accepted later.
    Later(String),
    /// It will not be accepted.
    Never(String),
}

impl MailError {
    pub(super) fn why(&self) -> &str {
        let (Self::Server(why) | Self::Later(why) | Self::Never(why)) = self;
        why
    }

    /// Classifies an error about a message.
    fn of(error: &Error) -> Self {
        if error.is_permanent() || error.is_client() {
            return Self::Never(format!("the server refused it: {error}"));
        }
        Self::Later(error.to_string())
    }
}

/// Sends a message. Nothing remains of an attempt that is given up, neither a thread nor a descriptor.
///
/// # Errors
/// [`MailError::Server`] until the server has accepted the connection and the login; afterwards, what the server does can
/// depend on the recipient.
pub(super) fn deliver(
    (mail, node): (&Mail, &str),
    message: &Message,
    stopped: &AtomicBool,
) -> Result<(), MailError> {
    let later = |why: &str| Err(MailError::Later(why.to_owned()));
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| MailError::Later(error.to_string()))?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = exchange(mail, node, message) => result,
            () = sleep(WHOLE) => later("the server did not respond in time"),
            () = until(stopped) => later("the enforcer is shutting down"),
        }
    });
    // The thread of a query that the name service does not answer ends by itself.
    runtime.shutdown_background();
    result
}

async fn until(stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        sleep(CHECK).await;
    }
}

async fn exchange(mail: &Mail, node: &str, message: &Message) -> Result<(), MailError> {
    let late = |_| MailError::Server("the server did not respond in time".to_owned());
    let mut connection = timeout(CONNECT, connect(mail, node)).await.map_err(late)??;
    let sent = connection.send(message.envelope(), &message.formatted()).await;
    sent.map_err(|error| MailError::of(&error))?;
    // The server has the message, whatever it responds.
    drop(timeout(CHECK, connection.quit()).await);
    Ok(())
}

/// Connects and logs in.
async fn connect(mail: &Mail, node: &str) -> Result<AsyncSmtpConnection, MailError> {
    // A refused login, for example, can be corrected before the mail is given up.
    let failed = |error: Error| MailError::Server(error.to_string());
    let parameters = || {
        TlsParameters::new_rustls(mail.host.clone()).map_err(|why| MailError::Server(format!("TLS: {why}")))
    };
    let login = mail.login.as_ref().map(|(user, path)| -> Result<_, MailError> {
        let password = file::first_line(path, MOST).ok().flatten();
        let why = || MailError::Server("cannot read the file with the password".to_owned());
        Ok(Credentials::new(user.clone(), password.ok_or_else(why)?))
    });
    let login = login.transpose()?;
    let tls = (mail.encryption == Encryption::Tls).then(parameters).transpose()?;
    #[expect(deprecated, reason = "the only way to a connection that begins with TLS and has a limit")]
    let stream = AsyncNetworkStream::connect_tokio1((&*mail.host, mail.port), None, tls, None).await;
    // lettre would take what it has read before TLS as replies within TLS.
    let at_once = if mail.encryption == Encryption::StartTls { 1 } else { MOST_RECEIVED };
    let limited = Limited { stream: stream.map_err(failed)?, left: MOST_RECEIVED, at_once };
    let name = ClientId::Domain(node.to_owned());
    let connection = AsyncSmtpConnection::connect_with_transport(Box::new(limited), &name).await;
    let mut connection = connection.map_err(failed)?;
    if mail.encryption == Encryption::StartTls {
        connection.starttls(parameters()?, &name).await.map_err(failed)?;
    }
    if let Some(login) = &login {
        connection.auth(DEFAULT_MECHANISMS, login).await.map_err(failed)?;
    }
    Ok(connection)
}

/// A connection from which only a limited number of bytes is read: lettre checks the length of a line after its end.
#[derive(Debug)]
struct Limited {
    #[expect(deprecated, reason = "the only way to a connection that begins with TLS and has a limit")]
    stream: AsyncNetworkStream,
    left: usize,
    /// Maximum number of bytes in one read.
    at_once: usize,
}

impl AsyncTokioStream for Limited {
    fn peer_addr(&self) -> IoResult<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        let most = self.at_once.min(buffer.remaining());
        let read = Pin::new(&mut self.stream).poll_read(context, buffer.initialize_unfilled_to(most));
        let read = ready!(read)?;
        let left = self.left.checked_sub(read);
        self.left = left.ok_or_else(|| IoError::other("the server sends too much"))?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<IoResult<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
