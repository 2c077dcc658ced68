//! What happens when the library is loaded: the environment is read, before the program can change it, and the handler for
//! forked children is registered.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use crate::life;
use crate::settings::Settings;

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// What the environment asked for when the library was loaded.
pub(crate) fn settings() -> &'static Settings {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // Another library's start may call us before ours.
    // SAFETY: the C library keeps it valid, and programs change it once they run, not while libraries are loaded.
    SETTINGS.get_or_init(|| unsafe { read(environ) })
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *const *const c_char, variables: *const *const c_char) {
    // Nobody hears of our faults but by the counter.
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
    life::register_fork_handler();
    // SAFETY: the loader hands over the environment as the C library keeps it.
    SETTINGS.get_or_init(|| unsafe { read(variables) });
}

/// Understands an environment.
///
/// # Safety
/// Null, or a list of C strings that ends with null, none of which changes meanwhile.
unsafe fn read(variables: *const *const c_char) -> Settings {
    let mut texts = Vec::new();
    let mut next = variables;
    // SAFETY: the caller vouches for the list; it is walked up to the null that ends it.
    while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: the caller vouches for the strings.
        let text = unsafe { CStr::from_ptr(*text) };
        // The rest of the environment is of no concern to us, and may be long.
        if [&b"WRAPPER_"[..], b"CUDA_DEVICE_MEMORY_LIMIT"]
            .iter()
            .any(|ours| text.to_bytes().starts_with(ours))
        {
            texts.push(text.to_string_lossy());
        }
        next = next.wrapping_add(1);
    }
    Settings::read(texts.iter().filter_map(|text| text.split_once('=')))
}
