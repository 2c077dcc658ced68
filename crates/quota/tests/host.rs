//! Tests that the library does not disturb its host program: symbol lookups return what they would return without it,
//! other preloaded libraries work, and the library neither writes to the program's output nor blocks or terminates the
//! program.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use end_to_end::cuda::{self, Machine, codes, compiled, output};
use end_to_end::fake::Scenario;
use end_to_end::{programs, wait};

const OUT_OF_MEMORY: i64 = 2;

/// Compiles a file in `scopes/` into a directory.
fn scope(directory: &Path, name: &str, flags: &[&str]) {
    let source = programs::root().join("tests/fixtures/quota/scopes").join(format!("{name}.c"));
    let target = if name == "main" { "main".into() } else { format!("lib{name}.so") };
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-o"]).arg(directory.join(target)).arg(source);
    if name != "main" {
        command.args(["-fPIC", "-shared"]);
    }
    command.arg(format!("-L{}", directory.display())).args(flags);
    let _ = output(&mut command);
}

/// Builds the program in `scopes/`. Its libraries are in the machine's directory.
fn scopes(machine: &Machine) -> PathBuf {
    let directory = machine.path("");
    symlink(programs::fake_nvml(), machine.path("libnvidia-ml.so.1")).unwrap();
    for (name, flags) in [
        ("second", &[][..]),
        ("first", &["-Wl,--no-as-needed", "-lsecond"]),
        ("private", &[]),
        ("plugin", &["-Wl,--no-as-needed", "-lprivate"]),
        ("main", &["-Wl,--no-as-needed", "-lfirst", "-lsecond"]),
    ] {
        scope(&directory, name, flags);
    }
    machine.path("main")
}

const NAMES: [&str; 4] =
    ["cuMemAlloc_v2", "cuMemAllocFromPoolAsync_ptsz", "nvmlDeviceGetMemoryInfo", "cuGetProcAddress_v2"];

fn lookups(command: &mut Command) -> String {
    String::from_utf8(output(command.args(NAMES)).stdout).unwrap()
}

#[test]
fn symbol_lookups_are_the_same_as_without_the_library() {
    let machine = Machine::new();
    let main = scopes(&machine);
    let bare = lookups(&mut machine.bare(&main));
    // The expected results without the library.
    for expected in [
        "early second",
        "first next second",
        "first next of itself none",
        "first default first",
        "main next first",
        "handle second",
        "handle of none undefined symbol",
        "hidden undefined symbol",
        "plugin's hidden hidden",
        "before cuMemAlloc_v2 default=no next=no first-next=no all=no own=no",
        "loaded 1 1",
        "after cuMemAlloc_v2 default=no next=no first-next=no all=no own=yes",
    ] {
        let found = bare.lines().any(|line| line.starts_with(expected));
        assert!(found, "{expected:?} is not in {bare}");
    }
    for variables in [&[][..], &[("WRAPPER_LIE_NVML", "1")], &[("WRAPPER_DISABLE", "1")]] {
        let preloaded = lookups(machine.program(&main).envs(variables.iter().copied()));
        // After the driver was loaded with RTLD_LOCAL, the hooks are found in the global scope. They lead to the same
        // driver.
        let split = |text: &str| {
            text.split_once("loaded 1 1\n").map(|(before, after)| (before.to_owned(), after.to_owned()))
        };
        let ((before, bare_after), (ours_before, ours_after)) =
            (split(&bare).unwrap(), split(&preloaded).unwrap());
        assert_eq!(ours_before, before, "{variables:?}");
        assert_eq!(ours_after.lines().count(), bare_after.lines().count());
        assert!(
            ours_after.lines().all(|line| line.ends_with("own=yes") && !line.contains("error")),
            "{ours_after}"
        );
    }
}

/// Returns a command that runs a program with these libraries preloaded in this order.
fn preloading(machine: &Machine, program: impl AsRef<OsStr>, libraries: &[&OsStr]) -> Command {
    let mut command = machine.bare(program);
    command.env("LD_PRELOAD", libraries.join(OsStr::new(":")));
    command
}

