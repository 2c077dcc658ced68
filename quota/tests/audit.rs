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
    ("cuMemExportToShareableHandle", "stays the owner's"),
    ("cuMemPoolImportFromShareableHandle", "memory of another process, which pays for it"),
    ("cuMemPoolExportToShareableHandle", "stays the owner's"),
    ("cuMemPoolExportPointer", "stays the owner's"),
    ("cuMemPoolTrimTo", "what a pool keeps in reserve is not charged"),
    ("cuMemPoolSetAttribute", "what a pool keeps in reserve is not charged"),
    ("cuMemPoolGetAttribute", "tells of what is there"),
    ("cuMemPoolSetAccess", "rights, not memory"),
    ("cuMemPoolGetAccess", "rights, not memory"),
    ("cuMemGetHandleForAddressRange", "stays the owner's"),
    ("cuArrayGetPlane", "a part of an array that is charged"),
    ("cuMipmappedArrayGetLevel", "a part of an array that is charged"),
    ("cuCtxCreate", "what a context takes itself no call tells: WRAPPER_CONTEXT_OVERHEAD"),
    ("cuCtxAttach", "the driver is asked what ended when it is detached"),
    ("cuDevicePrimaryCtxRetain", "the driver is asked for its state when it is released"),
    ("cuGLCtxCreate", "what a context takes itself no call tells"),
    ("cuVDPAUCtxCreate", "what a context takes itself no call tells"),
    ("cuIpcGetMemHandle", "stays the owner's"),
    ("cuIpcCloseMemHandle", "was not charged when it was opened"),
    ("cuIpcOpenEventHandle", "an event"),
    ("cuExternalMemoryGetMappedBuffer", "memory of another interface"),
    ("cuExternalMemoryGetMappedMipmappedArray", "memory of another interface"),
    ("cuDestroyExternalMemory", "was not charged when it was imported"),
    ("cuImportExternalSemaphore", "no memory"),
    ("cuDestroyExternalSemaphore", "no memory"),
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
    ("cuGraphicsMapResources", "memory of another interface"),
    ("cuTexRefGetAddress", "tells of what is there"),
    ("cuTexRefGetArray", "tells of what is there"),
    ("cuTexRefGetMipmappedArray", "tells of what is there"),
    ("cuSurfRefGetArray", "tells of what is there"),
    ("cuGreenCtxCreate", "what a context takes itself no call tells"),
    ("cuMemcpyBatchAsync", "a list of addresses, which it reads"),
    ("cuMemPrefetchBatchAsync", "a list of addresses, which it reads"),
    ("cuMemDiscardBatchAsync", "a list of addresses, which it reads"),
    ("cuMemDiscardAndPrefetchBatchAsync", "a list of addresses, which it reads"),
    ("cuCheckpointProcessRestore", "what another process had"),
    ("cuMemGetAllocationGranularity", "tells of what is there"),
    ("cuMemGetAllocationPropertiesFromHandle", "tells of what is there"),
    ("cuMemBatchDecompressAsync", "needs memory that is there"),
    ("cuMemSetAccess", "rights, not memory"),
    ("cuMemGetAccess", "rights, not memory"),
    ("cuStreamAttachMemAsync", "needs memory that is there"),
    ("cuMulticastGetGranularity", "tells of what is there"),
];

