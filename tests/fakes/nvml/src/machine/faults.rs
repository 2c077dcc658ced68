//! Faults of a driver or a device, looked up by function name.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Nonsense, ensure};
use crate::code::Code;
use crate::scenario::{DriverFaults, Faults, Hang, Slow};

/// Faults, in the order in which they are applied to a call.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    hang: Vec<Which>,
    slow: Vec<(Which, Duration)>,
    errors: Vec<(Which, Code)>,
}

/// The calls to which a fault applies.
#[derive(Debug)]
enum Which {
    All,
    Named(String),
}

impl Which {
    fn is(&self, function: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(name) => name == function,
        }
    }

    fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    fn read(name: &str, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        if name == "*" {
            return Ok(Self::All);
        }
        ensure(exported(name), || format!("faults: there is no function {name}"))?;
        Ok(Self::Named(name.to_owned()))
    }
}

impl Wrong {
    pub(crate) fn of_driver(written: &DriverFaults, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        Self::read(&written.hang, &written.slow, &written.errors, exported)
    }

    pub(crate) fn of_device(written: &Faults, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        Self::read(&written.hang, &written.slow, &written.errors, exported)
    }

    fn read(
        hang: &Hang,
        slow: &Slow,
        errors: &BTreeMap<String, String>,
        exported: fn(&str) -> bool,
    ) -> Result<Self, Nonsense> {
        let mut wrong = Self::default();
        match hang {
            Hang::All(false) => {}
            Hang::All(true) => wrong.hang.push(Which::All),
            Hang::Some(names) => {
                for name in names {
                    wrong.hang.push(Which::read(name, exported)?);
                }
            }
        }
        match slow {
            Slow::All(long) => wrong.slow.push((Which::All, Duration::from_micros(long.0))),
            Slow::Some(names) => {
                for (name, long) in names {
                    wrong.slow.push((Which::read(name, exported)?, Duration::from_micros(long.0)));
                }
            }
        }
        for (name, error) in errors {
            let code =
                Code::named(error).ok_or_else(|| Nonsense(format!("faults: no error is called {error}")))?;
            wrong.errors.push((Which::read(name, exported)?, code));
        }
        // A fault of one function takes precedence over a fault of all functions.
        wrong.slow.sort_by_key(|(which, _)| which.is_all());
        wrong.errors.sort_by_key(|(which, _)| which.is_all());
        Ok(wrong)
    }

    /// Returns whether a call of this function does not return.
    pub(crate) fn hangs(&self, function: &str) -> bool {
        self.hang.iter().any(|which| which.is(function))
    }

    /// Returns how long a call of this function takes.
    pub(crate) fn delay(&self, function: &str) -> Option<Duration> {
        self.slow.iter().find(|(which, _)| which.is(function)).map(|(_, long)| *long)
    }

    /// Returns the error that a call of this function returns.
    pub(crate) fn error(&self, function: &str) -> Option<Code> {
        self.errors.iter().find(|(which, _)| which.is(function)).map(|(_, code)| *code)
    }
}
