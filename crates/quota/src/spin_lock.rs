//! A spin lock for short lookups in a map. It is released with a plain store, because a mutex's atomic
//! exchange would take a tenth of the time of a hooked call. A plain store cannot wake waiters, so they poll.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SYS_nanosleep, c_long, syscall, timespec};

/// A value with exclusive access. If the holder panics, the lock is released and the value stays as it is.
pub(crate) struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

/// Lock guard.
pub(crate) struct Guard<'a, T>(&'a SpinLock<T>);

// SAFETY: the value is accessible only through the one guard; `T: Sync`, because a guard may be shared.
unsafe impl<T: Send + Sync> Sync for SpinLock<T> {}

/// Number of polls before a waiter sleeps. A holder that is running on a CPU releases the lock sooner.
const POLLS: u32 = 100;
/// Sleep between further polls, in nanoseconds, while the holder waits for a CPU.
const SLEEP_NS: c_long = 50_000;

/// Sleeps with a raw system call: the C library's sleep functions are cancellation points, and a thread must
/// not be cancelled within a hook.
fn sleep() {
    let sleep = timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
    // SAFETY: the call reads a local variable and writes nothing.
    unsafe { syscall(SYS_nanosleep, &raw const sleep, null_mut::<timespec>()) };
}

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        let mut polls = 0;
        while self.held.load(Ordering::Relaxed) || self.held.swap(true, Ordering::Acquire) {
            if polls < POLLS {
                polls = polls.saturating_add(1);
                hint::spin_loop();
            } else {
                sleep();
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this is the only guard, so no other thread accesses the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and it is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn lock_excludes_other_threads() {
        let spin_lock = SpinLock::new([0u64; 8]);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50_000 {
                        let mut numbers = spin_lock.lock();
                        let before = numbers[0];
                        for number in numbers.iter_mut() {
                            assert_eq!(*number, before);
                            *number += 1;
                        }
                        if round % 1000 == 0 {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*spin_lock.lock(), [200_000; 8]);
    }

    /// Thread that waits for the lock while the test holds it.
    extern "C" fn waits(spin_lock: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the lock is never freed.
        let spin_lock = unsafe { &*spin_lock.cast::<SpinLock<u32>>() };
        *spin_lock.lock() += 1;
        null_mut()
    }

    #[test]
    fn cancelled_thread_still_gets_the_lock() {
        let spin_lock = Box::leak(Box::new(SpinLock::new(0)));
        let guard = spin_lock.lock();
        let mut thread = 0;
        let argument = std::ptr::from_ref(&*spin_lock).cast_mut().cast();
        // SAFETY: the new thread gets a lock that is never freed, and is joined below.
        let created = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), waits, argument) };
        assert_eq!(created, 0);
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
        // The thread polls and sleeps many times during this wait.
        let (sender, receiver) = channel::<()>();
        let _ = receiver.recv_timeout(std::time::Duration::from_millis(20));
        drop((sender, guard));
        // SAFETY: the thread is joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
        assert_eq!(*spin_lock.lock(), 1);
    }

    #[test]
    fn panic_releases_the_lock() {
        let spin_lock = SpinLock::new(1);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            *spin_lock.lock() = 2;
            panic!("in the middle");
        }));
        assert!(failed.is_err());
        assert_eq!(*spin_lock.lock(), 2);
    }
}
