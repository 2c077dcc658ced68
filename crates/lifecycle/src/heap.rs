//! Returns free heap memory to the system.

/// Returns free memory to the system (`malloc_trim(3)`). An interval briefly needs several times the memory
/// that is kept until the next, and glibc would keep all of it.
#[cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim as a safe function")
)]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and other threads may allocate meanwhile (MT-Safe in its manual page).
    unsafe {
        libc::malloc_trim(0);
    }
}
