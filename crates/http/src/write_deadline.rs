//! A connection with a write deadline: the data that hyper has buffered (some 400 KB) must be read within a
//! time limit, or the connection is closed. hyper has a time limit for slow senders but not for slow readers,
//! which would keep the pages of old snapshots in memory.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

#[derive(Debug)]
pub(crate) struct WriteDeadline<T> {
    inner: T,
    limit: Duration,
    /// Runs from the first write that had to wait until hyper's buffer has been written.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteDeadline<T> {
    pub(crate) const fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, timer: None }
    }

    fn or_cut(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            return outcome;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteDeadline<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.or_cut(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.or_cut(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    // hyper flushes only when its buffer is empty, so the client has read everything.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timer = None;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_cut() {
        let (near, _far) = duplex(16);
        let written = WriteDeadline::new(near, LIMIT).write_all(&[0; 64]).await;
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_cut_as_well() {
        let (near, mut far) = duplex(16);
        let trickle = tokio::spawn(async move {
            while let Ok(1) = far.read(&mut [0]).await {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let written = WriteDeadline::new(near, LIMIT).write_all(&[0; 64]).await;
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        trickle.await.expect("the task ends with the connection");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_starts_again_when_all_is_written() {
        let (near, mut far) = duplex(16);
        let mut near = WriteDeadline::new(near, LIMIT);
        for _ in 0..3 {
            let read = async {
                sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut [0; 32]).await
            };
            let (written, read) = tokio::join!(near.write_all(&[0; 32]), read);
            assert!(written.is_ok() && read.is_ok());
            near.flush().await.expect("the client kept up");
        }
    }
}
