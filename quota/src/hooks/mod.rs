//! The hooks: every function of the driver's that is answered here. Each hands its caller's question on, and decides
//! nothing that could be decided elsewhere.

mod arrays;
mod contexts;
mod elsewhere;
mod info;
mod nvml;
mod plain;
pub(crate) mod pools;
mod streams;
mod vmm;

use std::ffi::{CStr, c_char};
use std::io::Write;

use crate::doors;
use crate::symbol::Symbol;

/// Exports functions of these names in front of the driver's, and lists them.
macro_rules! hooks {
    (of $library:ident: $($name:ident($($arg:ident: $type:ty),* $(,)?) |$ask:ident| $answer:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $crate::abi::Code {
                // SAFETY: the type is that of the driver's header, as it is here.
                let driver = unsafe {
                    symbols::$name.function::<unsafe extern "C" fn($($type),*) -> $crate::abi::Code>()
                };
                let Some(driver) = driver else { return $crate::abi::Code::NOT_SUPPORTED };
                // SAFETY: the caller asked this of the driver, with these arguments.
                let $ask = &$crate::shield::Ask::new(stringify!($name), || unsafe { driver($($arg),*) });
                $crate::shield::shield($ask, || $answer)
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

        /// The functions that are answered here.
        pub(crate) static HOOKS: &[&$crate::symbol::Symbol] = &[$(&symbols::$name),*];
    };
}

pub(crate) use hooks;

/// All functions of the driver proper that are answered here.
pub(crate) fn of_cuda() -> impl Iterator<Item = &'static Symbol> {
    [
        plain::HOOKS,
        streams::HOOKS,
        pools::HOOKS,
        vmm::HOOKS,
        arrays::HOOKS,
        contexts::HOOKS,
        info::HOOKS,
        elsewhere::HOOKS,
        doors::HOOKS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// The function of this name, if it is answered here.
pub(crate) fn named(name: &CStr) -> Option<&'static Symbol> {
    let mut of_cuda = of_cuda();
    of_cuda
        .find(|hook| hook.name == name)
        .or_else(|| nvml::HOOKS.iter().copied().find(|hook| hook.name == name))
}

/// How many newer versions of these functions the driver has that are not answered here.
pub(crate) fn unknown() -> u64 {
    let newer = |hook: &&Symbol| {
        let name = hook.name.to_str().unwrap_or_default();
        let (name, threads) = name.strip_suffix("_ptsz").map_or((name, ""), |name| (name, "_ptsz"));
        let base = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
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

/// What a caller hands over to be read; null is `None`.
///
/// # Safety
/// Null, or it points to what the driver's header says for as long as the call lasts.
unsafe fn given<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: the caller of the driver vouches for it.
    unsafe { pointer.as_ref() }
}

/// What the driver has just put at the caller's.
///
/// # Safety
/// The driver succeeded, so there is a place, and something in it.
unsafe fn told<T: Copy>(place: *const T) -> T {
    // SAFETY: the caller of this vouches for it.
    unsafe { place.read_unaligned() }
}

/// A name as C has it.
pub(crate) type Name = *const c_char;
