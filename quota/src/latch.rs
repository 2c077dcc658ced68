//! A lock that is held for a look into a map, and let go by a plain store: an atomic exchange, which a mutex needs there to
//! learn of sleepers, is a tenth of what a call costs. Nobody is woken, so who waits looks again.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SYS_nanosleep, c_long, syscall, timespec};

/// What one thread at a time may touch. It is let go by whoever panics, as it stands.
pub(crate) struct Latch<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

/// The turn of a thread.
pub(crate) struct Turn<'a, T>(&'a Latch<T>);

// SAFETY: a `Turn` is the only way to the value, and there is one of it at a time; `T: Sync`, as a turn may be lent.
unsafe impl<T: Send + Sync> Sync for Latch<T> {}

/// Looks before a waiter sleeps: a holder that runs is done by then.
const LOOKS: u32 = 100;
/// A holder that waits for a processor has it after some naps of so many nanoseconds.
const NAP: c_long = 50_000;

/// By the system call itself: the C library's functions that sleep end a thread that its host has cancelled, and must not do so
/// within a hook.
fn nap() {
    let nap = timespec { tv_sec: 0, tv_nsec: NAP };
    // SAFETY: it reads what it is given, and is told of no place for what is left.
    unsafe { syscall(SYS_nanosleep, &raw const nap, null_mut::<timespec>()) };
}

impl<T> Latch<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Turn<'_, T> {
        if self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Turn(self)
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.held.load(Ordering::Relaxed) || self.held.swap(true, Ordering::Acquire) {
            if looks < LOOKS {
                looks = looks.saturating_add(1);
                hint::spin_loop();
            } else {
                nap();
            }
        }
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this turn is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this turn is the only one, and borrowed alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
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
    fn one_at_a_time() {
        let latch = Latch::new([0u64; 8]);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50_000 {
                        let mut numbers = latch.lock();
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
        assert_eq!(*latch.lock(), [200_000; 8]);
    }

    /// Held when this is called, and let go when it has begun to wait.
    extern "C" fn waits(latch: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the test keeps it until this has ended.
        let latch = unsafe { &*latch.cast::<Latch<u32>>() };
        *latch.lock() += 1;
        null_mut()
    }

    #[test]
    fn a_thread_that_is_cancelled_while_it_waits_has_its_turn() {
        let latch = Box::leak(Box::new(Latch::new(0)));
        let turn = latch.lock();
        let mut thread = 0;
        let told = std::ptr::from_ref(&*latch).cast_mut().cast();
        // SAFETY: a thread of ours on a latch that is never freed; it is joined below.
        let begun = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), waits, told) };
        assert_eq!(begun, 0);
        // SAFETY: it has not been joined.
        assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
        // It naps many times in this.
        let (tell, told) = channel::<()>();
        let _ = told.recv_timeout(std::time::Duration::from_millis(20));
        drop((tell, turn));
        // SAFETY: it is joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
        assert_eq!(*latch.lock(), 1);
    }

    #[test]
    fn who_fails_lets_go() {
        let latch = Latch::new(1);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            *latch.lock() = 2;
            panic!("in the middle");
        }));
        assert!(failed.is_err());
        assert_eq!(*latch.lock(), 2);
    }
}
