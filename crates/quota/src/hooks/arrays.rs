//! Hooks for functions that create and destroy arrays and mipmapped arrays, in both versions of the
//! interface.

use std::ffi::c_uint;

use super::{hooks, read_input, read_output, vmm};
use crate::abi::{
    Address, Array3dDescriptor, ArrayDescriptor, Code, OldArray3dDescriptor, OldArrayDescriptor,
};
use crate::account::{Ownership, allocate, free};
use crate::panic_guard::DriverCall;
use crate::sizes::Shape;
use crate::state;

fn create<F: Fn() -> Code>(
    call: &DriverCall<F>,
    out: *const Address,
    shape: Option<Shape>,
    levels: u32,
) -> Code {
    let Some((state, shape)) = state::get().zip(shape) else { return call.result() };
    let bytes = shape.bytes(levels);
    // SAFETY: runs only after the driver has succeeded and written `out`.
    allocate(call, (state, state.current_gpu(), Ownership::Context), bytes, || unsafe { read_output(out) })
}

fn destroy<F: Fn() -> Code>(call: &DriverCall<F>, array: Address) -> Code {
    let answer = free(call, array);
    if answer.is_success() {
        vmm::array_is_gone(array);
    }
    answer
}

impl From<&ArrayDescriptor> for Shape {
    fn from(descriptor: &ArrayDescriptor) -> Self {
        let (width, height) = (descriptor.width as u64, descriptor.height as u64);
        Self { width, height, depth: 0, format: descriptor.format, channels: descriptor.channels, flags: 0 }
    }
}

impl From<&Array3dDescriptor> for Shape {
    fn from(of: &Array3dDescriptor) -> Self {
        let (width, height, depth) = (of.width as u64, of.height as u64, of.depth as u64);
        Self { width, height, depth, format: of.format, channels: of.channels, flags: of.flags }
    }
}

impl From<&OldArrayDescriptor> for Shape {
    fn from(of: &OldArrayDescriptor) -> Self {
        let (width, height) = (of.width.into(), of.height.into());
        Self { width, height, depth: 0, format: of.format, channels: of.channels, flags: 0 }
    }
}

impl From<&OldArray3dDescriptor> for Shape {
    fn from(of: &OldArray3dDescriptor) -> Self {
        let (width, height, depth) = (of.width.into(), of.height.into(), of.depth.into());
        Self { width, height, depth, format: of.format, channels: of.channels, flags: of.flags }
    }
}

hooks! { of CUDA:
    cuArrayCreate_v2(out: *mut Address, descriptor: *const ArrayDescriptor) |call| {
        // SAFETY: null or valid, because the driver reads the same descriptor.
        create(call, out, unsafe { read_input(descriptor) }.map(Shape::from), 1)
    }
    cuArray3DCreate_v2(out: *mut Address, descriptor: *const Array3dDescriptor) |call| {
        // SAFETY: null or valid, because the driver reads the same descriptor.
        create(call, out, unsafe { read_input(descriptor) }.map(Shape::from), 1)
    }
    cuMipmappedArrayCreate(out: *mut Address, descriptor: *const Array3dDescriptor, levels: c_uint) |call| {
        // SAFETY: null or valid, because the driver reads the same descriptor.
        create(call, out, unsafe { read_input(descriptor) }.map(Shape::from), levels)
    }
    cuArrayDestroy(array: Address) |call| { destroy(call, array) }
    cuMipmappedArrayDestroy(array: Address) |call| { destroy(call, array) }
    cuArrayCreate(out: *mut Address, descriptor: *const OldArrayDescriptor) |call| {
        // SAFETY: null or valid, because the driver reads the same descriptor.
        create(call, out, unsafe { read_input(descriptor) }.map(Shape::from), 1)
    }
    cuArray3DCreate(out: *mut Address, descriptor: *const OldArray3dDescriptor) |call| {
        // SAFETY: null or valid, because the driver reads the same descriptor.
        create(call, out, unsafe { read_input(descriptor) }.map(Shape::from), 1)
    }
}
