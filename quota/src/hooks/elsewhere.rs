//! Memory that is not this process's to pay for, or not to be counted yet: that of other processes and interfaces belongs
//! to whoever made it; a graph's is let through and counted as calls, until it is known how drivers keep it.

use std::ffi::{c_int, c_uint, c_void};

use super::{given, hooks};
use crate::abi::{Address, Code, Handle, Ticket};
use crate::life;
use crate::shield::Ask;

/// Lets a call through, and counts that.
pub(super) fn uncounted<F: Fn() -> Code>(ask: &Ask<F>) -> Code {
    if let Some(life) = life::get() {
        life.not_counted();
    }
    ask.now()
}

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
const ALLOCATES: c_int = 10;

/// A node of any kind: its parameters begin with which.
fn node<F: Fn() -> Code>(ask: &Ask<F>, parameters: *const c_int) -> Code {
    // SAFETY: the driver reads it too.
    if unsafe { given(parameters) } == Some(&ALLOCATES) { uncounted(ask) } else { ask.now() }
}

hooks! { of CUDA:
    cuIpcOpenMemHandle(out: *mut Address, ticket: Ticket, flags: c_uint) |ask| { uncounted(ask) }
    cuIpcOpenMemHandle_v2(out: *mut Address, ticket: Ticket, flags: c_uint) |ask| { uncounted(ask) }
    cuImportExternalMemory(out: *mut Handle, description: *const c_void) |ask| { uncounted(ask) }
    cuGraphAddMemAllocNode(
        out: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_void
    ) |ask| { uncounted(ask) }
    cuGraphAddNode(
        out: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_int
    ) |ask| { node(ask, parameters) }
    cuGraphAddNode_v2(
        out: *mut Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        parameters: *mut c_int
    ) |ask| { node(ask, parameters) }
    cuGraphAddNode_v3(
        out: *mut Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        parameters: *mut c_int
    ) |ask| { node(ask, parameters) }
}
