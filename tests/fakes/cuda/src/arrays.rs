//! Arrays and mipmapped arrays.

use std::ffi::c_uint;

use crate::code::{Answer, Code};
use crate::contexts::current;
use crate::edge::{In, Out, calls, put};
use crate::memory::{Address, Kind, allocate, free_array};

/// `CUDA_ARRAY_DESCRIPTOR_v2`
#[repr(C)]
struct Descriptor {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`
#[repr(C)]
struct Descriptor3 {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// Shape of an array, from either version of the API.
pub(crate) struct Shape {
    pub(crate) size: [u64; 3],
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

const LAYERED: c_uint = 0x01;
const NO_MEMORY_YET: c_uint = 0x40 | 0x80;

/// Returns the bits per texel for the formats that tests use.
fn bits(format: c_uint, channels: c_uint) -> Answer<u64> {
    Ok(match format {
        0x01 | 0x08 => 8 * u64::from(channels),
        0x02 | 0x09 | 0x10 => 16 * u64::from(channels),
        0x03 | 0x0a | 0x20 => 32 * u64::from(channels),
        0xb0 => 12,
        0xc5 | 0xcb => 64,
        // BC1 uses 8 bytes for 4 x 4 texels, BC7 uses 16.
        0x91 => 4,
        0xc0 | 0xc6 | 0x9d => 8,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Allocates an array in the current context.
pub(crate) fn create(shape: &Shape, levels: u32) -> Answer<Address> {
    let (handle, context) = current()?;
    let bits = bits(shape.format, shape.channels)?;
    let [width, height, depth] = shape.size;
    let layered = shape.flags & LAYERED != 0;
    let level = |level: u32| {
        let depth = if layered { depth.max(1) } else { (depth >> level).max(1) };
        (width >> level).max(1) * (height >> level).max(1) * depth * bits / 8
    };
    let bytes = if shape.flags & NO_MEMORY_YET != 0 { 0 } else { (0..levels).map(level).sum() };
    // An array without memory still has a handle, but it is not charged.
    if bytes == 0 {
        return Ok(u64::MAX - crate::state::lock().name() as u64);
    }
    allocate(context.gpu, bytes, Kind::Array(handle), false)
}

impl Descriptor3 {
    fn shape(&self) -> Shape {
        let size = [self.width as u64, self.height as u64, self.depth as u64];
        Shape { size, format: self.format, channels: self.channels, flags: self.flags }
    }
}

fn destroy(array: Address) -> Answer {
    if array <= u64::MAX >> 1 {
        return free_array(array);
    }
    crate::state::lock().vmm.array_is_gone(array);
    Ok(())
}

calls! {
    cuArrayCreate_v2(out: Out<Address>, descriptor: In<Descriptor>) {
        let of = descriptor.ok_or(Code::INVALID_VALUE)?;
        let size = [of.width as u64, of.height as u64, 0];
        put(out, create(&Shape { size, format: of.format, channels: of.channels, flags: 0 }, 1)?)
    }
    cuArray3DCreate_v2(out: Out<Address>, descriptor: In<Descriptor3>) {
        put(out, create(&descriptor.ok_or(Code::INVALID_VALUE)?.shape(), 1)?)
    }
    cuArrayDestroy(array: Address) { destroy(array) }
    cuMipmappedArrayCreate(out: Out<Address>, descriptor: In<Descriptor3>, levels: c_uint) {
        let shape = descriptor.ok_or(Code::INVALID_VALUE)?.shape();
        let most = shape.size.iter().max().map_or(0, |size| size.max(&1).ilog2()) + 1;
        put(out, create(&shape, levels.clamp(1, most))?)
    }
    cuMipmappedArrayDestroy(array: Address) { destroy(array) }
}