#[test]
fn preloaded_allocators_work_in_any_order() {
    for name in ["libjemalloc.so.2", "libmimalloc.so.2"] {
        let allocator = cuda::allocator(name);
        let ours = cuda::library().into_os_string();
        for order in [[&ours, &allocator], [&allocator, &ours]] {
            let order = order.map(OsString::as_os_str);
            let machine = Machine::new();
            let mut client = preloading(&machine, cuda::client("proc"), &order);
            client.args(["proc", "init 0", "alloc 1000", "alloc 1", "free 0", "create 1000 1 0"]);
            assert_eq!(
                codes(client.env("WRAPPER_MAX_MEMORY", "1000")),
                [0, 0, OUT_OF_MEMORY, 0, 0],
                "{order:?}"
            );
            let quota = machine.quota(40_960);
            let mut race = preloading(&machine, compiled("race", &[]), &order);
            race.args(["dl", "4", "2000", "4096"]).env("WRAPPER_SHARED", &quota);
            let result = String::from_utf8(output(&mut race).stdout).unwrap();
            assert_eq!(result, "ready\nfull\n40960 0\n", "{order:?}");
            let mut fork = preloading(&machine, compiled("fork", &[]), &order);
            fork.args(["dl", "40", "0", "40960"]).env("WRAPPER_MAX_MEMORY", "40960");
            assert_eq!(String::from_utf8(output(&mut fork).stdout).unwrap(), "40 0\n", "{order:?}");
        }
    }
}

#[test]
fn program_with_address_sanitizer_works() {
    let machine = Machine::new();
    let calls = ["init 0", "alloc 1000", "alloc 1", "pitch 1 1", "free 0", "async 1000", "free 1"];
    let expected = [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY, 0, 0, 0];
    for route in ["dl", "proc"] {
        let client = compiled("client", &["-fsanitize=address", "-static-libasan"]);
        let mut client = machine.program(client);
        client.arg(route).args(calls).env("WRAPPER_MAX_MEMORY", "1000");
        assert_eq!(codes(&mut client), expected, "{route}");
    }
    // Also test the case in which the sanitizer itself is preloaded.
    let found = output(Command::new("cc").arg("-print-file-name=libasan.so"));
    let asan = String::from_utf8(found.stdout).unwrap();
    let client = compiled("client", &["-fsanitize=address"]);
    let ours = cuda::library().into_os_string();
    let mut client = preloading(&machine, client, &[OsStr::new(asan.trim()), &ours]);
    client.arg("dl").args(calls).env("WRAPPER_MAX_MEMORY", "1000");
    assert_eq!(codes(&mut client), expected);
    let race = compiled("race", &["-fsanitize=address", "-static-libasan"]);
    let mut race = machine.program(race);
    race.args(["proc", "4", "2000", "4096"]).env("WRAPPER_MAX_MEMORY", "40960");
    assert_eq!(String::from_utf8(output(&mut race).stdout).unwrap(), "ready\nfull\n40960 0\n");
}

#[test]
fn warnings_neither_end_nor_block_the_program() {
    let machine = Machine::new();
    // Without WRAPPER_MAX_MEMORY the library writes a warning. The reader has closed the pipe, so a write raises
    // SIGPIPE.
    let mut client = machine.client("dl", &["init 0", "alloc 1000"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let result = client.stderr(writer).stdin(Stdio::null()).stdout(Stdio::piped()).output().unwrap();
    assert_eq!((result.status.signal(), &result.stdout[..]), (None, &b"0\n0\n"[..]));
    // A blocking write to a full pipe would hang.
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut child = client.stderr(writer).spawn().unwrap();
    let status = wait::until("the client to end", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    // Also test a closed standard error.
    let mut shell = machine.program("/bin/sh");
    shell.args(["-c", "exec \"$0\" dl 'init 0' 'alloc 1000' 2>&-"]).arg(cuda::client("dl"));
    assert_eq!(codes(&mut shell), [0, 0]);
}

#[test]
fn missing_driver_is_reported_as_without_the_library() {
    let machine = Machine::new();
    fs::remove_file(machine.path("libcuda.so.1")).unwrap();
    let result = machine.client("dl", &["init 0"]).output().unwrap();
    assert_eq!(result.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&result.stderr)
            .starts_with("no driver: libcuda.so.1: cannot open shared object file")
    );
    // This driver does not export some functions.
    let machine = Machine::new();
    let result =
        machine.client("proc", &["init 0"]).env("FAKE_CUDA_MISSING", "cuMemCreate").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&result.stderr), "cuMemCreate 10020: code 0 status 1\n");
}

