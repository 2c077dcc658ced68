//! File systems that do not respond, like a hung network file system. Programs that use them block in the kernel.

use std::fs::{self, File};
use std::io::ErrorKind::PermissionDenied;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::park_timeout;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::home::Home;
use crate::wait::until;

/// A file system that never responds: FUSE without a reader of its requests. It is removed with its test, and blocked calls then fail.
pub struct Hung {
    device: File,
    root: PathBuf,
}

impl Hung {
    /// Creates a file system on a new directory.
    ///
    /// # Panics
    /// If the file system cannot be created, or if there is no `/dev/fuse`.
    pub fn at(root: PathBuf) -> Self {
        fs::create_dir(&root).expect("a directory");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        Self { device, root }
    }

    /// Returns a path in the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the same command line, to be run in its own mount namespace with the file system.
    ///
    /// # Panics
    /// If no descriptors are left.
    pub fn in_namespace(&self, command: &Command) -> Command {
        let device = self.device.try_clone().expect("a descriptor");
        mounting((&self.root, "40000"), device, command)
    }
}

/// Returns a command line that mounts FUSE at a path whose root has this type and mode, and then runs a command.
fn mounting((root, mode): (&Path, &str), device: File, command: &Command) -> Command {
    let options = format!("fd=0,rootmode={mode},user_id=0,group_id=0,allow_other");
    let mount = format!("mount -i -t fuse -o {options} hung \"$0\" && exec \"$@\" </dev/null");
    let mut beside = Command::new("unshare");
    beside.args(["--mount", "sh", "-c", &mount]).arg(root);
    beside.arg(command.get_program()).args(command.get_args());
    beside.stdin(device);
    beside
}

/// Opens a GPU's device file, as holders do, then executes another program while a file is open that is closed by that.
const EXECUTE: &str = "import ctypes, os, signal, sys, time
path, device, uid, children, parent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
os.dup2(os.open(device, os.O_RDWR), 0)
if parent not in ('leaves', 'forks'):
    os.open(path, os.O_RDONLY)
os.setsid()
first = os.getpid()
os.setgid(uid)
os.setuid(uid)
def start(*_):
    if os.fork() == 0:
        os.open(path, os.O_RDONLY)
        os.execv('/bin/sleep', ['sleep', '1000'])
if parent == 'forks':
    signal.signal(signal.SIGTERM, start)
    while True:
        time.sleep(1000)
for _ in range(children):
    if os.fork() == 0:
        break
else:
    if parent == 'runs':
        time.sleep(1000)
    if parent == 'leaves':
        sys.exit()
if parent == 'leaves':
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 9)
        os.setsid()
        time.sleep(1000)
    while os.getppid() == first:
        time.sleep(0.01)
    os.open(path, os.O_RDONLY)
os.execv('/bin/sleep', ['sleep', '1000'])";

/// What the first process of a [`HungExecution`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// It hangs too.
    Hangs,
    /// It sleeps.
    Runs,
    /// It sleeps. When it gets SIGTERM, it starts a child that hangs.
    Forks,
    /// It exits, so that pid 1 is the parent of its children. Each of them has a child in another session, which sleeps.
    Leaves,
}

/// A process that hangs while it executes another program, because a file system does not answer when a file is closed.
/// Until this is dropped, reads of most files in its `/proc/PID` block.
pub struct HungExecution {
    process: Child,
    server: Arc<Server>,
}

/// A file system with a single file.
struct Server {
    device: File,
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    /// Requests to close the file, which are not answered.
    closing: Vec<[u8; 8]>,
    /// Whether such requests are answered from now on.
    is_released: bool,
}

