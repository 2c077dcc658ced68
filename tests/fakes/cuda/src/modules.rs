//! PTX modules and their kernels. The text is not compiled. A kernel only waits for a few milliseconds.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::time::Duration;

use crate::code::{Answer, Code};
use crate::contexts;
use crate::edge::{Out, calls, put};
use crate::state::{self, Handle};

/// Duration of a kernel or a large copy.
pub(crate) const RUNS: Duration = Duration::from_millis(5);

fn text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the pointer is not null, so `cuda.h` requires the caller to pass a C string that lives as long
    // as the call.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_VALUE)
}

calls! {
    cuModuleLoadData(out: Out<Handle>, image: *const c_char) {
        contexts::current()?;
        if !text(image)?.starts_with(".version ") {
            return Err(Code::INVALID_VALUE);
        }
        put(out, state::lock().name())
    }
    cuModuleGetFunction(out: Out<Handle>, module: Handle, name: *const c_char) {
        if module == 0 || text(name)?.is_empty() {
            return Err(Code::INVALID_HANDLE);
        }
        put(out, state::lock().name())
    }
    cuLaunchKernel(
        function: Handle, _grid_x: c_uint, _grid_y: c_uint, _grid_z: c_uint, block_x: c_uint, _block_y: c_uint,
        _block_z: c_uint, _shared: c_uint, _stream: Handle, _parameters: *const *const c_void,
        _extra: *const *const c_void
    ) {
        contexts::current()?;
        if function == 0 || block_x == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        std::thread::park_timeout(RUNS);
        Ok(())
    }
}
