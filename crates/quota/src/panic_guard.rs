//! Panic guard for hooks: after an internal fault, the program gets the driver's own result.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::Code;
use crate::{environment, state};

/// A driver call on behalf of the program, which is made at most once.
pub(crate) struct DriverCall<F> {
    /// Name of the driver function.
    pub(crate) name: &'static str,
    driver: F,
    answer: Cell<Option<Code>>,
}

impl<F: Fn() -> Code> DriverCall<F> {
    /// Returns a call that has not been made yet.
    pub(crate) fn new(name: &'static str, driver: F) -> Self {
        Self { name, driver, answer: Cell::new(None) }
    }

    /// Returns the driver's result. Makes the call if it has not been made yet.
    pub(crate) fn result(&self) -> Code {
        if let Some(answer) = self.answer.get() {
            return answer;
        }
        let answer = (self.driver)();
        self.answer.set(Some(answer));
        answer
    }
}

/// Runs a hook. If the library is disabled or the hook panics, only the driver is called.
pub(crate) fn guard<F: Fn() -> Code>(call: &DriverCall<F>, hook: impl FnOnce() -> Code) -> Code {
    if environment::settings().disabled {
        return call.result();
    }
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or_else(|_| {
        state::fault();
        call.result()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_hook_calls_the_driver_once() {
        let calls = Cell::new(0);
        let driver = || {
            calls.set(calls.get() + 1);
            Code(77)
        };
        let (before, after) = (DriverCall::new("before", driver), DriverCall::new("after", driver));
        assert_eq!(guard(&before, || panic!("before the call")), Code(77));
        assert_eq!(calls.get(), 1);
        let fails = || {
            after.result();
            panic!("after the call")
        };
        assert_eq!(guard(&after, fails), Code(77));
        assert_eq!(calls.get(), 2);
        let call = DriverCall::new("refused", driver);
        assert_eq!(guard(&call, || Code::OUT_OF_MEMORY), Code::OUT_OF_MEMORY);
        assert_eq!(calls.get(), 2);
    }
}