/// What a name or its parameters have if memory may be made, ended or told by it.
const NAMES: [&str; 12] = [
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
];
const MORE_NAMES: [&str; 9] = [
    "ArrayCreate",
    "Array3DCreate",
    "ArrayDestroy",
    "GetProcAddress",
    "Import",
    "IpcOpen",
    "IpcClose",
    "GraphMem",
    "GreenCtxDestroy",
];
const MADE: [&str; 9] = [
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

/// A prototype of `cudaTypedefs.h`: the function's name and its parameters.
fn prototypes(text: &str) -> Vec<(String, String)> {
    let flat = text.replace("\\\n", " ");
    let line = |line: &str| {
        let (name, parameters) = line.split_once("PFN_")?.1.split_once(")(")?;
        let base = name
            .rsplit_once("_v")
            .filter(|(_, version)| version.starts_with(|letter: char| letter.is_ascii_digit()));
        Some((base.map_or(name, |base| base.0).to_owned(), parameters.to_owned()))
    };
    flat.lines().filter(|line| line.starts_with("typedef CUresult")).filter_map(line).collect()
}

fn is_about_memory(name: &str, parameters: &str) -> bool {
    // Addresses of what is read are told from those that are given by the word before.
    let parameters = parameters.replace("const CUdeviceptr *", "").replace("const CUcontext *", "");
    NAMES.iter().chain(&MORE_NAMES).any(|part| name.contains(part))
        || MADE.iter().any(|kind| parameters.contains(kind))
        || (name.starts_with("cuGraphAddNode"))
}

/// The driver's functions that the library has, by name without version and flavour.
fn answered() -> BTreeSet<String> {
    let told = output(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library()));
    let names = String::from_utf8(told.stdout).unwrap();
    let base = |name: &str| {
        let name = name.strip_suffix("_ptsz").unwrap_or(name);
        let name = name.rsplit_once("_v").map_or(name, |(base, _)| base);
        name.to_owned()
    };
    names
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| name.starts_with("cu"))
        .map(base)
        .collect()
}

/// Prototypes about memory that are neither answered nor passed by for a reason.
fn missing(headers: &str, answered: &BTreeSet<String>) -> BTreeSet<String> {
    let passed_by: BTreeMap<&str, &str> = PASSED_BY.iter().copied().collect();
    let about =
        prototypes(headers).into_iter().filter(|(name, parameters)| is_about_memory(name, parameters));
    about
        .map(|(name, _)| name)
        .filter(|name| !answered.contains(name) && !passed_by.contains_key(name.as_str()))
        .collect()
}

/// All lists of prototypes of a package.
fn headers(folder: &str) -> String {
    let lib = programs::root().join("target/venv/lib");
    let python = fs::read_dir(lib)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("site-packages").exists());
    let folder = python.unwrap().join("site-packages").join(folder);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let lists = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with("Typedefs.h"));
    lists.map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_prototype_about_memory_is_answered_or_passed_by_for_a_reason() {
    for folder in HEADERS {
        let headers = headers(folder);
        assert!(prototypes(&headers).len() > 600, "{folder}: not the list");
        assert_eq!(missing(&headers, &answered()), BTreeSet::new(), "{folder}");
    }
}

#[test]
fn the_audit_finds_what_is_not_answered() {
    let headers: String = HEADERS.into_iter().map(headers).collect();
    let all = answered();
    // What only ends, tells or opens is in the list by its name; what makes memory by what it gives as well.
    for name in &all {
        let mut without = all.clone();
        without.remove(name);
        let expected = BTreeSet::from([name.clone()]);
        assert_eq!(missing(&headers, &without), expected, "{name} is not needed, or not found");
    }
    for new in [
        "typedef CUresult (CUDAAPI *PFN_cuMemAllocSomehow_v14000)(CUdeviceptr_v2 *dptr, size_t bytesize);",
        "typedef CUresult (CUDAAPI *PFN_cuTensorMake_v14000)(CUarray *out);",
        "typedef CUresult (CUDAAPI *PFN_cuHeapCreate_v14000)(CUmemoryPool *out, int flags);",
        "typedef CUresult (CUDAAPI *PFN_cuMemFreeSomehow_v14000)(CUdeviceptr_v2 dptr);",
    ] {
        assert_eq!(missing(&format!("{headers}\n{new}\n"), &all).len(), 1, "{new}");
    }
}

#[test]
fn no_reason_is_given_for_what_is_not_there_or_is_answered() {
    let headers: String = HEADERS.into_iter().map(headers).collect();
    let about: BTreeSet<String> = prototypes(&headers)
        .into_iter()
        .filter(|(name, parameters)| is_about_memory(name, parameters))
        .map(|(name, _)| name)
        .collect();
    let all = answered();
    let stale: Vec<&str> = PASSED_BY
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !about.contains(*name) || all.contains(*name))
        .collect();
    assert_eq!(stale, [""; 0]);
}
