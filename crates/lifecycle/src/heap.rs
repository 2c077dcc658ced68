//! Returns free heap memory to the system.

/// Returns free memory to the system (`malloc_trim(3)`). The work in an interval needs several times as much
/// memory as is kept until the next interval, and glibc would not return the rest.
#[cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim as a safe function")
)]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes no pointer, and other threads may allocate at the same time (MT-Safe in
    // its manual page).
    unsafe {
        libc::malloc_trim(0);
    }
}
