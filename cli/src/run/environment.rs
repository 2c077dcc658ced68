//! The differences between the command's environment and that of this process. Pure.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// Variables to set and to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    set: BTreeMap<OsString, OsString>,
    /// Name prefixes of the variables to remove.
    removed: Vec<&'static str>,
}

impl Environment {
    pub(crate) fn set(&mut self, pairs: impl IntoIterator<Item = (&'static str, impl Into<OsString>)>) {
        self.set.extend(pairs.into_iter().map(|(name, value)| (name.into(), value.into())));
    }

    /// Removes all variables with this name prefix, unless they are set here.
    pub(crate) fn remove_prefix(&mut self, prefix: &'static str) {
        self.removed.push(prefix);
    }

    /// Returns a variable that was set here.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.set.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Applies the differences to the environment of this process.
    pub(crate) fn apply(
        &self,
        inherited: impl Iterator<Item = (OsString, OsString)>,
    ) -> impl Iterator<Item = (OsString, OsString)> {
        let kept = |name: &OsString| {
            let name = name.to_string_lossy();
            !self.removed.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut all: BTreeMap<OsString, OsString> = inherited.filter(|(name, _)| kept(name)).collect();
        all.extend(self.set.clone());
        all.into_iter()
    }
}
