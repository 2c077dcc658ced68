//! Tests that every driver function that allocates, frees or reports memory is hooked by the library or listed here
//! with a reason. The functions are taken from NVIDIA's own list of prototypes, so a new function makes this test
//! fail.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reads files and fails loudly"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use end_to_end::cuda::{library, output};
use end_to_end::programs;

/// Directories of the headers: the last release of CUDA 12, and CUDA 13 (packages in `tests/requirements/python.in`).
const HEADERS: [&str; 2] = ["nvidia/cuda_runtime/include", "nvidia/cu13/include"];

/// Functions without a hook, and the reasons.
const NOT_HOOKED: &[(&str, &str)] = &[
    ("cuMemAllocHost", "memory of the host"),
    ("cuMemHostAlloc", "memory of the host"),
    ("cuMemFreeHost", "memory of the host"),
    ("cuMemHostGetDevicePointer", "memory of the host"),
    ("cuMemGetAddressRange", "a query"),
    ("cuMemAddressReserve", "addresses without memory"),
    ("cuMemAddressFree", "addresses without memory"),
    ("cuMemPoolImportFromShareableHandle", "memory of another process, which is charged for it"),
    ("cuMemPoolExportToShareableHandle", "the owner stays the same"),
    ("cuMemPoolExportPointer", "the owner stays the same"),
    ("cuMemPoolTrimTo", "the reserve of a pool is not charged"),
    ("cuMemPoolSetAttribute", "the reserve of a pool is not charged"),
    ("cuMemPoolGetAttribute", "a query"),
    ("cuMemPoolSetAccess", "rights, not memory"),
    ("cuMemPoolGetAccess", "rights, not memory"),
    ("cuArrayGetPlane", "a part of an array that is charged"),
    ("cuMipmappedArrayGetLevel", "a part of an array that is charged"),
    ("cuCtxCreate", "no call reports the memory of a context: WRAPPER_CONTEXT_OVERHEAD"),
    ("cuCtxAttach", "the driver is asked what was freed when it is detached"),
    ("cuDevicePrimaryCtxRetain", "the driver is asked for its state when it is released"),
    ("cuGLCtxCreate", "no call reports the memory of a context"),
    ("cuVDPAUCtxCreate", "no call reports the memory of a context"),
    ("cuCtxFromGreenCtx", "an existing context"),
    ("cuCtxGetCurrent", "an existing context"),
    ("cuCtxPopCurrent", "an existing context"),
    ("cuStreamGetCtx", "an existing context"),
    ("cuLogicalEndpointImport", "no memory: bound to memory that is charged"),
    ("cuTensorMapSetAllocationClass", "no memory"),
    ("cuIpcCloseMemHandle", "was not charged when it was opened"),
    ("cuIpcOpenEventHandle", "an event"),
    ("cuExternalMemoryGetMappedBuffer", "memory of another interface"),
    ("cuExternalMemoryGetMappedMipmappedArray", "memory of another interface"),
    ("cuImportExternalSemaphore", "no memory"),
    ("cuGraphicsResourceGetMappedPointer", "memory of another interface"),
    ("cuGraphicsResourceGetMappedMipmappedArray", "memory of another interface"),
    ("cuGraphicsSubResourceGetMappedArray", "memory of another interface"),
    ("cuGLMapBufferObject", "memory of another interface"),
    ("cuGLMapBufferObjectAsync", "memory of another interface"),
    ("cuModuleGetGlobal", "a part of a module, whose size no call reports"),
    ("cuLibraryGetGlobal", "a part of a module, whose size no call reports"),
    ("cuLibraryGetManaged", "a part of a module, whose size no call reports"),
    ("cuMulticastCreate", "no memory: bound to memory that is charged"),
    ("cuGraphAddMemFreeNode", "memory of graphs is not charged yet"),
    ("cuGraphMemFreeNodeGetParams", "a query"),
    ("cuGraphMemAllocNodeGetParams", "a query"),
    ("cuDeviceGraphMemTrim", "memory of graphs is not charged yet"),
    ("cuDeviceGetGraphMemAttribute", "memory of graphs is not charged yet"),
    ("cuDeviceSetGraphMemAttribute", "memory of graphs is not charged yet"),
    ("cuTexRefGetAddress", "a query"),
    ("cuTexRefGetArray", "a query"),
    ("cuTexRefGetMipmappedArray", "a query"),
    ("cuSurfRefGetArray", "a query"),
    ("cuMemcpyBatchAsync", "reads a list of addresses"),
    ("cuMemPrefetchBatchAsync", "reads a list of addresses"),
    ("cuMemDiscardBatchAsync", "reads a list of addresses"),
    ("cuMemDiscardAndPrefetchBatchAsync", "reads a list of addresses"),
    ("cuMemGetAllocationGranularity", "a query"),
    ("cuMemGetAllocationPropertiesFromHandle", "a query"),
];

