//! Samples and snapshots for tests. What a case does not set is absent.

pub mod sample;
pub mod stream;
