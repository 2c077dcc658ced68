//! Initialization, shutdown and error texts.

use std::ffi::{c_char, c_uint};

use crate::code::Code;
use crate::{gate, state};

/// Functions that this module exports. Shutdown and error texts work even if the driver has a fault.
pub(crate) const NAMES: &[&str] =
    &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"];

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Code {
    gate::initialize("nvmlInit")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    gate::initialize("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Code {
    gate::initialize("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    if state::shut_down() { Code::SUCCESS } else { Code::UNINITIALIZED }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    code.text().as_ptr()
}