/// Parts of function names that suggest that a function allocates, frees or reports memory.
const NAMES: &[&str] = &[
    "Alloc",
    "Free",
    "MemGetInfo",
    "TotalMem",
    "MemCreate",
    "MemRelease",
    "MemMap",
    "MemUnmap",
    "MemPool",
    "CtxDestroy",
    "CtxDetach",
    "PrimaryCtxRe",
    "ArrayCreate",
    "Array3DCreate",
    "ArrayDestroy",
    "GetProcAddress",
    "Import",
    "IpcOpen",
    "IpcClose",
    "GraphMemAttribute",
    "GraphMemTrim",
    "GraphAddNode",
    "GreenCtxDestroy",
];
/// Parameter types with which a function returns memory.
const RETURNED: &[&str] = &[
    "CUdeviceptr *",
    "CUdeviceptr_v2 *",
    "CUdeviceptr_v1 *",
    "CUarray *",
    "CUmipmappedArray *",
    "CUmemGenericAllocationHandle *",
    "CUmemGenericAllocationHandle_v1 *",
    "CUmemoryPool *",
    "CUcontext *",
];

/// A function prototype in `cudaTypedefs.h`.
struct Prototype {
    /// Name without version and flavour.
    name: String,
    /// Version. Each version is a separate function.
    version: String,
    /// Whether the function is the per-thread flavour.
    threads: bool,
    parameters: String,
}

fn prototypes(text: &str) -> Vec<Prototype> {
    let line = |line: &str| {
        let (name, parameters) = line.split_once("*PFN_")?.1.split_once(")(")?;
        let flat = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let numbered = |(_, version): &(&str, &str)| version.starts_with(|char: char| char.is_ascii_digit());
        let (base, version) = flat.rsplit_once("_v").filter(numbered).unwrap_or((flat, ""));
        let (threads, parameters) = (flat != name, parameters.to_owned());
        Some(Prototype { name: base.to_owned(), version: version.to_owned(), threads, parameters })
    };
    text.lines().filter(|line| line.trim_start().starts_with("typedef CUresult")).filter_map(line).collect()
}

impl Prototype {
    fn is_about_memory(&self) -> bool {
        // `const` distinguishes addresses that are read from those that are returned.
        let parameters = self.parameters.replace("const CUdeviceptr *", "").replace("const CUcontext *", "");
        NAMES.iter().any(|part| self.name.contains(part))
            || RETURNED.iter().any(|kind| parameters.contains(kind))
    }
}

/// Returns the driver functions that the library exports.
fn hooked() -> BTreeSet<String> {
    let symbols = output(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library()));
    let names = String::from_utf8(symbols.stdout).unwrap();
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    names.filter(|name| name.starts_with("cu")).map(str::to_owned).collect()
}

/// Returns the name of a function without version and flavour.
fn base(symbol: &str) -> &str {
    let symbol = symbol.trim_end_matches("_ptsz");
    symbol.rsplit_once("_v").map_or(symbol, |(base, _)| base)
}

