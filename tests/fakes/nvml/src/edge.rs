//! The boundary to C: callers' arguments in types that express the guarantees of `nvml.h`, so that other files
//! need no `unsafe`.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::code::{Answer, Code};

/// Handle that callers use for a device or an event set. It is compared with the assigned handles and never
/// dereferenced.
pub(crate) type Handle = *const c_void;

/// Pointer to which a call writes one result; null is `None`.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Pointer from which a call reads and to which it writes one value; null is `None`.
pub(crate) type InOut<'a, T> = Option<&'a mut T>;

/// Writes a result to the caller's pointer.
pub(crate) fn put<T>(out: Out<T>, value: T) -> Answer {
    out.ok_or(Code::INVALID_ARGUMENT)?.write(value);
    Ok(())
}

/// A text from the caller: null, or a C string that lives as long as the call, as `nvml.h` requires.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so `nvml.h` requires the caller to pass a C string that lives as long
        // as the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
    }
}

/// The caller's buffer for elements: null, or valid for as many elements as the call's count argument.
#[repr(transparent)]
pub(crate) struct Room<T>(*mut T);

impl<T> Room<T> {
    /// Returns the buffer to which a structure of the caller points. The same guarantee applies.
    pub(crate) fn at(start: *mut T) -> Self {
        Self(start)
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_null()
    }

    /// Returns the caller's array of `count` elements.
    fn slots(&mut self, count: c_uint) -> &mut [MaybeUninit<T>] {
        if self.0.is_null() {
            return &mut [];
        }
        // SAFETY: the pointer is not null, so `nvml.h` requires the caller to provide space for `count` elements.
        // `MaybeUninit` has no requirements on their content.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), count as usize) }
    }

    /// Writes as many values as fit.
    pub(crate) fn fill(mut self, count: c_uint, values: impl Iterator<Item = T>) {
        for (slot, value) in self.slots(count).iter_mut().zip(values) {
            slot.write(value);
        }
    }
}

impl<T> Room<T> {
    /// Updates each of the caller's elements. Unlike [`Room::fill`], it reads the caller's values.
    pub(crate) fn update(self, count: c_uint, each: impl FnMut(&mut T)) -> Answer {
        if self.0.is_null() || count == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so `nvml.h` requires the caller to pass `count` initialized elements.
        unsafe { std::slice::from_raw_parts_mut(self.0, count as usize) }.iter_mut().for_each(each);
        Ok(())
    }
}

impl Room<c_char> {
    /// Writes a text and its terminating zero, or nothing if both do not fit.
    pub(crate) fn text(self, length: c_uint, text: &str) -> Answer {
        if self.is_none() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if text.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        self.fill(length, letters(text));
        Ok(())
    }
}

impl Room<u8> {
    /// Copies entries whose size depends on the scenario. The caller's count is a number of entries.
    pub(crate) fn bytes(self, bytes: &[u8]) {
        // SAFETY: the caller provided space for at least as many entries of this driver's size as are copied. The
        // setting `entry_bytes` exists to find callers that assume another size.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
    }
}

/// Returns the bytes of a C string, including the terminating zero.
pub(crate) fn letters(text: &str) -> impl Iterator<Item = c_char> {
    text.bytes().chain([0]).map(u8::cast_signed)
}

/// Returns a text for a fixed-size field of a structure, truncated and padded with zeros.
pub(crate) fn field<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut field = [0; SIZE];
    for (slot, letter) in field.iter_mut().take(SIZE.saturating_sub(1)).zip(text.bytes()) {
        *slot = letter.cast_signed();
    }
    field
}

/// Exports device functions: C functions with these names, whose first argument is a device handle. Each call
/// goes through the gate before its body runs.
macro_rules! device_calls {
    ($($name:ident($call:ident $(, $arg:ident: $type:ty)*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(device: $crate::edge::Handle $(, $arg: $type)*) -> $crate::code::Code {
                $crate::gate::on_device(stringify!($name), device, |$call| $act)
            }
        )*

        /// Functions that this module exports.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Exports functions of the driver itself: C functions with these names. Each call goes through the gate
/// before its body runs.
macro_rules! system_calls {
    ($($name:ident($machine:ident $(, $arg:ident: $type:ty)*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
                $crate::gate::on_driver(stringify!($name), |$machine| $act)
            }
        )*

        /// Functions that this module exports.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

pub(crate) use {device_calls, system_calls};
