//! Functions of the CUDA driver and NVML by name: their addresses, and the hooks that replace them.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A driver library, which the program itself loads.
pub(crate) struct Library {
    name: &'static CStr,
    handle: AtomicPtr<c_void>,
}

/// CUDA driver.
pub(crate) static CUDA: Library = Library::named(c"libcuda.so.1");
/// NVIDIA Management Library.
pub(crate) static NVML: Library = Library::named(c"libnvidia-ml.so.1");

/// A driver function, and its hook if there is one.
pub(crate) struct Symbol {
    pub(crate) name: &'static CStr,
    library: &'static Library,
    hook: *const c_void,
    address: AtomicPtr<c_void>,
}

// SAFETY: the hook is the address of a function, which is the same for all threads.
unsafe impl Sync for Symbol {}

/// Address that marks a function as not exported by the driver.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

impl Library {
    const fn named(name: &'static CStr) -> Self {
        Self { name, handle: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns a handle to the library if it is loaded. The handle keeps the addresses of its functions
    /// valid.
    fn handle(&self) -> Option<NonNull<c_void>> {
        let known = self.handle.load(Ordering::Acquire);
        if !known.is_null() {
            return NonNull::new(known);
        }
        // SAFETY: the name is a C string. `RTLD_NOLOAD` loads no library, so no initializer runs.
        let found = unsafe { libc::dlopen(self.name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if found.is_null() {
            forget_error();
        } else {
            self.handle.store(found, Ordering::Release);
        }
        NonNull::new(found)
    }
}

impl Symbol {
    /// Returns a symbol in the CUDA driver that this library calls but does not hook.
    pub(crate) const fn plain(name: &'static CStr) -> Self {
        Self::of(&CUDA, name)
    }

    /// Returns a symbol that this library calls but does not hook.
    pub(crate) const fn of(library: &'static Library, name: &'static CStr) -> Self {
        Self { name, library, hook: ptr::null(), address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns a symbol with a hook.
    pub(crate) const fn hooked(name: &'static str, library: &'static Library, hook: *const c_void) -> Self {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        Self { name, library, hook, address: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(crate) fn hook(&self) -> *mut c_void {
        self.hook.cast_mut()
    }

    pub(crate) fn is_of_nvml(&self) -> bool {
        ptr::eq(self.library, &raw const NVML)
    }

    /// Returns whether the symbol's library exports a function with this other name.
    pub(crate) fn driver_has(&self, name: &CStr) -> bool {
        let Some((library, dlsym)) = self.library.handle().zip(dlsym()) else { return false };
        // SAFETY: the handle is never closed, and the name is a C string.
        let found = unsafe { dlsym(library.as_ptr(), name.as_ptr()) };
        if found.is_null() {
            forget_error();
        }
        !found.is_null()
    }

    /// Returns the address of the function, or `None` if the library is not loaded or does not export it.
    pub(crate) fn address(&self) -> Option<NonNull<c_void>> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.find_address()?;
        }
        NonNull::new(address).filter(|address| address.as_ptr() != MISSING)
    }

    #[cold]
    fn find_address(&self) -> Option<*mut c_void> {
        let library = self.library.handle()?;
        let dlsym = dlsym()?;
        // SAFETY: the handle is never closed, and the name is a C string.
        let mut found = unsafe { dlsym(library.as_ptr(), self.name.as_ptr()) };
        if found.is_null() {
            forget_error();
            found = MISSING;
        }
        self.address.store(found, Ordering::Release);
        Some(found)
    }

    /// Returns the address as a function pointer.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to this function.
    pub(crate) unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address()?.as_ptr();
        // SAFETY: function and data pointers have the same size, and the caller guarantees the type.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// Clears the error that this library's own lookup left, so that the program does not find it in
/// `dlerror`.
pub(crate) fn forget_error() {
    // SAFETY: `dlerror` has no preconditions.
    unsafe { libc::dlerror() };
}

/// Type of `dlsym`.
pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Version of the symbol `dlsym` in glibc. The symbol is in libdl, or in libc since glibc 2.34.
#[cfg(target_arch = "x86_64")]
const SINCE: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const SINCE: &CStr = c"GLIBC_2.17";

/// Returns the C library's `dlsym`, which this library replaces.
pub(crate) fn dlsym() -> Option<Dlsym> {
    static DLSYM: AtomicUsize = AtomicUsize::new(0);
    let mut address = DLSYM.load(Ordering::Acquire);
    if address == 0 {
        // SAFETY: the arguments are C strings, and this library holds no lock during the call.
        address = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), SINCE.as_ptr()) }.expose_provenance();
        DLSYM.store(address, Ordering::Release);
    }
    let address = ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: null becomes `None`, and any other value is the address of `dlsym`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Dlsym>>(address) }
}
