//! `cuGetProcAddress`: looks up functions by name, version and flags. Returns exactly the address that `dlsym`
//! returns for the function found.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::code::{Answer, Code};
use crate::edge::{Export, Out, calls};
use crate::{arrays, contexts, devices, graphs, memory, modules, old, others, pools, settings, streams, vmm};

/// Flag that selects the per-thread flavour of the default stream.
const PER_THREAD: u64 = 2;

/// `CUdriverProcAddressQueryResult`
const FOUND: c_int = 0;
const NO_SUCH_NAME: c_int = 1;
const TOO_OLD: c_int = 2;

/// Names whose function depends on the CUDA version: the name, a version, and the function since this version.
const VERSIONS: &[(&str, c_int, &str)] = &[
    ("cuArray3DCreate", 3020, "cuArray3DCreate_v2"),
    ("cuArrayCreate", 3020, "cuArrayCreate_v2"),
    ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
    ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
    ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    ("cuCtxDestroy", 4000, "cuCtxDestroy_v2"),
    ("cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"),
    ("cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"),
    ("cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"),
    ("cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"),
    ("cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"),
    ("cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2"),
    ("cuDevicePrimaryCtxSetFlags", 11000, "cuDevicePrimaryCtxSetFlags_v2"),
    ("cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"),
    ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
    ("cuGraphAddNode", 12030, "cuGraphAddNode_v2"),
    ("cuGraphAddNode", 13040, "cuGraphAddNode_v3"),
    ("cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"),
    ("cuMemAlloc", 3020, "cuMemAlloc_v2"),
    ("cuMemAllocPitch", 3020, "cuMemAllocPitch_v2"),
    ("cuMemFree", 3020, "cuMemFree_v2"),
    ("cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2"),
    ("cuMemGetInfo", 3020, "cuMemGetInfo_v2"),
    ("cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2"),
    ("cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2"),
    ("cuMemsetD8", 3020, "cuMemsetD8_v2"),
    ("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"),
    ("cuStreamDestroy", 4000, "cuStreamDestroy_v2"),
    // Functions that were added in a version, with unchanged names.
    ("cuMemAllocAsync", 11020, "cuMemAllocAsync"),
    ("cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync"),
    ("cuMemCreate", 10020, "cuMemCreate"),
    ("cuMemFreeAsync", 11020, "cuMemFreeAsync"),
    ("cuMemMapArrayAsync", 11010, "cuMemMapArrayAsync"),
];

fn export(name: &str) -> Option<&'static Export> {
    let all = [
        arrays::EXPORTS,
        contexts::EXPORTS,
        devices::EXPORTS,
        graphs::EXPORTS,
        memory::EXPORTS,
        modules::EXPORTS,
        old::EXPORTS,
        others::EXPORTS,
        pools::EXPORTS,
        streams::EXPORTS,
        vmm::EXPORTS,
        EXPORTS,
    ];
    let found = all.into_iter().flatten().find(|export| export.0 == name);
    found.filter(|_| !settings::get().lacks(name))
}

/// Returns the newest function with this name that exists in the caller's version.
fn find(name: &str, version: c_int, flags: u64) -> Result<*const c_void, c_int> {
    let mut rows = VERSIONS.iter().filter(|row| row.0 == name).peekable();
    let symbol = if rows.peek().is_some() {
        rows.rfind(|row| row.1 <= version).map(|row| row.2).or(export(name).map(|export| export.0).filter(
            // Before the listed version, the name meant the function with exactly this name, unless that function
            // was itself added in a listed version.
            |name| !VERSIONS.iter().any(|row| row.2 == *name),
        ))
    } else {
        Some(name)
    };
    let symbol = symbol.ok_or(TOO_OLD)?;
    let threads = (flags == PER_THREAD).then(|| export(&format!("{symbol}_ptsz"))).flatten();
    threads.or_else(|| export(symbol)).map(|export| export.1).ok_or(NO_SUCH_NAME)
}

fn answer(name: *const c_char, out: Out<*const c_void>, version: c_int, flags: u64) -> Answer<c_int> {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let out = out.ok_or(Code::INVALID_VALUE)?;
    // SAFETY: the pointer is not null, so `cuda.h` requires the caller to pass a C string that lives as long
    // as the call.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::INVALID_VALUE)?;
    let found = find(name, version, flags);
    out.write(found.unwrap_or(ptr::null()));
    Ok(found.err().unwrap_or(FOUND))
}

calls! {
    cuGetProcAddress(name: *const c_char, out: Out<*const c_void>, version: c_int, flags: u64) {
        match answer(name, out, version, flags)? { FOUND => Ok(()), _ => Err(Code::NOT_FOUND) }
    }
    cuGetProcAddress_v2(
        name: *const c_char, out: Out<*const c_void>, version: c_int, flags: u64, status: Out<c_int>
    ) {
        match (answer(name, out, version, flags)?, status) {
            (found, Some(status)) => { status.write(found); Ok(()) }
            (FOUND, None) => Ok(()),
            (_, None) => Err(Code::NOT_FOUND),
        }
    }
    cuGetExportTable(_out: *mut *const c_void, _id: *const c_void) { Err(Code::NOT_FOUND) }
}
