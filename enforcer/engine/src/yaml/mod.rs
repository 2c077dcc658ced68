//! Reads YAML: values with their places, and all faults of a file, each with its place and its fix.

mod fault;
mod fields;
mod grammar;
pub mod quantity;
mod tree;

pub use fault::{Fault, FaultSeverity, FaultStyle, Faults, quoted};
pub use fields::{
    Fields, count, expected, flag, list, many, name, nearest, nothing_given, quantity, some_time, text, time,
    unknown, word,
};
pub use grammar::{Grammar, Table};
pub use tree::{DEEPEST, Data, Entry, Node, read};
