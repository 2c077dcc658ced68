//! Reads the settings from the environment at load time. Only the limit is read later, because a program may
//! set it.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::settings::{LIMIT, QuotaSettings};

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// Environment when the library was loaded.
struct Loaded {
    /// Variables of this library, as `NAME=VALUE`.
    variables: Vec<String>,
    settings: QuotaSettings,
}

/// Settings with the limit that the program has set. Null until the limit is first needed.
static WITH_LIMIT: AtomicPtr<QuotaSettings> = AtomicPtr::new(ptr::null_mut());

/// Returns the settings from the environment at load time.
pub(crate) fn settings() -> &'static QuotaSettings {
    &loaded().settings
}

fn loaded() -> &'static Loaded {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // Another library's initializer may call a hook before `load` runs, so the environment is read here too.
    // SAFETY: the C library keeps `environ` valid. Programs change it after they start, not while libraries
    // are loaded.
    LOADED.get_or_init(|| unsafe { read(environ) })
}

/// Returns the settings with the current limit. The program may set [`LIMIT`] itself, so the variable is
/// read at the first call in a process, as cuda-wrapper does in `cuInit`. For a shared quota, the value at
/// load time applies, because one program must not change the quota of other programs.
pub(crate) fn limits() -> &'static QuotaSettings {
    let loaded = loaded();
    if loaded.settings.shared.is_some() || loaded.settings.disabled {
        return &loaded.settings;
    }
    let known = WITH_LIMIT.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or from a box that is never freed.
    unsafe { known.as_ref() }.unwrap_or_else(|| read_limit(loaded))
}

/// Reads the limit without a lock: a forked child could inherit a lock that is never released.
#[cold]
fn read_limit(loaded: &Loaded) -> &'static QuotaSettings {
    // SAFETY: the name is a C string. A program that changes its environment at the same time would break
    // the driver's own `getenv` as well.
    let value = unsafe { libc::getenv(c"WRAPPER_MAX_MEMORY".as_ptr()) };
    // SAFETY: the pointer is not null, so it points to a C string, which is copied at once.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned());
    // If the program has removed the variable, for example by clearing its environment, the value at load
    // time applies.
    let kept = |name: &str| name != LIMIT || value.is_none();
    let others =
        loaded.variables.iter().filter_map(|text| text.split_once('=')).filter(|(name, _)| kept(name));
    let new = QuotaSettings::read(others.chain(value.as_deref().map(|value| (LIMIT, value))));
    let new = Box::into_raw(Box::new(new));
    match WITH_LIMIT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the pointer is from a box that is never freed.
        Ok(_) => unsafe { &*new },
        // SAFETY: no other thread has a pointer to the new box, and the stored box is never freed.
        Err(first) => unsafe {
            drop(Box::from_raw(new));
            &*first
        },
    }
}

/// Makes a forked child read the limit again.
pub(crate) fn forked() {
    WITH_LIMIT.store(ptr::null_mut(), Ordering::Release);
}

/// Reads the settings when the library is loaded.
///
/// # Safety
/// `variables` must be null or a null-terminated list of C strings that do not change during the call.
pub(crate) unsafe fn load(variables: *const *const c_char) {
    // SAFETY: guaranteed by the caller.
    LOADED.get_or_init(|| unsafe { read(variables) });
}

/// Returns whether the program has privileges that its user lacks, such as a setuid program. Its user controls the
/// environment, but must not control the program, nor have it write files with its privileges.
fn is_privileged() -> bool {
    // SAFETY: the function only reads a value that the kernel has passed to the program.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Reads the settings from an environment. In a privileged program, no variable is read, and the library passes all
/// calls to the driver.
///
/// # Safety
/// `variables` must be null or a null-terminated list of C strings that do not change during the call.
unsafe fn read(variables: *const *const c_char) -> Loaded {
    if is_privileged() {
        return Loaded { variables: Vec::new(), settings: QuotaSettings::disabled() };
    }
    let mut texts = Vec::new();
    let mut next = variables;
    // SAFETY: the caller guarantees a valid list, which is read up to its terminating null pointer.
    while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: the caller guarantees that the list contains C strings.
        let text = unsafe { CStr::from_ptr(*text) };
        // Other variables are not needed and can be long.
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
