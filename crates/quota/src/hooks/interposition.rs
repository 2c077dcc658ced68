//! Symbol interposition: how programs get our functions instead of the driver's. Direct links resolve to ours because
//! the library is preloaded. `dlsym` and `cuGetProcAddress` are hooked here and return our function in place of the
//! driver's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::{self, NonNull};

use super::{Name, hooks};
use crate::abi::Code;
use crate::environment;
use crate::hooks;
use crate::panic_guard::DriverCall;
use crate::symbol::{Symbol, dlsym as real, forget_error};

/// The result of our `dlsym`: a pointer to return, or the `dlsym` to continue in.
#[repr(C)]
struct Resolution {
    pointer: *mut c_void,
    continue_in: Option<crate::symbol::Dlsym>,
}

/// Resolves a name. For names of other libraries it takes no locks and uses no heap or thread-local storage.
extern "C" fn resolve(handle: *mut c_void, name: *const c_char) -> Resolution {
    let continue_in = Resolution { pointer: ptr::null_mut(), continue_in: real() };
    // SAFETY: the caller of `dlsym` vouches for the name.
    if !unsafe { may_be_ours(name) } {
        return continue_in;
    }
    // SAFETY: the same.
    catch_unwind(|| resolve_hook(handle, unsafe { CStr::from_ptr(name) }))
        .ok()
        .flatten()
        .unwrap_or(continue_in)
}

/// Whether a name may be a function of either driver.
///
/// # Safety
/// Null, or a C string.
unsafe fn may_be_ours(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    let begins = |prefix: &[u8]| {
        // SAFETY: it is read at most up to the terminating zero, which is in no prefix.
        prefix.iter().enumerate().all(|(at, byte)| unsafe { name.cast::<u8>().add(at).read() } == *byte)
    };
    begins(b"cu") || begins(b"nvml")
}

/// The result for a hooked name; `None` to continue in the C library.
fn resolve_hook(handle: *mut c_void, name: &CStr) -> Option<Resolution> {
    let hook = hooks::named(name)?;
    // SAFETY: the caller's own lookup, except that `RTLD_NEXT` means what follows this library.
    let found = unsafe { real()?(handle, name.as_ptr()) };
    let answer = |pointer| Some(Resolution { pointer, continue_in: None });
    // The driver may be in a scope of the caller that cannot be searched from here.
    let not_from_here = handle == libc::RTLD_NEXT && found.is_null();
    match hook.address().map(NonNull::as_ptr) {
        Some(driver) if found == driver || found == hook.hook() || not_from_here => {
            forget_error();
            answer(if is_requested(hook) { hook.hook() } else { driver })
        }
        // Without this library the symbol would not be found. Programs that test for a driver must not find ours.
        None if found == hook.hook() || not_from_here => {
            // SAFETY: a C string. The C library lacks the driver's functions, so this fails and sets `dlerror`.
            unsafe { real()?(libc_handle()?, name.as_ptr()) };
            answer(ptr::null_mut())
        }
        // The symbol of another library, or an error that the C library reports.
        _ => None,
    }
}

/// Whether the settings enable a hook.
fn is_requested(hook: &Symbol) -> bool {
    let settings = environment::settings();
    !settings.disabled && (settings.lie_nvml || !hook.is_of_nvml())
}

/// A handle of the C library itself, for a lookup that fails.
fn libc_handle() -> Option<*mut c_void> {
    // SAFETY: a C string; the library is loaded in every process and is never unloaded.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

/// Replaces the C library's `dlsym`. Other symbols are resolved by a tail call with the caller's own return address,
/// because `RTLD_NEXT` and `RTLD_DEFAULT` depend on the calling library.
///
/// # Safety
/// As the C library says.
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

/// The same for aarch64, where arguments and return address are in registers.
///
/// # Safety
/// As the C library says.
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

/// Calls the driver for an address, and replaces it by our hook's. The driver returns exactly the address that `dlsym`
/// returns, whichever version and flavour was requested.
fn replace_address<F: Fn() -> Code>(call: &DriverCall<F>, out: *mut *mut c_void) -> Code {
    let answer = call.result();
    // SAFETY: null, or the caller's.
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
