//! The boundary to C: callers' arguments in types that express the guarantees of `cuda.h`, so that other files need
//! little `unsafe`; and the macro that exports functions and lists them.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use crate::code::{Answer, Code};

/// Pointer to which a call writes one result; null is `None`.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Pointer from which a call reads; null is `None`.
pub(crate) type In<'a, T> = Option<&'a T>;

/// Writes a result to the caller's pointer.
pub(crate) fn put<T>(out: Out<T>, value: T) -> Answer {
    out.ok_or(Code::INVALID_VALUE)?.write(value);
    Ok(())
}

/// A list passed by the caller: null, or valid for as many elements as the call's count argument.
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T> List<T> {
    pub(crate) fn read(&self, count: u32) -> &[T] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: the pointer is not null, so `cuda.h` requires the caller to pass `count` elements that live as long
        // as the call.
        unsafe { std::slice::from_raw_parts(self.0, count as usize) }
    }
}

/// The caller's buffer for a text: null, or valid for as many bytes as the call's length argument.
#[repr(transparent)]
pub(crate) struct Text(*mut u8);

impl Text {
    pub(crate) fn put(self, length: i32, text: &str) -> Answer {
        let room = usize::try_from(length).unwrap_or(0);
        if self.0.is_null() || text.len() >= room {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, and the buffer is longer than the text, which was just compared with the
        // caller's length.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Name and address of an exported function.
pub(crate) struct Export(pub(crate) &'static str, pub(crate) *const c_void);

// SAFETY: the address of a function is the same for all threads.
unsafe impl Sync for Export {}

/// Exports C functions with these names, and lists them.
macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
                let act = || -> $crate::code::Answer { $act };
                act().into()
            }
        )*

        /// Functions that this module exports.
        pub(crate) static EXPORTS: &[$crate::edge::Export] =
            &[$($crate::edge::Export(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}

pub(crate) use calls;
