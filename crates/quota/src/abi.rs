//! ABI of the CUDA driver and NVML: error codes, handles and structures, as declared in `cuda.h` and
//! `nvml.h`.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::MaybeUninit;

/// Result of every call to the CUDA driver or NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    /// `CUDA_ERROR_INVALID_VALUE`
    pub(crate) const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_SUPPORTED`, returned if the driver does not export the function.
    pub(crate) const NOT_SUPPORTED: Self = Self(801);

    pub(crate) fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

/// `CUdeviceptr`. Also used for the handles of arrays.
pub(crate) type Address = u64;
/// 32-bit `CUdeviceptr` in the first version of the interface.
pub(crate) type OldAddress = c_uint;
/// `CUcontext`, `CUgreenCtx`, `CUstream`, `CUmemoryPool` and others; only compared, never dereferenced.
pub(crate) type Handle = usize;
/// `CUmemGenericAllocationHandle`
pub(crate) type MemoryHandle = u64;
/// `CUdevice`
pub(crate) type Device = c_int;

/// `CUmemLocation`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

impl Location {
    /// Returns the GPU of the location, or `None` for host memory.
    pub(crate) fn device(self) -> Option<Device> {
        match self.kind {
            // CU_MEM_LOCATION_TYPE_DEVICE
            1 => Some(self.id),
            // CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: the lowest byte of the id is the device.
            6 => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// Common first fields of `CUmemPoolProps` and `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    pub(crate) allocation: c_int,
    pub(crate) handles: c_int,
    pub(crate) location: Location,
}

impl Properties {
    /// Returns whether the type is `CU_MEM_ALLOCATION_TYPE_MANAGED`.
    pub(crate) fn managed(self) -> bool {
        self.allocation == 2
    }
}

/// `CUDA_ARRAY_DESCRIPTOR`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct OldArrayDescriptor {
    pub(crate) width: c_uint,
    pub(crate) height: c_uint,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct OldArray3dDescriptor {
    pub(crate) width: c_uint,
    pub(crate) height: c_uint,
    pub(crate) depth: c_uint,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUarrayMapInfo`: a part of an array, and the memory to map to it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayMap {
    pub(crate) array_kind: c_uint,
    pub(crate) array: Address,
    pub(crate) part_kind: c_uint,
    /// Level, layer, offset and extent. For the mip tail: layer, padding, offset and size.
    part: [MaybeUninit<c_uint>; 8],
    pub(crate) operation: c_int,
    pub(crate) handle_kind: c_int,
    pub(crate) handle: MemoryHandle,
    pub(crate) offset: u64,
    pub(crate) devices: c_uint,
    pub(crate) rest: [c_uint; 3],
}

impl ArrayMap {
    /// Returns whether the operation is `CU_MEM_OPERATION_TYPE_MAP`.
    pub(crate) fn maps(&self) -> bool {
        self.operation == 1
    }

    /// Returns the position in the array. Fields that the caller does not have to set are 0.
    pub(crate) fn place(&self) -> [u32; 8] {
        let whole_level = self.part_kind == 0;
        let mut place = [0; 8];
        for (at, (to, from)) in place.iter_mut().zip(&self.part).enumerate() {
            if whole_level || (at != 1 && at < 6) {
                // SAFETY: `cuda.h` requires callers to set these fields.
                *to = unsafe { from.assume_init() };
            }
        }
        place
    }

    #[cfg(test)]
    pub(crate) fn of_level(array: Address, part: [u32; 8], operation: c_int, handle: MemoryHandle) -> Self {
        let (array_kind, part_kind, handle_kind, offset, devices, rest) = (0, 0, 0, 0, 1, [0; 3]);
        let part = part.map(MaybeUninit::new);
        Self { array_kind, array, part_kind, part, operation, handle_kind, handle, offset, devices, rest }
    }
}

/// `CUipcMemHandle`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([c_char; 64]);

/// `nvmlMemory_t`
#[repr(C)]
pub(crate) struct NvmlMemory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub(crate) struct NvmlMemory2 {
    pub(crate) version: c_uint,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

const _: () = {
    assert!(size_of::<Properties>() == 16);
    assert!(size_of::<ArrayDescriptor>() == 24);
    assert!(size_of::<Array3dDescriptor>() == 40);
    assert!(size_of::<ArrayMap>() == 96);
    assert!(size_of::<NvmlMemory2>() == 40);
};
