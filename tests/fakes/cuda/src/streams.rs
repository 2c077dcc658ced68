//! Streams: the context of each, and whether it is being captured.

use std::ffi::{c_int, c_uint};

use crate::code::{Answer, Code};
use crate::contexts::{self, Context};
use crate::edge::{Out, calls, put};
use crate::state::{self, Handle};

/// A stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    context: (Handle, Context),
    captured: bool,
}

/// What orders a call: a stream, or the default stream of the thread or context.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Stream(Stream),
    /// The default stream of the thread or of the context.
    Default {
        captured: bool,
    },
    Unknown,
}

const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// Returns the stream with this handle. `threads` is true if handle 0 means the per-thread default
/// stream.
pub(crate) fn order(stream: Handle, threads: bool) -> Order {
    match stream {
        LEGACY => Order::Default { captured: false },
        0 if !threads => Order::Default { captured: false },
        0 | PER_THREAD => {
            let own = state::lock().streams.get(&PER_THREAD).copied();
            Order::Default { captured: own.is_some_and(|own| own.captured) }
        }
        _ => state::lock().streams.get(&stream).copied().map_or(Order::Unknown, Order::Stream),
    }
}

impl Order {
    pub(crate) fn captured(self) -> bool {
        matches!(self, Self::Stream(Stream { captured: true, .. }) | Self::Default { captured: true })
    }

    fn context(self) -> Answer<(Handle, Context)> {
        match self {
            Self::Stream(stream) => Ok(stream.context),
            Self::Default { .. } => contexts::current(),
            Self::Unknown => Err(Code::INVALID_HANDLE),
        }
    }

    pub(crate) fn gpu(self) -> Answer<usize> {
        Ok(self.context()?.1.gpu)
    }
}

fn capture(stream: Handle, captured: bool) -> Answer {
    let stream = if stream == 0 { PER_THREAD } else { stream };
    let context = contexts::current()?;
    let mut state = state::lock();
    if stream == PER_THREAD {
        state.streams.entry(stream).or_insert(Stream { context, captured });
    }
    state.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?.captured = captured;
    Ok(())
}

fn is_captured(out: Out<c_int>, stream: Handle, threads: bool) -> Answer {
    let order = order(stream, threads);
    if matches!(order, Order::Unknown) {
        return Err(Code::INVALID_HANDLE);
    }
    put(out, order.captured().into())
}

fn device(out: Out<c_int>, order: Order) -> Answer {
    put(out, crate::devices::ordinal(order.gpu()?))
}

calls! {
    cuStreamCreate(out: Out<Handle>, _flags: c_uint) {
        let context = contexts::current()?;
        let mut state = state::lock();
        let handle = state.name();
        state.streams.insert(handle, Stream { context, captured: false });
        put(out, handle)
    }
    cuStreamDestroy_v2(stream: Handle) { state::lock().streams.remove(&stream).map(drop).ok_or(Code::INVALID_HANDLE) }
    cuStreamSynchronize(_stream: Handle) { Ok(()) }
    cuStreamGetCtx(stream: Handle, out: Out<Handle>) { put(out, order(stream, false).context()?.0) }
    cuStreamGetCtx_ptsz(stream: Handle, out: Out<Handle>) { put(out, order(stream, true).context()?.0) }
    cuStreamGetDevice(stream: Handle, out: Out<c_int>) { device(out, order(stream, false)) }
    cuStreamGetDevice_ptsz(stream: Handle, out: Out<c_int>) { device(out, order(stream, true)) }
    cuStreamIsCapturing(stream: Handle, out: Out<c_int>) { is_captured(out, stream, false) }
    cuStreamIsCapturing_ptsz(stream: Handle, out: Out<c_int>) { is_captured(out, stream, true) }
    cuStreamBeginCapture_v2(stream: Handle, _mode: c_int) { capture(stream, true) }
    cuStreamBeginCapture_v2_ptsz(stream: Handle, _mode: c_int) { capture(stream, true) }
    cuStreamEndCapture(stream: Handle, out: Out<Handle>) {
        capture(stream, false)?;
        put(out, state::lock().name())
    }
}
