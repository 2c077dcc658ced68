//! The flags of GPU.py in the original order, as in `help.txt`.

/// The value that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Text,
    Int,
}

/// A flag.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    /// At most one of the exclusive flags may be given.
    pub(super) exclusive: bool,
}

impl Flag {
    const fn new(name: &'static str, takes: Takes) -> Self {
        Self { name, takes, exclusive: false }
    }

    const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Returns its name in argparse's errors.
    pub(super) fn title(&self) -> &'static str {
        if self.name == "--help" { "-h/--help" } else { self.name }
    }
}

use Takes::{Int, Nothing, Text};

pub(super) const FLAGS: [Flag; 20] = [
    Flag::new("--help", Nothing),
    Flag::new("--gpu-count", Nothing),
    Flag::new("--managed-gpu-count", Nothing),
    Flag::new("--redis-server", Text),
    Flag::new("--redis-port", Int),
    Flag::new("--redis-db", Int),
    Flag::new("--redis-prefix", Text),
    Flag::new("--redis-manage-all", Nothing).exclusive(),
    Flag::new("--redis-manage", Text).exclusive(),
    Flag::new("--redis-manage-count", Int).exclusive(),
    Flag::new("--force", Nothing),
    Flag::new("--get", Nothing),
    Flag::new("--release", Int),
    Flag::new("--log", Nothing),
    Flag::new("--info", Nothing),
    Flag::new("--idle", Nothing),
    Flag::new("--managed", Nothing),
    Flag::new("--active", Nothing),
    Flag::new("--redis-delete", Nothing),
    Flag::new("--redis-purge", Nothing),
];
