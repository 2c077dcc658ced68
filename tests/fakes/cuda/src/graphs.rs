//! Graph functions that allocate. A node is created, but no memory is allocated.

use std::ffi::{c_int, c_uint, c_void};

use crate::edge::{Out, calls, put};
use crate::state::{self, Handle};

fn node(out: Out<Handle>) -> crate::code::Answer {
    put(out, state::lock().name())
}

calls! {
    cuGraphCreate(out: Out<Handle>, _flags: c_uint) { node(out) }
    cuGraphDestroy(_graph: Handle) { Ok(()) }
    cuGraphAddMemAllocNode(
        out: Out<Handle>, _graph: Handle, _after: *const Handle, _count: usize, _parameters: *mut c_void
    ) { node(out) }
    cuGraphAddNode(
        out: Out<Handle>, _graph: Handle, _after: *const Handle, _count: usize, _parameters: *mut c_int
    ) { node(out) }
    cuGraphAddNode_v2(
        out: Out<Handle>, _graph: Handle, _after: *const Handle, _edges: *const c_void, _count: usize,
        _parameters: *mut c_int
    ) { node(out) }
    cuGraphAddNode_v3(
        out: Out<Handle>, _graph: Handle, _after: *const Handle, _edges: *const c_void, _count: usize,
        _parameters: *mut c_int
    ) { node(out) }
}