#[test]
fn nvml_reports_the_quota_if_enabled() {
    let machine = Machine::new();
    let scenario = Scenario::new("gpus: [{count: 2, memory: {total: 16000MiB, reserved: 500MiB}}]");
    symlink(programs::fake_nvml(), machine.path("libnvidia-ml.so.1")).unwrap();
    let script = "
import ctypes, pynvml
pynvml.nvmlInit()
for gpu in range(2):
    device = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    for about in pynvml.nvmlDeviceGetMemoryInfo(device), pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2):
        print(about.total >> 20, about.free >> 20, about.used >> 20)
cuda, context, at = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()
assert 0 == cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context)
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(300 << 20)) == 0
about = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
print(about.total >> 20, about.free >> 20, about.used >> 20)
";
    let run = |variables: &[(&str, &str)]| {
        let mut python = machine.program(programs::python());
        python
            .args(["-c", script])
            .env("FAKE_NVML_SCENARIO", scenario.path())
            .envs(variables.iter().copied());
        String::from_utf8(output(&mut python).stdout).unwrap()
    };
    let limit = ("WRAPPER_MAX_MEMORY", "1GiB");
    let bare = "16000 15500 500\n16000 15500 0\n16000 15500 500\n16000 15500 0\n16000 15500 500\n";
    assert_eq!(run(&[limit]), bare);
    let reduced = "1024 1024 0\n1024 1024 0\n1024 1024 0\n1024 1024 0\n1024 724 300\n";
    assert_eq!(run(&[limit, ("WRAPPER_LIE_NVML", "1")]), reduced);
    // Only one GPU has a limit, by its UUID.
    let by_name = ("WRAPPER_MAX_MEMORY_GPU_00000000_0000_4000_8000_000000000001", "1GiB");
    let reduced = "1024 1024 0\n1024 1024 0\n16000 15500 500\n16000 15500 500\n1024 724 300\n";
    assert_eq!(run(&[by_name, ("WRAPPER_DEFAULT", "off"), ("WRAPPER_LIE_NVML", "1")]), reduced);
}

#[test]
fn setuid_program_ignores_the_environment_of_its_user() {
    let machine = Machine::new();
    fs::set_permissions(machine.path(""), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(machine.path("truth"), Permissions::from_mode(0o666)).unwrap();
    let quota = machine.quota(1000);
    fs::set_permissions(&quota, Permissions::from_mode(0o666)).unwrap();
    symlink(cuda::library(), machine.path("libbailiff_quota.so")).unwrap();
    let directory = machine.path("").display().to_string();
    // The library is linked, because the loader does not preload libraries into setuid programs.
    let flags = ["-DLINKED", "-Wl,--no-as-needed", "-lbailiff_quota", "-lcuda"].map(str::to_owned);
    let paths = [format!("-L{directory}"), format!("-Wl,-rpath,{}", directory.trim_end_matches('/'))];
    let program = machine.path("program");
    let source = programs::root().join("tests/fixtures/quota/client.c");
    let _ = output(
        Command::new("cc").arg("-pthread").arg("-o").arg(&program).arg(source).args(paths).args(flags),
    );
    let run = |mode: u32| {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let mut command = machine.bare(&program);
        command.env_remove("LD_LIBRARY_PATH").uid(4002).gid(4002);
        command.env("WRAPPER_SHARED", &quota).env("WRAPPER_LOG", machine.path("log"));
        command.args(["linked", "init 0", "set-limit 10", "alloc 2000"]);
        codes(&mut command)
    };
    let before = fs::read(&quota).unwrap();
    assert_eq!(run(0o4755), [0, 0, 0], "nothing is enforced");
    assert_eq!(fs::read(&quota).unwrap(), before, "the shared quota is not written");
    assert!(!machine.path("log").exists(), "no file is created");
    assert_eq!(run(0o755), [0, 0, OUT_OF_MEMORY]);
    assert!(machine.path("log").exists() && fs::read(&quota).unwrap() != before);
}

#[test]
fn nvidia_python_binding_gets_real_errors() {
    let machine = Machine::new();
    let script = programs::root().join("tests/fixtures/quota/bindings.py");
    let mut python = machine.program(programs::python());
    python.arg(script).env("WRAPPER_MAX_MEMORY", "100MiB");
    let result = output(&mut python);
    assert!(String::from_utf8_lossy(&result.stdout).starts_with("as expected by 13."), "{result:?}");
    assert_eq!(machine.peak(0), 100 << 20);
    // Without the library, the driver grants more memory.
    let bare = python.env_remove("LD_PRELOAD").output().unwrap();
    assert!(!bare.status.success(), "{bare:?}");
}
