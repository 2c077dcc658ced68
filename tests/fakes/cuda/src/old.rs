//! The first version of the API, with 32-bit sizes and addresses. It works only in contexts that it
//! has created.

use std::ffi::c_uint;

use crate::arrays::{self, Shape};
use crate::code::{Answer, Code};
use crate::edge::{In, Out, calls, put};
use crate::memory::{self, Address};

fn narrow(address: Address) -> Answer<c_uint> {
    c_uint::try_from(address).map_err(|_| Code::OUT_OF_MEMORY)
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`
#[repr(C)]
struct Descriptor {
    width: c_uint,
    height: c_uint,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`
#[repr(C)]
struct Descriptor3 {
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

calls! {
    cuMemAlloc(out: Out<c_uint>, bytes: c_uint) { put(out, narrow(memory::in_context(bytes.into(), true)?)?) }
    cuMemAllocPitch(out: Out<c_uint>, row: Out<c_uint>, width: c_uint, height: c_uint, _element: c_uint) {
        let pitch = memory::pitch(width as usize)?;
        put(row, c_uint::try_from(pitch).map_err(|_| Code::INVALID_VALUE)?)?;
        put(out, narrow(memory::in_context(memory::rows(pitch, height as usize)?, true)?)?)
    }
    cuMemFree(address: c_uint) { memory::free(address.into()) }
    cuArrayCreate(out: Out<Address>, descriptor: In<Descriptor>) {
        let of = descriptor.ok_or(Code::INVALID_VALUE)?;
        let size = [of.width, of.height, 0].map(u64::from);
        put(out, arrays::create(&Shape { size, format: of.format, channels: of.channels, flags: 0 }, 1)?)
    }
    cuArray3DCreate(out: Out<Address>, descriptor: In<Descriptor3>) {
        let of = descriptor.ok_or(Code::INVALID_VALUE)?;
        let size = [of.width, of.height, of.depth].map(u64::from);
        put(out, arrays::create(&Shape { size, format: of.format, channels: of.channels, flags: of.flags }, 1)?)
    }
}
