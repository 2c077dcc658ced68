//! The functions in `libcuda.so.1` that a worker calls, loaded at run time, and a kernel that runs for a given time.
#![allow(unsafe_code, reason = "NVIDIA's driver has a C interface")]
#![allow(non_snake_case, reason = "functions have the names of cuda.h")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

/// A kernel that runs until this many nanoseconds have passed on the GPU's clock, and one that writes to an address.
const KERNEL: &str = "
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %again;
    .reg .u64 %length, %begin, %now, %passed;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %begin, %globaltimer;
LOOP:
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %begin;
    setp.lt.u64 %again, %passed, %length;
    @%again bra LOOP;
    ret;
}
.visible .entry fault(.param .u64 address)
{
    .reg .u32 %value;
    .reg .u64 %place;
    ld.param.u64 %place, [address];
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
";

/// Versions and targets of PTX, oldest first. The first one that the driver still accepts is used.
const TARGETS: [(&str, &str); 4] = [("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_90"), ("8.6", "sm_100")];

/// `CU_CTX_SCHED_BLOCKING_SYNC`: waiting for the GPU uses no CPU.
const BLOCKING: c_uint = 4;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSORS: c_int = 16;

macro_rules! driver {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        struct Driver {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            _library: Library,
        }

        impl Driver {
            fn open() -> Result<Self, String> {
                // SAFETY: the library is the driver's own, and loading it is what every CUDA program does.
                let library = unsafe { Library::new("libcuda.so.1") }
                    .map_err(|error| format!("libcuda.so.1 cannot be loaded: {error}"))?;
                $(
                    // SAFETY: the prototype is the same as in cuda.h.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| format!("libcuda.so.1 lacks {}", stringify!($name)))?;
                )*
                Ok(Self { $($name,)* _library: library })
            }

            $(
                #[allow(clippy::too_many_arguments, reason = "as many as in cuda.h")]
                fn $name(&self, $($arg: $type),*) -> Result<(), String> {
                    // SAFETY: callers in this file pass pointers to values that outlive the call.
                    match unsafe { (self.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(format!("{} answered {code}", stringify!($name))),
                    }
                }
            )*
        }
    };
}

driver! {
    cuInit(flags: c_uint);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int);
    cuCtxSetCurrent(context: usize);
    cuCtxSynchronize();
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize);
    cuModuleLoadData(module: *mut usize, image: *const c_char);
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    cuStreamCreate(stream: *mut usize, flags: c_uint);
    cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// The driver, with the primary context of the first visible GPU.
pub(crate) struct Gpu {
    driver: Driver,
    device: c_int,
}

/// The compiled kernel, and the number of blocks to run: one for each multiprocessor.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(usize, c_uint);

impl Gpu {
    /// Initializes the driver and makes the context current to this thread.
    pub(crate) fn open() -> Result<Self, String> {
        let driver = Driver::open()?;
        let (mut device, mut context) = (0, 0);
        driver.cuInit(0)?;
        driver.cuDeviceGet(&raw mut device, 0)?;
        // The flags are refused if the context is already active, which is not an error here.
        let _ = driver.cuDevicePrimaryCtxSetFlags_v2(device, BLOCKING);
        driver.cuDevicePrimaryCtxRetain(&raw mut context, device)?;
        driver.cuCtxSetCurrent(context)?;
        Ok(Self { driver, device })
    }

    /// Allocates memory that is never freed, and returns its address.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, String> {
        let (mut address, bytes) = (0, usize::try_from(bytes).map_err(|error| error.to_string())?);
        self.driver.cuMemAlloc_v2(&raw mut address, bytes).map(|()| address)
    }

    /// Copies this memory of the host to an allocation of at least the same size.
    pub(crate) fn copy_from_host(&self, to: u64, from: &[u8]) -> Result<(), String> {
        self.driver.cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len())
    }

    /// Starts to copy memory of the GPU to another allocation. Both have at least this size.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), String> {
        self.driver.cuMemcpyDtoDAsync_v2(to, from, bytes, 0)
    }

    pub(crate) fn kernel(&self, name: &CStr) -> Result<Kernel, String> {
        let (mut module, mut function, mut blocks) = (0, 0, 0);
        let mut compile = |(version, target): &(&str, &str)| {
            let text = format!(".version {version}\n.target {target}{KERNEL}");
            let image = CString::new(text).map_err(|error| error.to_string())?;
            self.driver.cuModuleLoadData(&raw mut module, image.as_ptr())
        };
        let [oldest, newer @ ..] = &TARGETS;
        newer.iter().fold(compile(oldest), |compiled, target| compiled.or_else(|_| compile(target)))?;
        self.driver.cuModuleGetFunction(&raw mut function, module, name.as_ptr())?;
        self.driver.cuDeviceGetAttribute(&raw mut blocks, MULTIPROCESSORS, self.device)?;
        Ok(Kernel(function, c_uint::try_from(blocks).unwrap_or(1)))
    }

    pub(crate) fn stream(&self) -> Result<usize, String> {
        let mut stream = 0;
        self.driver.cuStreamCreate(&raw mut stream, 0)?;
        Ok(stream)
    }

    /// Launches the kernel with this argument. Stream 0 is the default stream.
    pub(crate) fn launch(&self, kernel: &Kernel, stream: usize, mut argument: u64) -> Result<(), String> {
        let mut parameters = [(&raw mut argument).cast::<c_void>()];
        let (Kernel(function, blocks), first) = (*kernel, parameters.as_mut_ptr());
        self.driver.cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, first, ptr::null_mut())
    }

    /// Waits until all launched kernels have finished.
    pub(crate) fn wait(&self) -> Result<(), String> {
        self.driver.cuCtxSynchronize()
    }
}
