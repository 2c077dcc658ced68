//! Every function of the driver's that makes, ends or tells memory, by NVIDIA's own list of prototypes, is answered by the
//! library or stands here with the reason why not. A new one makes this fail.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a case reads files and fails loudly"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use end_to_end::cuda::{library, output};
use end_to_end::programs;

/// The lists, by package of `tests/requirements.txt`: the last of CUDA 12, and 13.
const HEADERS: [&str; 2] = ["nvidia/cuda_runtime/include", "nvidia/cu13/include"];

/// What is not answered, and why.
const PASSED_BY: &[(&str, &str)] = &[
    ("cuMemAllocHost", "memory of the host"),
    ("cuMemHostAlloc", "memory of the host"),
    ("cuMemFreeHost", "memory of the host"),
    ("cuMemHostGetDevicePointer", "memory of the host"),
    ("cuMemGetAddressRange", "tells of what is there"),
    ("cuMemAddressReserve", "addresses without memory"),
    ("cuMemAddressFree", "addresses without memory"),
    ("cuMemPoolImportFromShareableHandle", "memory of another process, which pays for it"),
    ("cuMemPoolExportToShareableHandle", "stays the owner's"),
    ("cuMemPoolExportPointer", "stays the owner's"),
    ("cuMemPoolTrimTo", "what a pool keeps in reserve is not charged"),
    ("cuMemPoolSetAttribute", "what a pool keeps in reserve is not charged"),
    ("cuMemPoolGetAttribute", "tells of what is there"),
    ("cuMemPoolSetAccess", "rights, not memory"),
    ("cuMemPoolGetAccess", "rights, not memory"),
    ("cuArrayGetPlane", "a part of an array that is charged"),
    ("cuMipmappedArrayGetLevel", "a part of an array that is charged"),
    ("cuCtxCreate", "what a context takes itself no call tells: WRAPPER_CONTEXT_OVERHEAD"),
    ("cuCtxAttach", "the driver is asked what ended when it is detached"),
    ("cuDevicePrimaryCtxRetain", "the driver is asked for its state when it is released"),
    ("cuGLCtxCreate", "what a context takes itself no call tells"),
    ("cuVDPAUCtxCreate", "what a context takes itself no call tells"),
    ("cuCtxFromGreenCtx", "a context that is there"),
    ("cuCtxGetCurrent", "a context that is there"),
    ("cuCtxPopCurrent", "a context that is there"),
    ("cuStreamGetCtx", "a context that is there"),
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
    ("cuModuleGetGlobal", "a part of a module, which no call tells the size of"),
    ("cuLibraryGetGlobal", "a part of a module, which no call tells the size of"),
    ("cuLibraryGetManaged", "a part of a module, which no call tells the size of"),
    ("cuMulticastCreate", "no memory: bound to memory that is charged"),
    ("cuGraphAddMemFreeNode", "a graph's memory is not charged yet"),
    ("cuGraphMemFreeNodeGetParams", "tells of what is there"),
    ("cuGraphMemAllocNodeGetParams", "tells of what is there"),
    ("cuDeviceGraphMemTrim", "a graph's memory is not charged yet"),
    ("cuDeviceGetGraphMemAttribute", "a graph's memory is not charged yet"),
    ("cuDeviceSetGraphMemAttribute", "a graph's memory is not charged yet"),
    ("cuTexRefGetAddress", "tells of what is there"),
    ("cuTexRefGetArray", "tells of what is there"),
    ("cuTexRefGetMipmappedArray", "tells of what is there"),
    ("cuSurfRefGetArray", "tells of what is there"),
    ("cuMemcpyBatchAsync", "a list of addresses, which it reads"),
    ("cuMemPrefetchBatchAsync", "a list of addresses, which it reads"),
    ("cuMemDiscardBatchAsync", "a list of addresses, which it reads"),
    ("cuMemDiscardAndPrefetchBatchAsync", "a list of addresses, which it reads"),
    ("cuMemGetAllocationGranularity", "tells of what is there"),
    ("cuMemGetAllocationPropertiesFromHandle", "tells of what is there"),
];

