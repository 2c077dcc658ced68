//! How a command's environment differs from ours. Pure.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// What is set, and what is left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    set: BTreeMap<OsString, OsString>,
    /// Begins of names.
    without: Vec<&'static str>,
}

impl Environment {
    /// Sets these.
    pub(crate) fn set(&mut self, pairs: impl IntoIterator<Item = (&'static str, impl Into<OsString>)>) {
        self.set.extend(pairs.into_iter().map(|(name, value)| (name.into(), value.into())));
    }

    /// Leaves out whatever begins with this, unless it is set here.
    pub(crate) fn leave_out(&mut self, begin: &'static str) {
        self.without.push(begin);
    }

    /// What it has set itself.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.set.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The whole, on top of ours.
    pub(crate) fn whole(
        &self,
        ours: impl Iterator<Item = (OsString, OsString)>,
    ) -> impl Iterator<Item = (OsString, OsString)> {
        let kept = |name: &OsString| {
            let known = name.to_string_lossy();
            !self.without.iter().any(|begin| known.starts_with(begin))
        };
        let mut all: BTreeMap<OsString, OsString> = ours.filter(|(name, _)| kept(name)).collect();
        all.extend(self.set.clone());
        all.into_iter()
    }
}
