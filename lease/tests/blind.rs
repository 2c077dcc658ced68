//! A process that may open no more files knows nothing of others, and takes nobody for dead. It has a program of its own,
//! since it leaves its whole process without a descriptor.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case fails loudly")]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::Mutex;

use bailiff_lease::audit::{Lease, Record};
use bailiff_lease::holder::{Life, LocalHost, Recorded};
use bailiff_lease::legacy::{Found, Witness};
use bailiff_lease::process::lives;
use bailiff_snapshot::ProcessKey;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of descriptors is of the whole program: one case at a time changes it.
static LIMIT: Mutex<()> = Mutex::new(());

/// A lease by GPU.py's rules names who waits in another way.
fn leases(local_host: &LocalHost, pid: u32) -> [Lease; 3] {
    let about = local_host.holder(pid);
    let start = &about.iter().find(|(field, _)| *field == "start").unwrap().1;
    let line = ("chain", format!("{pid}:{start}"));
    let compat = [("mode", "compat".to_owned()), ("taker", line.1.clone())];
    [about.clone(), [&about[..], &[line]].concat(), [&about[..], &compat].concat()].map(|about| Lease {
        lease: "0123".to_owned(),
        state: "held".to_owned(),
        expires: 0.0,
        about: about.into_iter().map(|(field, value)| (field.to_owned(), value.into())).collect(),
    })
}

fn told(local_host: &LocalHost, [plain, chained, taken]: &[Lease; 3]) -> ([Life; 3], Recorded) {
    (
        [local_host.life(plain), local_host.chained(chained), local_host.life(taken)],
        local_host.recorded(chained),
    )
}

fn ended(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn who_cannot_be_looked_at_is_not_dead() {
    let _alone = LIMIT.lock().unwrap();
    let local_host = LocalHost::read();
    let child = Command::new("sleep").arg("infinity").spawn().unwrap();
    let pid = child.id();
    let leases = leases(&local_host, pid);
    let before = getrlimit(Resource::Nofile);
    let blind = |look: &dyn Fn()| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        look();
        setrlimit(Resource::Nofile, before).unwrap();
    };
    assert_eq!(told(&local_host, &leases), ([Life::Alive; 3], Recorded::Running));
    blind(&|| {
        assert!(File::open("/proc/self/stat").is_err_and(|error| error.kind() != ErrorKind::NotFound));
        assert_eq!(told(&local_host, &leases), ([Life::Unknown; 3], Recorded::Unknown));
        assert!(lives(ProcessKey { pid, start_ticks: 1 }).is_err());
    });
    ended(child);
    assert_eq!(told(&local_host, &leases), ([Life::Dead; 3], Recorded::Ended));
    blind(&|| assert_eq!(told(&local_host, &leases), ([Life::Unknown; 3], Recorded::Unknown)));
}

#[test]
fn witness_of_processes_that_cannot_be_read_is_unknown() {
    let _alone = LIMIT.lock().unwrap();
    let local_host = LocalHost::read();
    let child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    ended(child);
    let record = Record { pid, time: "2026-11-21 06:29:57".to_owned(), lease: None, seen: None };
    let look = || Witness::look(&local_host, &record, Found::Later).lives(&local_host);
    assert_eq!(look(), Some(false));
    // One descriptor: /proc can be listed, and no file of a process can be opened meanwhile.
    let free = u64::try_from(File::open("/proc").unwrap().as_raw_fd()).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(free + 1), ..before }).unwrap();
    let told = look();
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(told, None);
}
