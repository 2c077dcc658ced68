//! The edge to C: what callers hand over, in types that carry the promises of `nvml.h`, so that the rest needs no
//! `unsafe`.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::code::{Answer, Code};

/// What a caller names a device or an event set by; it is compared with those given out and never followed.
pub(crate) type Handle = *const c_void;

/// Where a call puts one result; null is `None`.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Where a call reads and puts one value; null is `None`.
pub(crate) type InOut<'a, T> = Option<&'a mut T>;

/// Puts a result where the caller wants it.
pub(crate) fn put<T>(out: Out<T>, value: T) -> Answer {
    out.ok_or(Code::INVALID_ARGUMENT)?.write(value);
    Ok(())
}

/// A text from the caller: null, or a C string that lives as long as the call, as `nvml.h` asks.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and then `nvml.h` asks the caller for a C string that lives as long as the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
    }
}

/// Room for elements at the caller's: null, or valid for as many elements as the call's count says.
#[repr(transparent)]
pub(crate) struct Room<T>(*mut T);

impl<T> Room<T> {
    /// What a structure of the caller's points to; the same promise holds of it.
    pub(crate) fn at(start: *mut T) -> Self {
        Self(start)
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_null()
    }

    /// The caller's array of `count` elements.
    fn slots(&mut self, count: c_uint) -> &mut [MaybeUninit<T>] {
        if self.0.is_null() {
            return &mut [];
        }
        // SAFETY: not null, and then `nvml.h` asks the caller for room for `count` elements; `MaybeUninit` asks
        // nothing of what is there.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), count as usize) }
    }

    /// Puts as many as there is room for.
    pub(crate) fn fill(mut self, count: c_uint, values: impl Iterator<Item = T>) {
        for (slot, value) in self.slots(count).iter_mut().zip(values) {
            slot.write(value);
        }
    }
}

impl<T> Room<T> {
    /// Lets each of the caller's elements be answered; unlike [`Room::fill`] it reads what the caller put there.
    pub(crate) fn update(self, count: c_uint, each: impl FnMut(&mut T)) -> Answer {
        if self.0.is_null() || count == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and then `nvml.h` asks the caller for `count` elements that say what is asked for.
        unsafe { std::slice::from_raw_parts_mut(self.0, count as usize) }.iter_mut().for_each(each);
        Ok(())
    }
}

impl Room<c_char> {
    /// Puts a text and the zero that ends it, or nothing if there is no room for both.
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
    /// Copies entries whose size depends on the scenario; the caller counted its room in entries.
    pub(crate) fn bytes(self, bytes: &[u8]) {
        // SAFETY: the caller provided room for as many entries of this driver's size as are copied;
        // a caller with another entry size is what `entry_bytes` is there to find.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
    }
}

/// A text as C has it, with the zero that ends it.
pub(crate) fn letters(text: &str) -> impl Iterator<Item = c_char> {
    text.bytes().chain([0]).map(u8::cast_signed)
}

/// A text in a fixed field of a structure, cut to fit and filled with zeros.
pub(crate) fn field<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut field = [0; SIZE];
    for (slot, letter) in field.iter_mut().take(SIZE.saturating_sub(1)).zip(text.bytes()) {
        *slot = letter.cast_signed();
    }
    field
}

/// Exports device functions: C functions of these names whose first argument is a device handle, behind the gate.
macro_rules! device_calls {
    ($($name:ident($call:ident $(, $arg:ident: $type:ty)*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(device: $crate::edge::Handle $(, $arg: $type)*) -> $crate::code::Code {
                $crate::gate::on_device(stringify!($name), device, |$call| $act)
            }
        )*

        /// The functions exported here.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Exports calls on the driver itself: C functions of these names, behind the gate.
macro_rules! system_calls {
    ($($name:ident($machine:ident $(, $arg:ident: $type:ty)*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
                $crate::gate::on_driver(stringify!($name), |$machine| $act)
            }
        )*

        /// The functions exported here.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

pub(crate) use {device_calls, system_calls};
