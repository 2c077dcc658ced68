//! The heap between two intervals.

/// Gives what is free back to the system: an interval needs for a moment several times what is kept until the next, and
/// glibc alone keeps it all (`malloc_trim(3)`, since glibc 2.8 with the holes within the heap).
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
