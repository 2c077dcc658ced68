//! Signals: the first SIGTERM or SIGINT asks for an orderly end, the second does not wait for it. SIGHUP asks for
//! a reload, where somebody listens.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Comes true when the program is asked to end.
#[derive(Debug)]
pub struct Shutdown(oneshot::Receiver<()>);

impl Future for Shutdown {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

/// SIGHUPs. From the moment that this is made on, one no longer ends the program.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Begins to listen.
    ///
    /// # Errors
    /// Where signals cannot be listened to.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next; several that came meanwhile count as one.
    pub async fn next(&mut self) {
        // Without end, since the signal is never given back.
        let _ = self.0.recv().await;
    }
}

/// Runs what is given until it is done; it is handed the wish to end, and `None` is its outcome where it was
/// asked a second time before it had ended.
///
/// # Errors
/// Where signals cannot be listened to.
pub async fn until_signal<T, F: Future<Output = T>>(
    run: impl FnOnce(Shutdown) -> F,
) -> io::Result<Option<T>> {
    let mut signals =
        Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let (tell, told) = oneshot::channel();
    let mut work = Box::pin(run(Shutdown(told)));
    tokio::select! {
        outcome = &mut work => return Ok(Some(outcome)),
        name = signals.next() => tracing::info!(signal = name, "asked to end: finishing what was begun"),
    }
    drop(tell);
    tokio::select! {
        outcome = &mut work => Ok(Some(outcome)),
        name = signals.next() => {
            tracing::warn!(signal = name, "asked again: ending at once");
            Ok(None)
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
