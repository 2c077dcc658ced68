//! Samples and snapshots for tests. Values that a test does not set are absent.

pub mod sample;
pub mod stream;
