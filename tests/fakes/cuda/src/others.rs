//! Memory imported from other processes or other APIs, such as graphics. It gets a handle here, but does not count as
//! this process's memory.

use std::ffi::{c_uint, c_void};

use crate::edge::{Out, calls, put};
use crate::memory::Address;
use crate::state::{self, Handle};

/// `CUipcMemHandle`, passed by value.
#[repr(C)]
struct Ticket([u64; 8]);

const ELSEWHERE: Address = 0x4000_0000_0000;

calls! {
    cuIpcGetMemHandle(out: Out<Ticket>, address: Address) { put(out, Ticket([address; 8])) }
    cuIpcOpenMemHandle(out: Out<Address>, ticket: Ticket, _flags: c_uint) { put(out, ticket.0[7] ^ ELSEWHERE) }
    cuIpcOpenMemHandle_v2(out: Out<Address>, ticket: Ticket, _flags: c_uint) { put(out, ticket.0[7] ^ ELSEWHERE) }
    cuIpcCloseMemHandle(_address: Address) { Ok(()) }
    cuImportExternalMemory(out: Out<Handle>, _description: *const c_void) { put(out, state::lock().name()) }
    cuDestroyExternalMemory(_memory: Handle) { Ok(()) }
}
