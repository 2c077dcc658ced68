//! What stands between a hook and its host: a fault of ours becomes the driver's own answer.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::Code;
use crate::{life, start};

/// The program's question to the driver, which is asked at most once.
pub(crate) struct Ask<F> {
    /// The function's name.
    pub(crate) name: &'static str,
    driver: F,
    answer: Cell<Option<Code>>,
}

impl<F: Fn() -> Code> Ask<F> {
    /// A question that was not asked yet.
    pub(crate) fn new(name: &'static str, driver: F) -> Self {
        Self { name, driver, answer: Cell::new(None) }
    }

    /// The driver's answer.
    pub(crate) fn now(&self) -> Code {
        if let Some(answer) = self.answer.get() {
            return answer;
        }
        let answer = (self.driver)();
        self.answer.set(Some(answer));
        answer
    }
}

/// Lets us answer a question, or the driver where we are not wanted or fail.
pub(crate) fn shield<F: Fn() -> Code>(ask: &Ask<F>, ours: impl FnOnce() -> Code) -> Code {
    if start::settings().disabled {
        return ask.now();
    }
    catch_unwind(AssertUnwindSafe(ours)).unwrap_or_else(|_| {
        life::fault();
        ask.now()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_ours_is_the_drivers_answer_asked_once() {
        let asked = Cell::new(0);
        let driver = || {
            asked.set(asked.get() + 1);
            Code(77)
        };
        let (before, after) = (Ask::new("before", driver), Ask::new("after", driver));
        assert_eq!(shield(&before, || panic!("before the driver was asked")), Code(77));
        assert_eq!(asked.get(), 1);
        let fails = || {
            after.now();
            panic!("after the driver was asked")
        };
        assert_eq!(shield(&after, fails), Code(77));
        assert_eq!(asked.get(), 2);
        let ask = Ask::new("refused", driver);
        assert_eq!(shield(&ask, || Code::OUT_OF_MEMORY), Code::OUT_OF_MEMORY);
        assert_eq!(asked.get(), 2);
    }
}
