//! Signals: the first SIGTERM or SIGINT requests an orderly shutdown, the second one ends the program at
//! once, and SIGHUP requests a reload.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Completes when shutdown is requested.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// SIGHUP events. While this value exists, SIGHUP does not terminate the program.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Starts listening.
    ///
    /// # Errors
    /// If signals cannot be received.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next SIGHUP. Several pending signals count as one.
    pub async fn next(&mut self) {
        // Never `None`, because the signal handler is never removed.
        let _ = self.0.recv().await;
    }
}

/// Runs a future to completion, and passes it the shutdown request. Returns `None` at a second signal.
///
/// # Errors
/// If signals cannot be received.
pub async fn until_signal<T, F: Future<Output = T>>(
    run: impl FnOnce(Shutdown) -> F,
) -> io::Result<Option<T>> {
    let mut signals =
        Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let (sender, receiver) = oneshot::channel::<()>();
    let requested = async {
        let _: Result<(), _> = receiver.await;
    };
    let mut work = Box::pin(run(Box::pin(requested)));
    tokio::select! {
        outcome = &mut work => return Ok(Some(outcome)),
        name = signals.next() => tracing::info!(signal = name, "shutting down after the work in progress is finished"),
    }
    drop(sender);
    tokio::select! {
        outcome = &mut work => Ok(Some(outcome)),
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: exiting immediately");
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
