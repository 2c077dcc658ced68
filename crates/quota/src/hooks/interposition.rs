//! Symbol interposition, which makes programs call the hooks instead of the driver. Directly linked calls
//! resolve to hooks because the library is preloaded. `dlsym` and `cuGetProcAddress` are replaced here and
//! return hooks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::{self, NonNull};

use super::{Name, hooks};
use crate::abi::Code;
use crate::environment;
use crate::hooks;
use crate::panic_guard::DriverCall;
use crate::symbol::{Symbol, dlsym as real, forget_error};

/// Result of `resolve` for the replaced `dlsym`: a pointer to return, or the `dlsym` to continue with.
#[repr(C)]
struct Resolution {
    pointer: *mut c_void,
    continue_in: Option<crate::symbol::Dlsym>,
}

/// Resolves a name. For names from other libraries it takes no lock and uses neither the heap nor
/// thread-local storage.
extern "C" fn resolve(handle: *mut c_void, name: *const c_char) -> Resolution {
    let continue_in = Resolution { pointer: ptr::null_mut(), continue_in: real() };
    // SAFETY: the caller of `dlsym` guarantees null or a C string.
    if !unsafe { may_be_ours(name) } {
        return continue_in;
    }
    // SAFETY: the caller of `dlsym` guarantees a C string, and the name is not null.
    catch_unwind(|| resolve_hook(handle, unsafe { CStr::from_ptr(name) }))
        .ok()
        .flatten()
        .unwrap_or(continue_in)
}

/// Returns whether a name could be that of a function in the CUDA driver or NVML.
///
/// # Safety
/// `name` must be null or a C string.
unsafe fn may_be_ours(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    let begins = |prefix: &[u8]| {
        // SAFETY: the string is read at most up to its terminating zero, which no prefix contains.
        prefix.iter().enumerate().all(|(at, byte)| unsafe { name.cast::<u8>().add(at).read() } == *byte)
    };
    begins(b"cu") || begins(b"nvml")
}

/// Returns the result for a hooked name, or `None` to continue in the C library.
fn resolve_hook(handle: *mut c_void, name: &CStr) -> Option<Resolution> {
    let hook = hooks::named(name)?;
    // SAFETY: the lookup is the caller's own, except that `RTLD_NEXT` then means the libraries after this
    // one.
    let found = unsafe { real()?(handle, name.as_ptr()) };
    let answer = |pointer| Some(Resolution { pointer, continue_in: None });
    // The driver might be in a scope of the caller that cannot be searched from this library.
    let not_from_here = handle == libc::RTLD_NEXT && found.is_null();
    match hook.address().map(NonNull::as_ptr) {
        Some(driver) if found == driver || found == hook.hook() || not_from_here => {
            forget_error();
            answer(if is_requested(hook) { hook.hook() } else { driver })
        }
        // Without this library the lookup would fail. A program that tests for a driver must not find a
        // hook.
        None if found == hook.hook() || not_from_here => {
            // SAFETY: the name is a C string. The C library does not define these functions, so the lookup
            // fails and sets `dlerror`.
            unsafe { real()?(libc_handle()?, name.as_ptr()) };
            answer(ptr::null_mut())
        }
        // The symbol is from another library, or the C library reports an error.
        _ => None,
    }
}

/// Returns whether the settings enable a hook.
fn is_requested(hook: &Symbol) -> bool {
    let settings = environment::settings();
    !settings.disabled && (settings.lie_nvml || !hook.is_of_nvml())
}

/// Returns a handle to the C library itself, for a lookup that is meant to fail.
fn libc_handle() -> Option<*mut c_void> {
    // SAFETY: the name is a C string, and the C library is loaded in every process and is never unloaded.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

/// Replaces the C library's `dlsym`. Other symbols are resolved by a tail call with the caller's own return
/// address, because `RTLD_NEXT` and `RTLD_DEFAULT` depend on the calling library.
///
/// # Safety
/// The requirements of the C library's `dlsym` apply.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {resolve}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rdx, rdx",
        "jz 2f",
        "jmp rdx",
        "2:",
        "ret",
        ".cfi_endproc",
        resolve = sym resolve,
    )
}

/// Replaces the C library's `dlsym` on aarch64, where the arguments and the return address are in registers.
///
/// # Safety
/// The requirements of the C library's `dlsym` apply.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "bl {resolve}",
        "mov x17, x0",
        "mov x16, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        ".cfi_endproc",
        resolve = sym resolve,
    )
}

/// Calls the driver for the address of a function, and replaces it with the hook's address. For every
/// requested version and variant, the driver returns exactly the address that `dlsym` returns.
fn replace_address<F: Fn() -> Code>(call: &DriverCall<F>, out: *mut *mut c_void) -> Code {
    let answer = call.result();
    // SAFETY: the pointer is null or points to the caller's variable, which the driver has written.
    if let (true, Some(out)) = (answer.is_success(), unsafe { out.as_mut() }) {
        let is_returned = |hook: &&Symbol| hook.address().is_some_and(|driver| driver.as_ptr() == *out);
        if let Some(hook) = hooks::of_cuda().find(is_returned) {
            *out = hook.hook();
        }
    }
    answer
}

hooks! { of CUDA:
    cuGetProcAddress(name: Name, out: *mut *mut c_void, version: c_int, flags: u64) |call| {
        replace_address(call, out)
    }
    cuGetProcAddress_v2(
        name: Name, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int
    ) |call| { replace_address(call, out) }
}
