#![expect(unsafe_code, reason = "libcuda has a C ABI alone")]
//! Reads CUDA's order of the GPUs, which may differ from the driver's. It runs in a separate process,
//! because CUDA may hang, and because a process that has initialized CUDA remains a CUDA program.

use std::ffi::{c_int, c_uint};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libloading::{Library, Symbol};

/// First argument of a process that reads CUDA's order; the second is the library.
pub const ROLE: &str = "cuda-order";

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;

/// Prints the UUID of each GPU in CUDA's order, one per line, in a process started with [`ROLE`].
pub fn serve() -> ExitCode {
    let library = std::env::args_os().nth(2).map_or_else(|| PathBuf::from("libcuda.so.1"), PathBuf::from);
    let uuids_text = order(&library).map(|uuids| uuids.join("\n"));
    let written = match &uuids_text {
        Ok(uuids) => writeln!(std::io::stdout(), "{uuids}"),
        Err(why) => writeln!(std::io::stderr(), "{why}"),
    };
    if uuids_text.is_ok() && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn order(path: &Path) -> Result<Vec<String>, String> {
    // SAFETY: loading runs the initializers of the library, which is the system's library or was specified
    // by the user.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    let cuda = Cuda::of(&library).map_err(|error| error.to_string())?;
    cuda.uuids()
}

type Get<T> = unsafe extern "C" fn(*mut T) -> c_int;
type GetOf<T> = unsafe extern "C" fn(*mut T, c_int) -> c_int;

/// The four functions, with the signatures of `cuda.h`.
struct Cuda<'a> {
    init: Symbol<'a, unsafe extern "C" fn(c_uint) -> c_int>,
    count: Symbol<'a, Get<c_int>>,
    device: Symbol<'a, GetOf<c_int>>,
    uuid: Symbol<'a, GetOf<[u8; 16]>>,
}

impl<'a> Cuda<'a> {
    fn of(library: &'a Library) -> Result<Self, libloading::Error> {
        // SAFETY: the types are those of cuda.h, unchanged since CUDA 9.2, which added the last of the four.
        unsafe {
            Ok(Self {
                init: library.get(b"cuInit\0")?,
                count: library.get(b"cuDeviceGetCount\0")?,
                device: library.get(b"cuDeviceGet\0")?,
                uuid: library.get(b"cuDeviceGetUuid\0")?,
            })
        }
    }

    fn uuids(&self) -> Result<Vec<String>, String> {
        let mut count = 0;
        // SAFETY: cuInit takes flags, which must be 0.
        check("cuInit", unsafe { (self.init)(0) })?;
        // SAFETY: the pointer is to a local int.
        check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        (0..count).map(|ordinal| self.one(ordinal)).collect()
    }

    fn one(&self, ordinal: c_int) -> Result<String, String> {
        let (mut device, mut bytes) = (0, [0; 16]);
        // SAFETY: the pointer is to a local int.
        check("cuDeviceGet", unsafe { (self.device)(&raw mut device, ordinal) })?;
        // SAFETY: the pointer is to a local array of 16 bytes, the size of a CUuuid.
        check("cuDeviceGetUuid", unsafe { (self.uuid)(&raw mut bytes, device) })?;
        Ok(text(bytes))
    }
}

fn check(call: &str, answer: c_int) -> Result<(), String> {
    if answer == SUCCESS { Ok(()) } else { Err(format!("{call} failed with CUDA error {answer}")) }
}

/// Formats a UUID as NVML does.
fn text(bytes: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let parts: Vec<&str> = parts.iter().filter_map(|(from, to)| hex.get(*from..*to)).collect();
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_does() {
        let bytes =
            [0xa5, 0xb0, 0x2c, 0x30, 0x9c, 0x95, 0xcb, 0x81, 0xe4, 0x1e, 0xca, 0x20, 0x4d, 0x57, 0xaa, 0x3b];
        assert_eq!(text(bytes), "GPU-a5b02c30-9c95-cb81-e41e-ca204d57aa3b");
    }

    #[test]
    fn invalid_library_is_an_error() {
        assert!(order(Path::new("/nonexistent/libcuda.so.1")).is_err());
        // A library that exists but is not CUDA's.
        let why = order(Path::new("libc.so.6")).expect_err("the library does not export cuInit");
        assert!(why.contains("cuInit"), "{why}");
    }
}
