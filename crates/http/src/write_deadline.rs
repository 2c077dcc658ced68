//! A connection with a limit for slow readers: the time that a response waits for its reader. hyper has a time limit for
//! slow senders but not for slow readers, which would keep the pages of old snapshots in memory.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A reader gets one second more for each of this number of bytes that it has read.
const BYTES_PER_SECOND: u64 = 1 << 20;
/// hyper writes a response without pauses of its own, so a write after such a pause begins another response.
const BETWEEN_RESPONSES: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct WriteDeadline<T> {
    inner: T,
    limit: Duration,
    /// Time for which this response has waited for its reader, and number of bytes that were written.
    waited: Duration,
    written: u64,
    /// Start of the current wait, and its end at the latest.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    last: Option<Instant>,
}

impl<T> WriteDeadline<T> {
    pub(crate) const fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, waited: Duration::ZERO, written: 0, waiting: None, last: None }
    }

    /// Prepares for a write.
    fn begin(&mut self) {
        let is_new = self.last.is_none_or(|last| last.elapsed() > BETWEEN_RESPONSES);
        if self.waiting.is_none() && is_new {
            (self.waited, self.written) = (Duration::ZERO, 0);
        }
    }

    /// Returns for how much longer this response may wait.
    fn left(&self) -> Duration {
        (self.limit + Duration::from_secs(self.written / BYTES_PER_SECOND)).saturating_sub(self.waited)
    }

    fn or_cut(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if outcome.is_pending() {
            let left = self.left();
            let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
            return timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        if let Poll::Ready(Ok(count)) = outcome {
            self.written += count as u64;
        }
        self.last = Some(Instant::now());
        outcome
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
        self.begin();
        let outcome = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.or_cut(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.or_cut(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

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

    /// Reads 32 bytes after a time; returns whether they could be written.
    async fn is_read_after(
        near: &mut WriteDeadline<DuplexStream>,
        far: &mut DuplexStream,
        after: Duration,
    ) -> bool {
        let read = async {
            sleep(after).await;
            far.read_exact(&mut [0; 32]).await
        };
        let (written, _) = tokio::join!(
            async {
                near.write_all(&[0; 32]).await?;
                near.flush().await
            },
            timeout(LIMIT * 2, read)
        );
        written.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_starts_again_with_each_response() {
        let (near, mut far) = duplex(16);
        let mut near = WriteDeadline::new(near, LIMIT);
        for _ in 0..3 {
            assert!(is_read_after(&mut near, &mut far, Duration::from_secs(20)).await);
            sleep(BETWEEN_RESPONSES * 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_cut_although_it_reads_each_part() {
        let (near, mut far) = duplex(16);
        let mut near = WriteDeadline::new(near, LIMIT);
        assert!(is_read_after(&mut near, &mut far, Duration::from_secs(20)).await);
        assert!(!is_read_after(&mut near, &mut far, Duration::from_secs(20)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn reader_of_much_gets_more_time() {
        let (near, mut far) = duplex(1 << 20);
        let mut near = WriteDeadline::new(near, LIMIT);
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; 1 << 20];
            while far.read_exact(&mut piece).await.is_ok() {
                sleep(Duration::from_millis(900)).await;
            }
        });
        assert!(near.write_all(&vec![0; 64 << 20]).await.is_ok());
        drop(near);
        reading.await.expect("the task ends with the connection");
    }
}
