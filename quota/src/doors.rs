//! The doors: how a program comes by the driver's functions. Linked ones find ours first, since we are preloaded; `dlsym`
//! and `cuGetProcAddress` are answered here, with our function wherever the driver's would have been told.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::{self, NonNull};

use crate::abi::Code;
use crate::hooks::{self, Name, hooks};
use crate::shield::Ask;
use crate::start;
use crate::symbol::{Symbol, dlsym as real, forget_error};

/// What `dlsym` does: returns a pointer, or goes on as another `dlsym` as if that had been called.
#[repr(C)]
struct Pick {
    pointer: *mut c_void,
    go_on: Option<crate::symbol::Dlsym>,
}

/// Decides. What is not ours takes no lock, no memory and no storage of the thread's.
extern "C" fn pick(handle: *mut c_void, name: *const c_char) -> Pick {
    let go_on = Pick { pointer: ptr::null_mut(), go_on: real() };
    // SAFETY: the caller of `dlsym` vouches for the name.
    if !unsafe { may_be_ours(name) } {
        return go_on;
    }
    // SAFETY: the same.
    catch_unwind(|| choose(handle, unsafe { CStr::from_ptr(name) })).ok().flatten().unwrap_or(go_on)
}

/// Whether a name is one of either driver's.
///
/// # Safety
/// Null, or a C string.
unsafe fn may_be_ours(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    let begins = |prefix: &[u8]| {
        // SAFETY: it is read up to the zero that ends it, which is in no prefix.
        prefix.iter().enumerate().all(|(at, letter)| unsafe { name.cast::<u8>().add(at).read() } == *letter)
    };
    begins(b"cu") || begins(b"nvml")
}

/// What is told where somebody asks for one of ours; `None` where it is not.
fn choose(handle: *mut c_void, name: &CStr) -> Option<Pick> {
    let hook = hooks::named(name)?;
    // SAFETY: what the caller asks, but that `RTLD_NEXT` means what comes after us here.
    let found = unsafe { real()?(handle, name.as_ptr()) };
    let answer = |pointer| Some(Pick { pointer, go_on: None });
    // The driver may be in a scope of the caller's that cannot be searched from here.
    let not_from_here = handle == libc::RTLD_NEXT && found.is_null();
    match hook.address().map(NonNull::as_ptr) {
        Some(driver) if found == driver || found == hook.hook() || not_from_here => {
            forget_error();
            answer(if is_requested(hook) { hook.hook() } else { driver })
        }
        // Without us it would not be found, so it is not: who looks whether there is a driver must not find us.
        None if found == hook.hook() || not_from_here => {
            // SAFETY: a C string. The C library has none of the driver's functions, so this fails, and says why.
            unsafe { real()?(libc_handle()?, name.as_ptr()) };
            answer(ptr::null_mut())
        }
        // It is somebody else's, or an error that the C library tells.
        _ => None,
    }
}

/// Whether the environment asks for a hook.
fn is_requested(hook: &Symbol) -> bool {
    let settings = start::settings();
    !settings.disabled && (settings.lie_nvml || !hook.is_of_nvml())
}

/// The C library itself, for a look that fails.
fn libc_handle() -> Option<*mut c_void> {
    // SAFETY: a C string; it is loaded in every process, and so stays where it is.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

/// Stands in front of the C library's. What is not ours goes on there with the caller's own return address, by which
/// it knows who asks: `RTLD_NEXT` and `RTLD_DEFAULT` depend on that.
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
        "call {pick}",
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
        pick = sym pick,
    )
}

/// The same, where arguments and return address are in registers.
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
        "bl {pick}",
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
        pick = sym pick,
    )
}

/// Lets the driver tell an address, and tells ours in its place where we stand in front of that function. The driver
/// gives exactly the address that `dlsym` gives, whatever the version and flavour that were asked for.
fn told<F: Fn() -> Code>(ask: &Ask<F>, out: *mut *mut c_void) -> Code {
    let answer = ask.now();
    // SAFETY: null, or the caller's.
    if let (true, Some(out)) = (answer.is_success(), unsafe { out.as_mut() }) {
        let is_told = |hook: &&Symbol| hook.address().is_some_and(|driver| driver.as_ptr() == *out);
        if let Some(hook) = hooks::of_cuda().find(is_told) {
            *out = hook.hook();
        }
    }
    answer
}

hooks! { of CUDA:
    cuGetProcAddress(name: Name, out: *mut *mut c_void, version: c_int, flags: u64) |ask| { told(ask, out) }
    cuGetProcAddress_v2(
        name: Name, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int
    ) |ask| { told(ask, out) }
}
