//! Tests the built library, loaded by path and used through `nvml-wrapper`: a client sees the content of the
//! scenario.
#![allow(unsafe_code, reason = "the library is called as C calls it, and reads its scenario from a variable")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a test writes scenarios and sets the variable that names them"
)]

mod driver;
mod events;
mod faults;
mod lifetime;
mod lists;
mod mig;
mod sampling;
mod scenarios;
