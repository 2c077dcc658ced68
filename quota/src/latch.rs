//! A lock that is held for a few instructions and let go by a plain store: an atomic exchange, which a mutex needs there to
//! learn of sleepers, is a tenth of what a call costs. Nobody is woken, so who waits looks again.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{hint, thread};

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
/// A holder that waits for a processor has it after some of these.
const NAP: Duration = Duration::from_micros(50);

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
    #[expect(clippy::disallowed_methods, reason = "nobody is woken")]
    fn wait(&self) {
        let mut looks = 0;
        while self.held.load(Ordering::Relaxed) || self.held.swap(true, Ordering::Acquire) {
            if looks < LOOKS {
                looks = looks.saturating_add(1);
                hint::spin_loop();
            } else {
                thread::sleep(NAP);
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