impl HungExecution {
    /// Starts a process of a user, and children of it that hang, and waits until they do.
    ///
    /// # Panics
    /// If it cannot be started, or if there is no `/dev/fuse`.
    pub fn start(home: &Home, uid: u32, (parent, children): (Parent, usize)) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let input = device.try_clone().expect("a descriptor");
        let server = Arc::new(Server { device, state: Mutex::default() });
        let root = home.path().join(format!("unanswered-{uid}"));
        File::create(&root).expect("a file");
        let mut execute = Command::new("python3");
        execute
            .args(["-c", EXECUTE])
            .args([&root, &home.device()])
            .args([uid.to_string(), children.to_string()]);
        execute.arg(match parent {
            Parent::Hangs => "hangs",
            Parent::Runs => "runs",
            Parent::Forks => "forks",
            Parent::Leaves => "leaves",
        });
        let process = mounting((&root, "100644"), input, &execute).spawn().expect("the process starts");
        let hung = Self { process, server };
        let serving = Arc::clone(&hung.server);
        std::thread::spawn(move || serving.serve());
        let count = children + usize::from(parent == Parent::Hangs);
        until("the processes hang", || (hung.server.lock().closing.len() >= count).then_some(()));
        hung
    }

    /// Returns the pids of the first process and its children.
    pub fn pids(&self) -> Vec<u32> {
        let pid = self.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        std::iter::once(pid).chain(children).collect()
    }

    /// Returns the pid of the first process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for HungExecution {
    fn drop(&mut self) {
        self.server.release();
        let session = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let _ = session.map(|session| kill_process_group(session, Signal::KILL));
        let _ = self.process.wait();
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self) {
        let mut state = self.lock();
        state.is_released = true;
        for request in std::mem::take(&mut state.closing) {
            self.answer(request, 0, &[]);
        }
    }

    /// Answers the requests of the kernel (`include/uapi/linux/fuse.h`).
    fn serve(&self) {
        const GETATTR: u32 = 3;
        const OPEN: u32 = 14;
        const FLUSH: u32 = 25;
        const INIT: u32 = 26;
        /// Inode 1, mode 0100644, one link, for a long time.
        const ATTRIBUTES: [u32; 26] =
            [1000, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0o100_644, 1, 0, 0, 0, 4096, 0];
        let mut request = vec![0; 1 << 17];
        loop {
            match (&self.device).read(&mut request) {
                Ok(_) => {}
                // It is not mounted yet.
                Err(error) if error.kind() == PermissionDenied => {
                    park_timeout(Duration::from_millis(1));
                    continue;
                }
                Err(_) => return,
            }
            let [_, _, _, _, a, b, c, d, unique @ ..] = &request[..16] else { return };
            let unique: [u8; 8] = unique.try_into().expect("eight bytes");
            match u32::from_le_bytes([*a, *b, *c, *d]) {
                FLUSH => {
                    let mut state = self.lock();
                    if state.is_released {
                        self.answer(unique, 0, &[]);
                    } else {
                        state.closing.push(unique);
                    }
                }
                // Version 7.31, with the sizes of the kernel.
                INIT => self.answer(unique, 0, &[7, 31, 65536, 0, 0, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
                GETATTR => self.answer(unique, 0, &ATTRIBUTES),
                OPEN => self.answer(unique, 0, &[1, 0, 0, 0]),
                _ => self.answer(unique, Errno::NOSYS.raw_os_error(), &[]),
            }
        }
    }

    fn answer(&self, request: [u8; 8], error: i32, body: &[u32]) {
        let length = u32::try_from(16 + 4 * body.len()).expect("a short answer");
        let body: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
        let answer = [&length.to_le_bytes()[..], &(-error).to_le_bytes(), &request, &body].concat();
        // The process may have been killed in the meantime.
        let _ = (&self.device).write(&answer);
    }
}

/// Makes `path` a symbolic link to `target` atomically.
///
/// # Panics
/// If the link cannot be created.
pub fn link(target: &Path, path: &Path) {
    let next = path.with_extension("next");
    symlink(target, &next).expect("a symbolic link");
    fs::rename(next, path).expect("a name can be replaced");
}
