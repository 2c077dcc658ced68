//! Arrays, mipmapped or not, in both versions.

use std::ffi::c_uint;

use super::{given, hooks, told, vmm};
use crate::abi::{
    Address, Array3dDescriptor, ArrayDescriptor, Code, OldArray3dDescriptor, OldArrayDescriptor,
};
use crate::account::{Belongs, allocate, free};
use crate::life;
use crate::shield::Ask;
use crate::sizes::Shape;

fn create<F: Fn() -> Code>(ask: &Ask<F>, out: *const Address, shape: Option<Shape>, levels: u32) -> Code {
    let Some((life, shape)) = life::get().zip(shape) else { return ask.now() };
    let bytes = shape.bytes(levels);
    // SAFETY: asked for once the driver succeeded.
    allocate(ask, (life, life.current_gpu(), Belongs::ToContext), bytes, || unsafe { told(out) })
}

fn destroy<F: Fn() -> Code>(ask: &Ask<F>, array: Address) -> Code {
    let answer = free(ask, array);
    if answer.is_success() {
        vmm::array_is_gone(array);
    }
    answer
}

impl From<&ArrayDescriptor> for Shape {
    fn from(of: &ArrayDescriptor) -> Self {
        let (width, height) = (of.width as u64, of.height as u64);
        Self { width, height, depth: 0, format: of.format, channels: of.channels, flags: 0 }
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
    cuArrayCreate_v2(out: *mut Address, descriptor: *const ArrayDescriptor) |ask| {
        // SAFETY: the driver reads it too.
        create(ask, out, unsafe { given(descriptor) }.map(Shape::from), 1)
    }
    cuArray3DCreate_v2(out: *mut Address, descriptor: *const Array3dDescriptor) |ask| {
        // SAFETY: the driver reads it too.
        create(ask, out, unsafe { given(descriptor) }.map(Shape::from), 1)
    }
    cuMipmappedArrayCreate(out: *mut Address, descriptor: *const Array3dDescriptor, levels: c_uint) |ask| {
        // SAFETY: the driver reads it too.
        create(ask, out, unsafe { given(descriptor) }.map(Shape::from), levels)
    }
    cuArrayDestroy(array: Address) |ask| { destroy(ask, array) }
    cuMipmappedArrayDestroy(array: Address) |ask| { destroy(ask, array) }
    cuArrayCreate(out: *mut Address, descriptor: *const OldArrayDescriptor) |ask| {
        // SAFETY: the driver reads it too.
        create(ask, out, unsafe { given(descriptor) }.map(Shape::from), 1)
    }
    cuArray3DCreate(out: *mut Address, descriptor: *const OldArray3dDescriptor) |ask| {
        // SAFETY: the driver reads it too.
        create(ask, out, unsafe { given(descriptor) }.map(Shape::from), 1)
    }
}
