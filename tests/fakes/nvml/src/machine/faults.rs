//! What is wrong with a driver or a device, as the gate asks for it: by the name of a function.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Nonsense, ensure};
use crate::code::Code;
use crate::scenario::{DriverFaults, Faults, Hang, Slow};

/// What is wrong, in the order in which a call meets it.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    hang: Vec<Which>,
    slow: Vec<(Which, Duration)>,
    errors: Vec<(Which, Code)>,
}

/// The calls that a fault is about.
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
        ensure(exported(name), || format!("faults: no function is called {name}"))?;
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
        // A fault of one function takes precedence over a fault of all.
        wrong.slow.sort_by_key(|(which, _)| which.is_all());
        wrong.errors.sort_by_key(|(which, _)| which.is_all());
        Ok(wrong)
    }

    /// Whether a call to this function does not come back.
    pub(crate) fn hangs(&self, function: &str) -> bool {
        self.hang.iter().any(|which| which.is(function))
    }

    /// How long a call to this function takes.
    pub(crate) fn delay(&self, function: &str) -> Option<Duration> {
        self.slow.iter().find(|(which, _)| which.is(function)).map(|(_, long)| *long)
    }

    /// What a call to this function answers instead of what it should.
    pub(crate) fn error(&self, function: &str) -> Option<Code> {
        self.errors.iter().find(|(which, _)| which.is(function)).map(|(_, code)| *code)
    }
}
