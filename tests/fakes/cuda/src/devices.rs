//! The machine's GPUs and their properties.

use std::ffi::{c_char, c_int, c_uint};

use crate::code::{Answer, Code};
use crate::edge::{Out, Text, calls, put};
use crate::{contexts, settings, truth};

/// Returns the GPU with this ordinal.
pub(crate) fn gpu(device: c_int) -> Answer<usize> {
    if (0..settings::get().gpus).contains(&device) {
        usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)
    } else {
        Err(Code::INVALID_DEVICE)
    }
}

/// Returns the ordinal of this GPU.
pub(crate) fn ordinal(gpu: usize) -> c_int {
    c_int::try_from(gpu).unwrap_or(-1)
}

fn uuid(out: Out<[u8; 16]>, device: c_int) -> Answer {
    let mut uuid = *b"\0\0\0\0\0\0\x40\0\x80\0\0\0\0\0\0\0";
    uuid[15] = u8::try_from(gpu(device)?).unwrap_or(0) + 1;
    put(out, uuid)
}

/// Returns the free and the total memory of a GPU.
fn info(gpu: usize) -> (u64, u64) {
    let total = settings::get().memory;
    (total.saturating_sub(truth::of(gpu).0), total)
}

fn narrow(bytes: u64) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

fn wide(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Null means that the caller did not request the value, as with a real driver.
fn info_of_current(free: impl FnOnce(u64), total: impl FnOnce(u64)) -> Answer {
    let (is_free, has) = info(contexts::current()?.1.gpu);
    free(is_free);
    total(has);
    Ok(())
}

calls! {
    cuInit(_flags: c_uint) {
        // Initialized before threads start: a child that is forked while a thread initializes it
        // would wait indefinitely.
        truth::of(0);
        crate::attach::attach()
    }
    cuDriverGetVersion(out: Out<c_int>) { put(out, 13050) }
    cuDeviceGetCount(out: Out<c_int>) { put(out, settings::get().gpus) }
    cuDeviceGet(out: Out<c_int>, at: c_int) { gpu(at).and_then(|gpu| put(out, ordinal(gpu))) }
    cuDeviceGetName(name: Text, length: c_int, device: c_int) {
        name.put(length, &format!("Fake GPU {}", gpu(device)?))
    }
    cuDeviceGetPCIBusId(name: Text, length: c_int, device: c_int) {
        name.put(length, &format!("0000:{:02x}:00.0", gpu(device)? + 1))
    }
    cuDeviceGetUuid(out: Out<[u8; 16]>, device: c_int) { uuid(out, device) }
    cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: c_int) { uuid(out, device) }
    cuDeviceGetAttribute(out: Out<c_int>, attribute: c_int, device: c_int) {
        gpu(device)?;
        put(out, match attribute { 75 => 9, 16 => 132, 10 => 32, 1 => 1024, 76 => 0, _ => 1 })
    }
    cuDeviceCanAccessPeer(out: Out<c_int>, _from: c_int, _to: c_int) { put(out, 0) }
    cuDeviceTotalMem(out: Out<c_uint>, device: c_int) { put(out, narrow(info(gpu(device)?).1)) }
    cuDeviceTotalMem_v2(out: Out<usize>, device: c_int) { put(out, wide(info(gpu(device)?).1)) }
    cuMemGetInfo(free: Out<c_uint>, total: Out<c_uint>) {
        info_of_current(
            |is| { free.map(|free| free.write(narrow(is))); },
            |is| { total.map(|total| total.write(narrow(is))); },
        )
    }
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        info_of_current(
            |is| { free.map(|free| free.write(wide(is))); },
            |is| { total.map(|total| total.write(wide(is))); },
        )
    }
    cuGetErrorName(code: Code, out: Out<*const c_char>) {
        put(out, code.texts().ok_or(Code::INVALID_VALUE)?.0.as_ptr())
    }
    cuGetErrorString(code: Code, out: Out<*const c_char>) {
        put(out, code.texts().ok_or(Code::INVALID_VALUE)?.1.as_ptr())
    }
    fakeCudaUsed(out: Out<u64>, device: c_int) { put(out, truth::of(gpu(device)?).0) }
    fakeCudaPeak(out: Out<u64>, device: c_int) { put(out, truth::of(gpu(device)?).1) }
}
