//! The edge to C: what callers hand over, in types that carry the promises of `cuda.h`, so that the rest needs little
//! `unsafe`; and the macro that exports calls and lists them.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use crate::code::{Answer, Code};

/// Where a call puts one result; null is `None`.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// What a caller hands over to be read; null is `None`.
pub(crate) type In<'a, T> = Option<&'a T>;

/// Puts a result where the caller wants it.
pub(crate) fn put<T>(out: Out<T>, value: T) -> Answer {
    out.ok_or(Code::INVALID_VALUE)?.write(value);
    Ok(())
}

/// A list of the caller's: null, or valid for as many elements as the call's count says.
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T> List<T> {
    pub(crate) fn read(&self, count: u32) -> &[T] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: not null, and then `cuda.h` asks the caller for `count` elements that live as long as the call.
        unsafe { std::slice::from_raw_parts(self.0, count as usize) }
    }
}

/// Room for a text at the caller's: null, or valid for as many letters as the call's length says.
#[repr(transparent)]
pub(crate) struct Text(*mut u8);

impl Text {
    pub(crate) fn put(self, length: i32, text: &str) -> Answer {
        let room = usize::try_from(length).unwrap_or(0);
        if self.0.is_null() || text.len() >= room {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null and longer than the text, as the caller says and was just compared.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// An exported function and its address.
pub(crate) struct Export(pub(crate) &'static str, pub(crate) *const c_void);

// SAFETY: the address of a function is the same for all threads.
unsafe impl Sync for Export {}

/// Exports C functions of these names, and lists them.
macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) $act:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
                let act = || -> $crate::code::Answer { $act };
                act().into()
            }
        )*

        /// The functions exported here.
        pub(crate) static EXPORTS: &[$crate::edge::Export] =
            &[$($crate::edge::Export(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}

pub(crate) use calls;
