//! The body of a response: pieces that are already in memory, sent in order and never copied.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Pieces of a response, all in memory.
#[derive(Debug, Default)]
pub struct Body(VecDeque<Bytes>);

impl Body {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Returns whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Into<Bytes>> FromIterator<B> for Body {
    fn from_iter<I: IntoIterator<Item = B>>(pieces: I) -> Self {
        Self(pieces.into_iter().map(Into::into).collect())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::from_iter([text])
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}
