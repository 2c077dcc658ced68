//! Contexts, primary contexts and green contexts, and the context that is current to a thread.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};

use crate::code::{Answer, Code};
use crate::devices;
use crate::edge::{Out, calls, put};
use crate::state::{self, Handle, State};

/// A context.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) gpu: usize,
    /// Whether the context was created through the first version of the API, with 32-bit addresses.
    pub(crate) old: bool,
    uses: u32,
}

/// The primary context of a GPU.
#[derive(Default)]
pub(crate) struct Primary {
    handle: Handle,
    uses: u32,
}

thread_local! {
    static STACK: RefCell<Vec<(Handle, Context)>> = const { RefCell::new(Vec::new()) };
    /// The top of the stack, so that looking up the current context is as fast as in a real driver.
    static CURRENT: Cell<Option<(Handle, Context)>> = const { Cell::new(None) };
}

/// Returns the context that is current to this thread.
pub(crate) fn current() -> Answer<(Handle, Context)> {
    CURRENT.get().ok_or(Code::INVALID_CONTEXT)
}

/// Clears the stack of a forked child, which has no context.
pub(crate) fn forked() {
    with_stack(Vec::clear);
}

fn with_stack<T>(change: impl FnOnce(&mut Vec<(Handle, Context)>) -> T) -> T {
    STACK.with_borrow_mut(|stack| {
        let result = change(stack);
        CURRENT.set(stack.last().copied());
        result
    })
}

fn create(out: Out<Handle>, device: c_int, old: bool) -> Answer {
    let gpu = devices::gpu(device)?;
    let mut state = state::lock();
    let (handle, context) = (state.name(), Context { gpu, old, uses: 1 });
    state.contexts.insert(handle, context);
    with_stack(|stack| stack.push((handle, context)));
    put(out, handle)
}

fn destroy(state: &mut State, handle: Handle) -> Answer {
    state.contexts.remove(&handle).ok_or(Code::INVALID_CONTEXT)?;
    state.blocks.free_of(handle);
    with_stack(|stack| stack.pop_if(|top| top.0 == handle));
    Ok(())
}

fn push(handle: Handle) -> Answer {
    let context = *state::lock().contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)?;
    with_stack(|stack| stack.push((handle, context)));
    Ok(())
}

fn pop(out: Out<Handle>) -> Answer {
    let top = with_stack(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
    if let Some(out) = out {
        out.write(top.0);
    }
    Ok(())
}

fn retain(device: c_int) -> Answer<Handle> {
    let gpu = devices::gpu(device)?;
    let mut state = state::lock();
    if state.primary[gpu].handle == 0 {
        state.primary[gpu].handle = state.name();
    }
    state.primary[gpu].uses += 1;
    let handle = state.primary[gpu].handle;
    state.contexts.entry(handle).or_insert(Context { gpu, old: false, uses: 1 });
    Ok(handle)
}

fn release(device: c_int) -> Answer {
    let gpu = devices::gpu(device)?;
    let mut state = state::lock();
    let primary = &mut state.primary[gpu];
    primary.uses = primary.uses.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
    if primary.uses == 0 {
        reset(&mut state, gpu);
    }
    Ok(())
}

fn reset(state: &mut State, gpu: usize) {
    let handle = state.primary[gpu].handle;
    state.blocks.free_of(handle);
    if !crate::settings::get().reset_keeps_pools {
        state.blocks.free_pooled(gpu);
    }
}

calls! {
    cuCtxCreate(out: Out<Handle>, _flags: c_uint, device: c_int) { create(out, device, true) }
    cuCtxCreate_v2(out: Out<Handle>, _flags: c_uint, device: c_int) { create(out, device, false) }
    cuCtxCreate_v3(out: Out<Handle>, _parameters: *const c_void, _count: c_int, _flags: c_uint, device: c_int) {
        create(out, device, false)
    }
    cuCtxCreate_v4(out: Out<Handle>, _parameters: *const c_void, _flags: c_uint, device: c_int) {
        create(out, device, false)
    }
    cuCtxDestroy(context: Handle) { destroy(&mut state::lock(), context) }
    cuCtxDestroy_v2(context: Handle) { destroy(&mut state::lock(), context) }
    cuCtxAttach(out: Out<Handle>, _flags: c_uint) {
        let (handle, _) = current()?;
        state::lock().contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?.uses += 1;
        put(out, handle)
    }
    cuCtxDetach(context: Handle) {
        let mut state = state::lock();
        let found = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        found.uses -= 1;
        if found.uses == 0 { destroy(&mut state, context) } else { Ok(()) }
    }
    cuCtxGetCurrent(out: Out<Handle>) { put(out, current().map_or(0, |current| current.0)) }
    cuCtxSetCurrent(context: Handle) {
        with_stack(Vec::pop);
        if context == 0 { Ok(()) } else { push(context) }
    }
    cuCtxPushCurrent(context: Handle) { push(context) }
    cuCtxPushCurrent_v2(context: Handle) { push(context) }
    cuCtxPopCurrent(out: Out<Handle>) { pop(out) }
    cuCtxPopCurrent_v2(out: Out<Handle>) { pop(out) }
    cuCtxGetDevice(out: Out<c_int>) { put(out, devices::ordinal(current()?.1.gpu)) }
    cuCtxGetDevice_v2(out: Out<c_int>, context: Handle) {
        let found = state::lock().contexts.get(&context).copied().ok_or(Code::INVALID_CONTEXT)?;
        put(out, devices::ordinal(found.gpu))
    }
    cuCtxGetFlags(out: Out<c_uint>) { put(out, 0) }
    cuCtxGetApiVersion(context: Handle, out: Out<c_uint>) {
        let found = state::lock().contexts.get(&context).copied().ok_or(Code::INVALID_CONTEXT)?;
        put(out, if found.old { 3010 } else { 3020 })
    }
    cuCtxSynchronize() { current().map(drop) }
    cuDevicePrimaryCtxRetain(out: Out<Handle>, device: c_int) { put(out, retain(device)?) }
    cuDevicePrimaryCtxRelease(device: c_int) { release(device) }
    cuDevicePrimaryCtxRelease_v2(device: c_int) { release(device) }
    cuDevicePrimaryCtxReset(device: c_int) { devices::gpu(device).map(|gpu| reset(&mut state::lock(), gpu)) }
    cuDevicePrimaryCtxReset_v2(device: c_int) { devices::gpu(device).map(|gpu| reset(&mut state::lock(), gpu)) }
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) { devices::gpu(device).map(drop) }
    cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let uses = state::lock().primary[devices::gpu(device)?].uses;
        put(flags, 0)?;
        put(active, (uses > 0).into())
    }
    cuGreenCtxCreate(out: Out<Handle>, _resources: *const c_void, device: c_int, _flags: c_uint) {
        retain(device)?;
        let gpu = devices::gpu(device)?;
        let mut state = state::lock();
        let handle = state.name();
        state.contexts.insert(handle, Context { gpu, old: false, uses: 1 });
        put(out, handle)
    }
    cuCtxFromGreenCtx(out: Out<Handle>, green: Handle) { put(out, green) }
    cuGreenCtxDestroy(green: Handle) {
        let gpu = state::lock().contexts.get(&green).ok_or(Code::INVALID_CONTEXT)?.gpu;
        destroy(&mut state::lock(), green)?;
        release(devices::ordinal(gpu))
    }
}
