//! Tests that a process without free file descriptors, which cannot read other processes, does not treat any of them
//! as dead. This is a separate test program, because it limits the descriptors of its whole process.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test fails loudly")]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::Mutex;

use bailiff_lease::audit::{Lease, Record};
use bailiff_lease::holder::{Life, LocalHost, Recorded};
use bailiff_lease::legacy::{Found, WriterEvidence};
use bailiff_proc::lives;
use bailiff_snapshot::ProcessKey;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit applies to the whole process, so only one test at a time may change it.
static LIMIT: Mutex<()> = Mutex::new(());

/// Returns a plain lease, a lease with a chain, and a lease under GPU.py's rules, whose process is recorded in
/// another field (`taker`).
fn leases(local_host: &LocalHost, pid: u32) -> [Lease; 3] {
    let about = local_host.holder(pid);
    let start = &about.iter().find(|(field, _)| *field == "start").unwrap().1;
    let chain = ("chain", format!("{pid}:{start}"));
    let compat = [("mode", "compat".to_owned()), ("taker", chain.1.clone())];
    [about.clone(), [&about[..], &[chain]].concat(), [&about[..], &compat].concat()].map(|about| Lease {
        lease: "0123".to_owned(),
        state: "held".to_owned(),
        expires: 0.0,
        about: about.into_iter().map(|(field, value)| (field.to_owned(), value.into())).collect(),
    })
}

fn states(local_host: &LocalHost, [plain, chained, taken]: &[Lease; 3]) -> ([Life; 3], Recorded) {
    (
        [local_host.life(plain), local_host.chain_life(chained), local_host.life(taken)],
        local_host.recorded(chained),
    )
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn holder_is_unknown_without_file_descriptors() {
    let _alone = LIMIT.lock().unwrap();
    let local_host = LocalHost::read();
    let child = Command::new("sleep").arg("infinity").spawn().unwrap();
    let pid = child.id();
    let leases = leases(&local_host, pid);
    let before = getrlimit(Resource::Nofile);
    let without_descriptors = |check: &dyn Fn()| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        check();
        setrlimit(Resource::Nofile, before).unwrap();
    };
    assert_eq!(states(&local_host, &leases), ([Life::Alive; 3], Recorded::Running));
    without_descriptors(&|| {
        assert!(File::open("/proc/self/stat").is_err_and(|error| error.kind() != ErrorKind::NotFound));
        assert_eq!(states(&local_host, &leases), ([Life::Unknown; 3], Recorded::Unknown));
        assert!(lives(ProcessKey { pid, start_ticks: 1 }).is_err());
    });
    end(child);
    assert_eq!(states(&local_host, &leases), ([Life::Dead; 3], Recorded::Ended));
    without_descriptors(&|| {
        assert_eq!(states(&local_host, &leases), ([Life::Unknown; 3], Recorded::Unknown));
    });
}

#[test]
fn writer_is_unknown_if_processes_cannot_be_read() {
    let _alone = LIMIT.lock().unwrap();
    let local_host = LocalHost::read();
    let child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    end(child);
    let record = Record { pid, time: "2026-11-21 06:29:57".to_owned(), lease: None, seen: None };
    let lives = || WriterEvidence::collect(&local_host, &record, Found::Later).lives(&local_host);
    assert_eq!(lives(), Some(false));
    // With one free descriptor, /proc can be listed, but files in it cannot be opened at the same time.
    let free = u64::try_from(File::open("/proc").unwrap().as_raw_fd()).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(free + 1), ..before }).unwrap();
    let state = lives();
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(state, None);
}
