//! The settings, from the environment when the library was loaded. Only the limit is read later, at its first use, because
//! a program may set it itself.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::settings::{LIMIT, QuotaSettings};

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// The environment when the library was loaded.
struct Loaded {
    /// The relevant variables, as `NAME=VALUE`.
    variables: Vec<String>,
    settings: QuotaSettings,
}

/// The settings with the limit that the program has set; null until the limit is needed.
static WITH_LIMIT: AtomicPtr<QuotaSettings> = AtomicPtr::new(ptr::null_mut());

/// The settings from the environment at the time of loading.
pub(crate) fn settings() -> &'static QuotaSettings {
    &loaded().settings
}

fn loaded() -> &'static Loaded {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // The initializer of another library may call a hook before ours has run.
    // SAFETY: the C library keeps it valid; programs change it after start, not while libraries are loaded.
    LOADED.get_or_init(|| unsafe { read(environ) })
}

/// The settings with the current limits: [`LIMIT`] is read when this is first called in a process, as cuda-wrapper does
/// in `cuInit`. For a shared quota the value at the start applies, because a program must not change the quota of
/// others.
pub(crate) fn limits() -> &'static QuotaSettings {
    let loaded = loaded();
    if loaded.settings.shared.is_some() {
        return &loaded.settings;
    }
    let known = WITH_LIMIT.load(Ordering::Acquire);
    // SAFETY: null, or from a box that is never freed.
    unsafe { known.as_ref() }.unwrap_or_else(|| read_limit(loaded))
}

/// Reads the limit without a lock, because a child of a fork could find a lock held forever.
#[cold]
fn read_limit(loaded: &Loaded) -> &'static QuotaSettings {
    // SAFETY: a C string. A program that changes its environment concurrently breaks every `getenv`, including the
    // driver's.
    let value = unsafe { libc::getenv(c"WRAPPER_MAX_MEMORY".as_ptr()) };
    // SAFETY: null, or a C string, which is copied at once.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned());
    // If the program has removed the variable, for example by clearing its environment, the value at the start applies.
    let kept = |name: &str| name != LIMIT || value.is_none();
    let others =
        loaded.variables.iter().filter_map(|text| text.split_once('=')).filter(|(name, _)| kept(name));
    let new = QuotaSettings::read(others.chain(value.as_deref().map(|value| (LIMIT, value))));
    let new = Box::into_raw(Box::new(new));
    match WITH_LIMIT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: from a box that is not freed from now on.
        Ok(_) => unsafe { &*new },
        // SAFETY: no other thread has ours, and the first one is never freed.
        Err(first) => unsafe {
            drop(Box::from_raw(new));
            &*first
        },
    }
}

/// Makes a child of a fork read the limit again.
pub(crate) fn forked() {
    WITH_LIMIT.store(ptr::null_mut(), Ordering::Release);
}

/// Reads the settings, when the library is loaded.
///
/// # Safety
/// Null, or a null-terminated list of C strings that do not change during the call.
pub(crate) unsafe fn load(variables: *const *const c_char) {
    // SAFETY: guaranteed by the caller.
    LOADED.get_or_init(|| unsafe { read(variables) });
}

/// Reads the settings from an environment.
///
/// # Safety
/// Null, or a null-terminated list of C strings that do not change during the call.
unsafe fn read(variables: *const *const c_char) -> Loaded {
    let mut texts = Vec::new();
    let mut next = variables;
    // SAFETY: the caller guarantees a valid list, which is read up to its terminating null.
    while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: the caller guarantees valid strings.
        let text = unsafe { CStr::from_ptr(*text) };
        // Other variables are irrelevant and may be long.
        if [&b"WRAPPER_"[..], b"CUDA_DEVICE_MEMORY_LIMIT"]
            .iter()
            .any(|prefix| text.to_bytes().starts_with(prefix))
        {
            texts.push(text.to_string_lossy().into_owned());
        }
        next = next.wrapping_add(1);
    }
    let settings = QuotaSettings::read(texts.iter().filter_map(|text| text.split_once('=')));
    Loaded { variables: texts, settings }
}
