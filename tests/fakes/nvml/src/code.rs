//! The driver's result codes: their numbers, their names in scenarios, and their texts.

use std::ffi::CStr;

/// Result code of every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) u32);

/// Result of a call before it is converted to a code.
pub(crate) type Answer = Result<(), Code>;

macro_rules! codes {
    ($($constant:ident = $number:literal, $name:literal, $text:literal;)*) => {
        #[expect(dead_code, reason = "the table is the driver's whole, and a scenario may name any of it")]
        impl Code {
            $(pub(crate) const $constant: Self = Self($number);)*
        }
        const TABLE: &[(Code, &str, &CStr)] = &[$((Code($number), $name, $text)),*];
    };
}

codes! {
    SUCCESS = 0, "ok", c"Success";
    UNINITIALIZED = 1, "uninitialized", c"Uninitialized";
    INVALID_ARGUMENT = 2, "invalid_argument", c"Invalid Argument";
    NOT_SUPPORTED = 3, "not_supported", c"Not Supported";
    NO_PERMISSION = 4, "no_permission", c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5, "already_initialized", c"Already Initialized";
    NOT_FOUND = 6, "not_found", c"Not Found";
    INSUFFICIENT_SIZE = 7, "insufficient_size", c"Insufficient Size";
    INSUFFICIENT_POWER = 8, "insufficient_power", c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9, "driver_not_loaded", c"Driver Not Loaded";
    TIMEOUT = 10, "timeout", c"Timeout";
    IRQ_ISSUE = 11, "irq_issue", c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, "library_not_found", c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, "function_not_found", c"Function Not Found";
    CORRUPTED_INFOROM = 14, "corrupted_inforom", c"Corrupted infoROM";
    GPU_IS_LOST = 15, "gpu_is_lost", c"GPU is lost";
    RESET_REQUIRED = 16, "reset_required", c"GPU requires reset";
    OPERATING_SYSTEM = 17, "operating_system", c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18, "lib_rm_version_mismatch", c"Driver/library version mismatch";
    IN_USE = 19, "in_use", c"In use by another client";
    MEMORY = 20, "memory", c"Insufficient Memory";
    NO_DATA = 21, "no_data", c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22, "vgpu_ecc_not_supported", c"ECC not supported on vGPU host";
    INSUFFICIENT_RESOURCES = 23, "insufficient_resources", c"Insufficient resources";
    FREQ_NOT_SUPPORTED = 24, "freq_not_supported", c"Frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25, "argument_version_mismatch", c"Argument version mismatch";
    DEPRECATED = 26, "deprecated", c"Functionality is deprecated";
    NOT_READY = 27, "not_ready", c"System is not ready";
    GPU_NOT_FOUND = 28, "gpu_not_found", c"No GPUs were found";
    INVALID_STATE = 29, "invalid_state", c"Resource is not in a valid state";
    RESET_TYPE_NOT_SUPPORTED = 30, "reset_type_not_supported", c"Reset type is not supported";
    UNKNOWN = 999, "unknown", c"Unknown Error";
}

impl Code {
    /// Returns the code that has this name in scenarios.
    pub(crate) fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the driver's text for this code.
    pub(crate) fn text(self) -> &'static CStr {
        TABLE.iter().find(|row| row.0 == self).map_or(c"Unknown Error", |row| row.2)
    }
}

impl From<Answer> for Code {
    fn from(answer: Answer) -> Self {
        answer.err().unwrap_or(Self::SUCCESS)
    }
}
