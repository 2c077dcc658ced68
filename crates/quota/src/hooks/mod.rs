//! Hooks: all driver functions that this library replaces. A hook only passes on its caller's
//! arguments; the decisions are made in other modules.

mod arrays;
mod contexts;
mod info;
mod interposition;
mod nvml;
mod plain;
pub(crate) mod pools;
mod streams;
mod uncounted_memory;
mod vmm;

use std::ffi::{CStr, c_char};
use std::io::Write;

use crate::symbol::Symbol;

/// Exports hooks with these names, and lists them in `HOOKS`.
macro_rules! hooks {
    (of $library:ident: $($name:ident($($arg:ident: $type:ty),* $(,)?) |$call:ident| $answer:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $crate::abi::Code {
                // SAFETY: the function type matches the driver's header.
                let driver = unsafe {
                    symbols::$name.function::<unsafe extern "C" fn($($type),*) -> $crate::abi::Code>()
                };
                let Some(driver) = driver else { return $crate::abi::Code::NOT_SUPPORTED };
                // SAFETY: this is the caller's own driver call, with the caller's arguments.
                let $call = &$crate::panic_guard::DriverCall::new(stringify!($name), || unsafe { driver($($arg),*) });
                $crate::panic_guard::guard($call, || $answer)
            }
        )*

        #[expect(non_upper_case_globals, reason = "each has the name of its function")]
        mod symbols {
            use crate::symbol::Symbol;
            $(pub(super) static $name: Symbol = Symbol::hooked(
                concat!(stringify!($name), "\0"),
                &crate::symbol::$library,
                super::$name as *const std::ffi::c_void,
            );)*
        }

        /// Functions that this module hooks.
        pub(crate) static HOOKS: &[&$crate::symbol::Symbol] = &[$(&symbols::$name),*];
    };
}

pub(crate) use hooks;

/// Returns all hooked functions in the CUDA driver.
pub(crate) fn of_cuda() -> impl Iterator<Item = &'static Symbol> {
    [
        plain::HOOKS,
        streams::HOOKS,
        pools::HOOKS,
        vmm::HOOKS,
        arrays::HOOKS,
        contexts::HOOKS,
        info::HOOKS,
        uncounted_memory::HOOKS,
        interposition::HOOKS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Returns the hooked function with this name.
pub(crate) fn named(name: &CStr) -> Option<&'static Symbol> {
    let mut of_cuda = of_cuda();
    of_cuda
        .find(|hook| hook.name == name)
        .or_else(|| nvml::HOOKS.iter().copied().find(|hook| hook.name == name))
}

/// Returns the number of hooked functions for which the driver exports a newer version that is not
/// hooked.
pub(crate) fn unknown() -> u64 {
    let newer = |hook: &&Symbol| {
        let name = hook.name.to_str().unwrap_or_default();
        let (name, threads) = name.strip_suffix("_ptsz").map_or((name, ""), |name| (name, "_ptsz"));
        let base = name.trim_end_matches(|char: char| char.is_ascii_digit());
        let base = base.strip_suffix("_v").unwrap_or(name);
        let mut buffer = [0; 64];
        (2..=5).any(|version| {
            buffer.fill(0);
            let _ = write!(&mut buffer[..], "{base}_v{version}{threads}");
            let Ok(name) = CStr::from_bytes_until_nul(&buffer) else { return false };
            named(name).is_none() && hook.driver_has(name)
        })
    };
    u64::try_from(of_cuda().filter(newer).count()).unwrap_or(0)
}

/// Reads a caller's argument; returns `None` for null.
///
/// # Safety
/// `pointer` must be null or valid for the duration of the call, as the driver's header requires.
unsafe fn read_input<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: guaranteed by the caller of the driver.
    unsafe { pointer.as_ref() }
}

/// Reads a value that the driver has written for its caller.
///
/// # Safety
/// The driver must have succeeded, so that `place` is valid and initialized.
unsafe fn read_output<T: Copy>(place: *const T) -> T {
    // SAFETY: the caller guarantees that the driver has written the value.
    unsafe { place.read_unaligned() }
}

/// Name of a function, as a C string.
pub(crate) type Name = *const c_char;
