//! Hooks for functions whose calls are counted, but not their memory. Imported memory is charged to the
//! process that allocated it. For graphs it is unknown how long a driver keeps the memory.

use std::ffi::{c_int, c_uint, c_void};

use super::{hooks, read_input};
use crate::abi::{Address, Code, Handle, IpcHandle};
use crate::panic_guard::DriverCall;
use crate::state;

/// Passes a call to the driver, and adds it to the uncounted calls.
pub(super) fn uncounted<F: Fn() -> Code>(call: &DriverCall<F>) -> Code {
    if let Some(state) = state::get() {
        state.not_counted();
    }
    call.result()
}

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
const ALLOCATES: c_int = 10;

/// Adds a graph node of any kind; the kind is the first field of the parameters.
fn node<F: Fn() -> Code>(call: &DriverCall<F>, parameters: *const c_int) -> Code {
    // SAFETY: null or valid, because the driver reads the same parameters.
    if unsafe { read_input(parameters) } == Some(&ALLOCATES) { uncounted(call) } else { call.result() }
}

hooks! { of CUDA:
    cuIpcOpenMemHandle(out: *mut Address, handle: IpcHandle, flags: c_uint) |call| { uncounted(call) }
    cuIpcOpenMemHandle_v2(out: *mut Address, handle: IpcHandle, flags: c_uint) |call| { uncounted(call) }
    cuImportExternalMemory(out: *mut Handle, description: *const c_void) |call| { uncounted(call) }
    cuGraphAddMemAllocNode(
        out: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_void
    ) |call| { uncounted(call) }
    cuGraphAddNode(
        out: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_int
    ) |call| { node(call, parameters) }
    cuGraphAddNode_v2(
        out: *mut Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        parameters: *mut c_int
    ) |call| { node(call, parameters) }
    cuGraphAddNode_v3(
        out: *mut Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        parameters: *mut c_int
    ) |call| { node(call, parameters) }
}
