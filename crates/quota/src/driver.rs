//! The library's own queries to the CUDA driver: the context, GPU and stream of a call.

use std::ffi::{c_int, c_uint};

use crate::abi::{Address, Code, Device, Handle};
use crate::settings::Uuid;
use crate::symbol::Symbol;

static CURRENT_DEVICE: Symbol = Symbol::plain(c"cuCtxGetDevice");
static CURRENT_CONTEXT: Symbol = Symbol::plain(c"cuCtxGetCurrent");
static PUSH: Symbol = Symbol::plain(c"cuCtxPushCurrent_v2");
static POP: Symbol = Symbol::plain(c"cuCtxPopCurrent_v2");
static UUID: Symbol = Symbol::plain(c"cuDeviceGetUuid_v2");
static OLD_UUID: Symbol = Symbol::plain(c"cuDeviceGetUuid");
static STREAM_DEVICE: [Symbol; 2] =
    [Symbol::plain(c"cuStreamGetDevice"), Symbol::plain(c"cuStreamGetDevice_ptsz")];
static STREAM_CONTEXT: [Symbol; 2] =
    [Symbol::plain(c"cuStreamGetCtx"), Symbol::plain(c"cuStreamGetCtx_ptsz")];
static CAPTURING: [Symbol; 2] =
    [Symbol::plain(c"cuStreamIsCapturing"), Symbol::plain(c"cuStreamIsCapturing_ptsz")];
static PRIMARY_STATE: Symbol = Symbol::plain(c"cuDevicePrimaryCtxGetState");
static PRIMARY_RETAIN: Symbol = Symbol::plain(c"cuDevicePrimaryCtxRetain");
static PRIMARY_RELEASE: Symbol = Symbol::plain(c"cuDevicePrimaryCtxRelease_v2");
static OF_GREEN: Symbol = Symbol::plain(c"cuCtxFromGreenCtx");
static POINTER: Symbol = Symbol::plain(c"cuPointerGetAttribute");
static FREE: Symbol = Symbol::plain(c"cuMemFree_v2");

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`
const MEMORY_TYPE: c_int = 2;

/// Calls a driver function. Returns false if the driver does not export the function or the call fails.
macro_rules! call {
    ($symbol:expr, $($arg:expr => $kind:ty),*) => {{
        // SAFETY: the function type matches `cuda.h`.
        let function = unsafe { $symbol.function::<unsafe extern "C" fn($($kind),*) -> Code>() };
        // SAFETY: the arguments match `cuda.h`: local variables, and handles that the driver checks.
        function.is_some_and(|function| unsafe { function($($arg),*) }.is_success())
    }};
}

/// Queries one value from the driver. Returns `None` if the driver does not export the function or the
/// call fails.
macro_rules! query {
    ($symbol:expr, $type:ty, |$out:ident| ($($arg:expr => $kind:ty),*)) => {{
        let mut $out = <$type>::default();
        call!($symbol, $($arg => $kind),*).then_some($out)
    }};
}

/// Returns the GPU of the current context.
pub(crate) fn current_device() -> Option<Device> {
    query!(CURRENT_DEVICE, Device, |out| (&raw mut out => *mut Device))
}

/// Returns the current context, or 0 if there is none.
pub(crate) fn current_context() -> Handle {
    query!(CURRENT_CONTEXT, Handle, |out| (&raw mut out => *mut Handle)).unwrap_or(0)
}

/// Returns the UUID of a GPU or MIG instance.
pub(crate) fn uuid(device: Device) -> Option<Uuid> {
    query!(UUID, Uuid, |out| (&raw mut out => *mut Uuid, device => Device))
        .or_else(|| query!(OLD_UUID, Uuid, |out| (&raw mut out => *mut Uuid, device => Device)))
}

/// A stream. `threads` is true if handle 0 means the per-thread default stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) threads: bool,
}

impl Stream {
    const LEGACY: Handle = 1;
    const PER_THREAD: Handle = 2;

    /// Returns whether the stream is being captured into a graph. The legacy stream cannot be captured.
    pub(crate) fn captured(self) -> bool {
        if self.handle == Self::LEGACY || (self.handle == 0 && !self.threads) {
            return false;
        }
        let state =
            query!(self.of(&CAPTURING), c_int, |out| (self.handle => Handle, &raw mut out => *mut c_int));
        state.is_some_and(|state| state != 0)
    }

    /// Returns the GPU of the stream.
    pub(crate) fn device(self) -> Option<Device> {
        if [0, Self::LEGACY, Self::PER_THREAD].contains(&self.handle) {
            return current_device();
        }
        let newer = query!(self.of(&STREAM_DEVICE), Device, |out| (self.handle => Handle, &raw mut out => *mut Device));
        newer.or_else(|| {
            let context =
                query!(self.of(&STREAM_CONTEXT), Handle, |out| (self.handle => Handle, &raw mut out => *mut Handle))?;
            device_of(context)
        })
    }

    fn of(self, symbols: &'static [Symbol; 2]) -> &'static Symbol {
        let [plain, per_thread] = symbols;
        if self.threads { per_thread } else { plain }
    }
}

/// Returns the GPU of a context. The driver reports it only for the current context.
fn device_of(context: Handle) -> Option<Device> {
    if context == current_context() {
        return current_device();
    }
    if !call!(PUSH, context => Handle) {
        return None;
    }
    let device = current_device();
    query!(POP, Handle, |out| (&raw mut out => *mut Handle));
    device
}

/// Returns whether the primary context of a GPU is active in this process.
pub(crate) fn primary_is_active(device: Device) -> bool {
    let mut flags: c_uint = 0;
    let active = query!(PRIMARY_STATE, c_int, |out| (
        device => Device, &raw mut flags => *mut c_uint, &raw mut out => *mut c_int
    ));
    active.is_some_and(|active| active != 0)
}

/// Returns the primary context of a GPU, if it is active.
pub(crate) fn primary_context(device: Device) -> Option<Handle> {
    if !primary_is_active(device) {
        return None;
    }
    let context = query!(PRIMARY_RETAIN, Handle, |out| (&raw mut out => *mut Handle, device => Device))?;
    let _ = call!(PRIMARY_RELEASE, device => Device);
    Some(context)
}

/// Returns the context that a green context was converted to.
pub(crate) fn context_of_green(green: Handle) -> Option<Handle> {
    query!(OF_GREEN, Handle, |out| (&raw mut out => *mut Handle, green => Handle))
}

/// Returns whether the driver reports that nothing is allocated at this address.
pub(crate) fn is_gone(address: Address) -> bool {
    let mut kind: c_uint = 0;
    // SAFETY: the function type matches `cuda.h`.
    let function = unsafe { POINTER.function::<unsafe extern "C" fn(*mut c_uint, c_int, Address) -> Code>() };
    // SAFETY: the pointer is to a local variable, and the driver only looks up the address.
    function.is_some_and(
        |function| unsafe { function(&raw mut kind, MEMORY_TYPE, address) } == Code::INVALID_VALUE,
    )
}

/// Frees memory whose address the program has not received.
pub(crate) fn free(address: Address) {
    let _ = call!(FREE, address => Address);
}
