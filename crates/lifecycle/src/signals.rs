//! Signals: the first SIGTERM or SIGINT requests an orderly shutdown, the second ends the program at once. SIGHUP
//! requests a reload, if the program has one.

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

/// SIGHUPs. Once it exists, SIGHUP no longer ends the program.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Begins to listen.
    ///
    /// # Errors
    /// If signals cannot be listened to.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next; several that came meanwhile count as one.
    pub async fn next(&mut self) {
        // Without end, since the signal is never given back.
        let _ = self.0.recv().await;
    }
}

/// Runs a future to its end and passes it the shutdown request; the outcome is `None` if a second
/// signal came before it ended.
///
/// # Errors
/// If signals cannot be received.
pub async fn until_signal<T, F: Future<Output = T>>(
    run: impl FnOnce(Shutdown) -> F,
) -> io::Result<Option<T>> {
    let mut signals =
        Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let (sender, receiver) = oneshot::channel();
    let mut work = Box::pin(run(Shutdown(receiver)));
    tokio::select! {
        outcome = &mut work => return Ok(Some(outcome)),
        name = signals.next() => tracing::info!(signal = name, "asked to end: finishing what was begun"),
    }
    drop(sender);
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
