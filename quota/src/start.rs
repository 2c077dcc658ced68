//! What happens when the library is loaded: the environment is read, and the handler for forked children is registered. The limit
//! alone is read later, when it is first needed, since a program may set it itself.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::life;
use crate::settings::{LIMIT, Settings};

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// The environment when the library was loaded.
struct Loaded {
    /// Its variables that are ours, as `NAME=VALUE`.
    variables: Vec<String>,
    settings: Settings,
}

/// The settings with the limit that the program has set; null until the limit is needed.
static WITH_LIMIT: AtomicPtr<Settings> = AtomicPtr::new(ptr::null_mut());

/// What the environment asked for when the library was loaded.
pub(crate) fn settings() -> &'static Settings {
    &loaded().settings
}

fn loaded() -> &'static Loaded {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // Another library's start may call us before ours.
    // SAFETY: the C library keeps it valid, and programs change it once they run, not while libraries are loaded.
    LOADED.get_or_init(|| unsafe { read(environ) })
}

/// The settings to take limits from: [`LIMIT`] is that of now when this is first called in a process, as cuda-wrapper reads it in
/// `cuInit`. If processes share a quota, it is that of the start: the quota is not one program's to set.
pub(crate) fn limits() -> &'static Settings {
    let loaded = loaded();
    if loaded.settings.shared.is_some() {
        return &loaded.settings;
    }
    let known = WITH_LIMIT.load(Ordering::Acquire);
    // SAFETY: null, or from a box that is never freed.
    unsafe { known.as_ref() }.unwrap_or_else(|| read_limit(loaded))
}

/// Without a lock, which a child of a fork could find held for ever.
#[cold]
fn read_limit(loaded: &Loaded) -> &'static Settings {
    // SAFETY: a C string; a program that changes its environment meanwhile breaks every `getenv`, the driver's too.
    let value = unsafe { libc::getenv(c"WRAPPER_MAX_MEMORY".as_ptr()) };
    // SAFETY: null, or a C string, which is copied at once.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned());
    // A variable that was removed, as by a program that clears its environment, has the value that it had at the start.
    let kept = |name: &str| name != LIMIT || value.is_none();
    let others =
        loaded.variables.iter().filter_map(|text| text.split_once('=')).filter(|(name, _)| kept(name));
    let new = Settings::read(others.chain(value.as_deref().map(|value| (LIMIT, value))));
    let new = Box::into_raw(Box::new(new));
    match WITH_LIMIT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: from a box that is never freed from now on.
        Ok(_) => unsafe { &*new },
        // SAFETY: nobody else has ours, and the first one is never freed.
        Err(first) => unsafe {
            drop(Box::from_raw(new));
            &*first
        },
    }
}

/// A child of a fork reads the limit again.
pub(crate) fn forked() {
    WITH_LIMIT.store(ptr::null_mut(), Ordering::Release);
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
    LOADED.get_or_init(|| unsafe { read(variables) });
}

/// Understands an environment.
///
/// # Safety
/// Null, or a list of C strings that ends with null, none of which changes meanwhile.
unsafe fn read(variables: *const *const c_char) -> Loaded {
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
            texts.push(text.to_string_lossy().into_owned());
        }
        next = next.wrapping_add(1);
    }
    let settings = Settings::read(texts.iter().filter_map(|text| text.split_once('=')));
    Loaded { variables: texts, settings }
}