/// What a name or its parameters have if memory may be made, ended or told by it.
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
const MADE: &[&str] = &[
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

/// A prototype of `cudaTypedefs.h`.
struct Prototype {
    /// Without version and flavour.
    name: String,
    /// Since when it is what it is: each is a function of its own.
    version: String,
    /// It has a flavour for threads.
    threads: bool,
    parameters: String,
}

fn prototypes(text: &str) -> Vec<Prototype> {
    let line = |line: &str| {
        let (name, parameters) = line.split_once("*PFN_")?.1.split_once(")(")?;
        let flat = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let numbered =
            |(_, version): &(&str, &str)| version.starts_with(|letter: char| letter.is_ascii_digit());
        let (base, version) = flat.rsplit_once("_v").filter(numbered).unwrap_or((flat, ""));
        let (threads, parameters) = (flat != name, parameters.to_owned());
        Some(Prototype { name: base.to_owned(), version: version.to_owned(), threads, parameters })
    };
    text.lines().filter(|line| line.trim_start().starts_with("typedef CUresult")).filter_map(line).collect()
}

impl Prototype {
    fn is_about_memory(&self) -> bool {
        // Addresses of what is read are told from those that are given by the word before.
        let parameters = self.parameters.replace("const CUdeviceptr *", "").replace("const CUcontext *", "");
        NAMES.iter().any(|part| self.name.contains(part)) || MADE.iter().any(|kind| parameters.contains(kind))
    }
}

/// The driver's functions that the library has.
fn answered() -> BTreeSet<String> {
    let told = output(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library()));
    let names = String::from_utf8(told.stdout).unwrap();
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    names.filter(|name| name.starts_with("cu")).map(str::to_owned).collect()
}

/// The function's name without version and flavour.
fn base(symbol: &str) -> &str {
    let symbol = symbol.trim_end_matches("_ptsz");
    symbol.rsplit_once("_v").map_or(symbol, |(base, _)| base)
}

/// Prototypes about memory that are neither answered, in each of their versions and flavours, nor passed by for a reason.
fn missing(headers: &str, answered: &BTreeSet<String>) -> BTreeSet<String> {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut with_threads = BTreeSet::new();
    for prototype in prototypes(headers).into_iter().filter(Prototype::is_about_memory) {
        if prototype.threads {
            with_threads.insert(prototype.name);
        } else {
            versions.entry(prototype.name).or_default().insert(prototype.version);
        }
    }
    let passed_by = |name: &str| PASSED_BY.iter().any(|(passed, _)| *passed == name);
    let of = |name: &str, threads: bool| {
        answered.iter().filter(|symbol| base(symbol) == name && symbol.ends_with("_ptsz") == threads).count()
    };
    let lacks = |(name, versions): &(String, BTreeSet<String>)| {
        of(name, false) < versions.len() || (with_threads.contains(name) && of(name, true) == 0)
    };
    versions.into_iter().filter(|found| !passed_by(&found.0)).filter(lacks).map(|found| found.0).collect()
}

/// All lists of prototypes of a package.
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

/// All lists of both packages.
fn all_headers() -> String {
    HEADERS.into_iter().map(headers).collect()
}

#[test]
fn every_prototype_about_memory_is_answered_or_passed_by_for_a_reason() {
    for directory in HEADERS {
        let headers = headers(directory);
        let count = prototypes(&headers).len();
        assert_eq!(count, headers.matches("*PFN_cu").count(), "{directory}: not all are read");
        assert!(count > 600, "{directory}: not the list");
        assert_eq!(missing(&headers, &answered()), BTreeSet::new(), "{directory}");
    }
}

#[test]
fn the_audit_finds_what_is_not_answered() {
    let (headers, all) = (all_headers(), answered());
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
fn no_reason_is_given_for_what_is_not_there_or_is_answered() {
    let about = prototypes(&all_headers()).into_iter().filter(Prototype::is_about_memory);
    let about: BTreeSet<String> = about.map(|prototype| prototype.name).collect();
    let answered = answered();
    let stale = |name: &&str| !about.contains(*name) || answered.iter().any(|symbol| base(symbol) == *name);
    let stale: Vec<&str> = PASSED_BY.iter().map(|(name, _)| *name).filter(stale).collect();
    assert_eq!(stale, [""; 0]);
}
