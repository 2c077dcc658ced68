//! The flags of GPU.py in the original order. Their texts are part of the drop-in's output (`tests/golden/gpuget`).

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
    pub(super) help: &'static str,
}

impl Flag {
    const fn new(name: &'static str, takes: Takes, help: &'static str) -> Self {
        Self { name, takes, exclusive: false, help }
    }

    const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Returns the name of its value in argparse's help.
    pub(super) fn value(&self) -> String {
        self.name.trim_start_matches('-').replace('-', "_").to_uppercase()
    }

    /// Returns its name in argparse's errors.
    pub(super) fn title(&self) -> &'static str {
        if self.name == "--help" { "-h/--help" } else { self.name }
    }
}

use Takes::{Int, Nothing, Text};

pub(super) const FLAGS: [Flag; 20] = [
    Flag::new("--help", Nothing, "show this help message and exit"),
    Flag::new("--gpu-count", Nothing, "how many GPUs this machine has"),
    Flag::new("--managed-gpu-count", Nothing, "how many GPUs are handed out"),
    Flag::new("--redis-server", Text, "where Redis is (localhost)"),
    Flag::new("--redis-port", Int, "its port (6379)"),
    Flag::new("--redis-db", Int, "its database (0)"),
    Flag::new("--redis-prefix", Text, "what all keys begin with (GPU)"),
    Flag::new("--redis-manage-all", Nothing, "hand out all GPUs").exclusive(),
    Flag::new("--redis-manage", Text, "hand out these, such as 0,1").exclusive(),
    Flag::new("--redis-manage-count", Int, "hand out the last so many").exclusive(),
    Flag::new("--force", Nothing, "begin anew what was begun before"),
    Flag::new("--get", Nothing, "wait for a GPU and print its number"),
    Flag::new("--release", Int, "give the GPU of this number back"),
    Flag::new("--log", Nothing, "print what happened, oldest first"),
    Flag::new("--info", Nothing, "count them"),
    Flag::new("--idle", Nothing, "list the GPUs that nobody has"),
    Flag::new("--managed", Nothing, "list the GPUs that are handed out"),
    Flag::new("--active", Nothing, "list who has which GPU"),
    Flag::new("--redis-delete", Nothing, "forget the pool"),
    Flag::new("--redis-purge", Nothing, "free what the dead of this host held"),
];