/// Returns the prototypes about memory that are neither listed with a reason nor hooked in all versions and flavours.
fn missing(headers: &str, hooked: &BTreeSet<String>) -> BTreeSet<String> {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut with_threads = BTreeSet::new();
    for prototype in prototypes(headers).into_iter().filter(Prototype::is_about_memory) {
        if prototype.threads {
            with_threads.insert(prototype.name);
        } else {
            versions.entry(prototype.name).or_default().insert(prototype.version);
        }
    }
    let listed = |name: &str| NOT_HOOKED.iter().any(|(listed, _)| *listed == name);
    let count = |name: &str, threads: bool| {
        hooked.iter().filter(|symbol| base(symbol) == name && symbol.ends_with("_ptsz") == threads).count()
    };
    let incomplete = |(name, versions): &(String, BTreeSet<String>)| {
        count(name, false) < versions.len() || (with_threads.contains(name) && count(name, true) == 0)
    };
    versions.into_iter().filter(|found| !listed(&found.0)).filter(incomplete).map(|found| found.0).collect()
}

/// Returns the prototypes in a package.
fn headers(directory: &str) -> String {
    let lib = programs::root().join("target/venv/lib");
    let python = fs::read_dir(lib)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("site-packages").exists());
    let directory = python.unwrap().join("site-packages").join(directory);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let lists = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with("Typedefs.h"));
    lists.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the prototypes in both packages.
fn all_headers() -> String {
    HEADERS.into_iter().map(headers).collect()
}

#[test]
fn memory_prototypes_are_hooked_or_listed() {
    for directory in HEADERS {
        let headers = headers(directory);
        let count = prototypes(&headers).len();
        assert_eq!(count, headers.matches("*PFN_cu").count(), "{directory}: some prototypes were not parsed");
        assert!(count > 600, "{directory}: the header has too few prototypes");
        assert_eq!(missing(&headers, &hooked()), BTreeSet::new(), "{directory}");
    }
}

#[test]
fn missing_hook_is_detected() {
    let (headers, all) = (all_headers(), hooked());
    for symbol in &all {
        let mut without = all.clone();
        without.remove(symbol);
        let expected = BTreeSet::from([base(symbol).to_owned()]);
        assert_eq!(missing(&headers, &without), expected, "{symbol} is not needed, or not found");
    }
    for (name, new) in [
        ("cuMemAllocSomehow", "cuMemAllocSomehow_v14000)(CUdeviceptr_v2 *dptr, size_t bytesize);"),
        ("cuTensorMake", "cuTensorMake_v14000)(CUarray *out);"),
        ("cuHeapCreate", "cuHeapCreate_v14000)(CUmemoryPool *out, int flags);"),
        ("cuMemFreeSomehow", "cuMemFreeSomehow_v14000)(CUdeviceptr_v2 dptr);"),
        ("cuMemAlloc", "cuMemAlloc_v14000)(CUdeviceptr_v2 *dptr, size_t bytesize, int how);"),
        ("cuMemCreate", "cuMemCreate_v14000_ptsz)(CUmemGenericAllocationHandle *handle);"),
    ] {
        let more = format!("{headers}\n    typedef CUresult (CUDAAPI *PFN_{new}\n");
        assert_eq!(missing(&more, &all), BTreeSet::from([name.to_owned()]), "{new}");
    }
}

#[test]
fn listed_functions_exist_and_are_not_hooked() {
    let memory = prototypes(&all_headers()).into_iter().filter(Prototype::is_about_memory);
    let memory: BTreeSet<String> = memory.map(|prototype| prototype.name).collect();
    let hooked = hooked();
    let stale = |name: &&str| !memory.contains(*name) || hooked.iter().any(|symbol| base(symbol) == *name);
    let stale: Vec<&str> = NOT_HOOKED.iter().map(|(name, _)| *name).filter(stale).collect();
    assert_eq!(stale, [""; 0]);
}
