//! Tests `bailiff lease` with this machine's own pool: which processes keep a lease, and that its GPUs are freed
//! when these processes have exited or were killed.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use end_to_end::leases::{Directory, Tasks, bailiff, code, command_of, end, hold, run, states, stdout_of};
use end_to_end::redis::Redis;
use end_to_end::tenant::NOBODY_UID;
use end_to_end::wait::until;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

fn json_of(pool: &Directory, args: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(&run(pool, args))).unwrap()
}

fn gpu(pool: &Directory, number: usize) -> Value {
    json_of(pool, &["list", "--json"])["gpus"][number].take()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the same command as user nobody.
fn bailiff_as_nobody(pool: &Directory, args: &[&str]) -> Command {
    let mut command = bailiff(pool, args);
    command.uid(NOBODY_UID).gid(NOBODY_UID).current_dir("/");
    command
}

/// Waits until there are this many waiters.
fn queued(pool: &Directory, count: usize) {
    until("waiters", || {
        (json_of(pool, &["queue", "--json"]).as_array().unwrap().len() == count).then_some(())
    });
}

fn tickets(pool: &Directory) -> usize {
    fs::read_dir(pool.path().join("queue")).unwrap().count()
}

/// Starts a task that waits for a GPU, and that writes its name when it gets a GPU.
fn waiter(pool: &Directory, name: &str) -> Child {
    let file = pool.path().with_file_name("order");
    let script = format!("echo {name} >>{}", file.display());
    let already = json_of(pool, &["queue", "--json"]).as_array().unwrap().len();
    let child = bailiff(pool, &["run", "--", "sh", "-c", &script]).spawn().unwrap();
    queued(pool, already + 1);
    child
}

fn order(pool: &Directory) -> Vec<String> {
    let text = fs::read_to_string(pool.path().with_file_name("order")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn command_keeps_its_gpus_until_it_exits() {
    let pool = Directory::of("0-2");
    let visible = ["run", "-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"];
    assert_eq!(stdout_of(&run(&pool, &visible)).trim(), "0,1 PCI_BUS_ID");
    for (args, expected) in [
        (vec!["run", "--", "sh", "-c", "exit 7"], 7),
        (vec!["run", "--", "sh", "-c", "kill -9 $$"], 137),
        (vec!["run", "nosuch-program"], 127),
        (vec!["run", "/etc/passwd"], 126),
        (vec!["run", "-n", "4", "true"], 64),
        (vec!["run", "--gpu", "9", "true"], 64),
        (vec!["run", "--gpu", "1,2", "-n", "3", "true"], 64),
        (vec!["run", "--priority", "1", "true"], 64),
        (vec!["run", "--max-time", "50ms", "sleep", "infinity"], 124),
        (vec!["release", "nobodys"], 4),
        (vec!["extend", "nobodys", "1h"], 64),
        (vec!["log"], 64),
        (vec!["acquire", "--for", "4194305"], 64),
        (vec!["init", "--gpus", "0"], 64),
    ] {
        let output = run(&pool, &args);
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
        assert_eq!(states(&pool), ["idle"; 3], "{args:?}");
    }
    assert!(err(&run(&pool, &["log"])).contains("--redis"));
    let holder = hold(&pool, &["run", "-n", "3"]);
    assert_eq!(states(&pool), ["leased"; 3]);
    assert_eq!(code(&run(&pool, &["run", "--nonblock", "true"])), 75);
    assert_eq!(code(&run(&pool, &["run", "--wait", "100ms", "true"])), 124);
    assert_eq!(code(&run(&pool, &["init", "--gpus", "0,1", "--force"])), 75, "the pool has a holder");
    end(holder, Signal::TERM);
    assert_eq!(states(&pool), ["idle"; 3]);
    assert_eq!(tickets(&pool), 0);
}

#[test]
fn missing_pool_message_names_both_fixes() {
    let (directory, redis) = (Directory::new(), Redis::start());
    for args in [&["run", "true"][..], &["list"], &["reap"], &["release", "a"], &["acquire"]] {
        let output = run(&directory, args);
        assert_eq!(code(&output), 69, "{args:?}");
        assert!(
            err(&output).contains("bailiff lease init") && err(&output).contains("--redis"),
            "{output:?}"
        );
    }
    let address = redis.address();
    stdout_of(&run(&directory, &["init", "--gpus", "0", "--redis", &address]));
    stdout_of(&run(&directory, &["init", "--gpus", "0,1"]));
    let list = |args: &[&str], of: &dyn Fn(&[&str]) -> Command| {
        let printed: Value = serde_json::from_str(&stdout_of(&of(args).output().unwrap())).unwrap();
        printed["gpus"].as_array().unwrap().len()
    };
    let path = directory.path();
    let here = ["list", "--json", "--pool-dir", path.to_str().unwrap()];
    assert_eq!(list(&["list", "--json"], &|args| bailiff(&redis, args)), 1);
    assert_eq!(list(&here, &|args| bailiff(&redis, args)), 2, "a flag takes precedence over the environment");
    assert_eq!(list(&["list", "--json", "--redis", &address], &|args| bailiff(&directory, args)), 1);
    assert_eq!(code(&run(&directory, &[&here[..], &["--redis", &address]].concat())), 64);
}

#[test]
fn waiters_are_served_in_order_without_dead_ones() {
    let pool = Directory::of("0");
    let holder = hold(&pool, &["run"]);
    let mut waiters: Vec<Child> = ["a", "b", "c", "d", "e"].iter().map(|name| waiter(&pool, name)).collect();
    // The first waiter, and a waiter in the middle of the queue.
    let (third, first) = (waiters.remove(2), waiters.remove(0));
    end(third, Signal::KILL);
    end(first, Signal::KILL);
    end(holder, Signal::KILL);
    assert_eq!(order(&pool), Vec::<String>::new(), "the command of the killed runner keeps its GPU");
    let left = u64_of(&gpu(&pool, 0)["lease"]["pid"]);
    kill_process(Pid::from_raw(i32::try_from(left).unwrap()).unwrap(), Signal::KILL).unwrap();
    for mut waiter in waiters {
        assert!(waiter.wait().unwrap().success());
    }
    assert_eq!(order(&pool), ["b", "d", "e"]);
    assert_eq!(states(&pool), ["idle"]);
    assert_eq!(tickets(&pool), 0);
}

fn u64_of(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn several_gpus_are_granted_together_or_not() {
    let pool = Directory::of("0,1");
    let holder = hold(&pool, &["run"]);
    let both = bailiff(&pool, &["run", "-n", "2", "--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    queued(&pool, 1);
    assert_eq!(states(&pool), ["leased", "idle"], "the waiter has no GPU");
    let late = waiter(&pool, "late");
    assert_eq!(order(&pool), Vec::<String>::new(), "no later waiter gets the idle GPU first");
    end(holder, Signal::TERM);
    assert_eq!(stdout_of(&both.wait_with_output().unwrap()).trim(), "0,1");
    assert!(late.wait_with_output().unwrap().status.success());
}

#[test]
fn waiter_for_one_gpu_blocks_only_its_rivals() {
    let pool = Directory::of("0-2");
    let holder = hold(&pool, &["run", "--gpu", "2"]);
    let ids = |args: &[&str]| stdout_of(&run(&pool, args)).trim().to_owned();
    let echo = ["--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"];
    let second =
        bailiff(&pool, &[&["run", "--gpu", "2"][..], &echo].concat()).stdout(Stdio::piped()).spawn().unwrap();
    queued(&pool, 1);
    assert_eq!(ids(&[&["run", "-n", "2"][..], &echo].concat()), "0,1");
    assert_eq!(ids(&[&["run", "--gpu", "1,2", "-n", "1"][..], &echo].concat()), "1");
    assert_eq!(code(&run(&pool, &["run", "-n", "3", "--nonblock", "true"])), 75);
    let third =
        bailiff(&pool, &[&["run", "-n", "3"][..], &echo].concat()).stdout(Stdio::piped()).spawn().unwrap();
    queued(&pool, 2);
    end(holder, Signal::TERM);
    assert_eq!(stdout_of(&second.wait_with_output().unwrap()).trim(), "2");
    assert_eq!(stdout_of(&third.wait_with_output().unwrap()).trim(), "0,1,2");
}

#[test]
fn killed_runner_leaves_the_lease_to_its_command() {
    let pool = Directory::of("0");
    let runner = hold(&pool, &["run"]);
    let command = command_of(&runner);
    let name = gpu(&pool, 0)["lease"]["lease"].as_str().unwrap().to_owned();
    end(runner, Signal::KILL);
    assert_eq!(stdout_of(&run(&pool, &["reap"])).trim(), "0", "there is nothing to reap");
    let held = gpu(&pool, 0);
    assert_eq!(
        (&held["state"], &held["lease"]["lease"]),
        (&Value::from("leased"), &Value::from(name.as_str()))
    );
    assert_eq!(u64_of(&held["lease"]["pid"]), u64::from(command.as_raw_nonzero().get().cast_unsigned()));
    assert_eq!(held["lease"]["evidence"], "alive");
    assert_eq!(stdout_of(&run(&pool, &["reap", "--dry-run"])), "");
    assert_eq!(code(&run(&pool, &["release", &name])), 3, "the GPU of a running command is not released");
    let next = waiter(&pool, "next");
    kill_process(command, Signal::KILL).unwrap();
    assert!(next.wait_with_output().unwrap().status.success());
    assert_eq!(states(&pool), ["idle"], "the kernel frees the GPU of a dead process");
}

#[test]
fn daemon_started_inside_keeps_the_lease_and_is_reported() {
    let pool = Directory::of("0");
    let script = "setsid sleep infinity >/dev/null 2>&1 & echo $!";
    let mut runner =
        bailiff(&pool, &["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let daemon = until("the daemon", || {
        let listed = gpu(&pool, 0)["lease"]["pid"].as_u64()?;
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", runner.id())).ok()?;
        let daemon: u32 = children.trim().parse().ok()?;
        (listed != u64::from(daemon) && fs::read(format!("/proc/{daemon}/comm")).ok()? == b"sleep\n")
            .then_some(daemon)
    });
    // SIGTERM ends the runner, which would otherwise wait for the daemon indefinitely. The lease remains.
    until("the runner to go", || {
        kill_process(Pid::from_child(&runner), Signal::TERM).ok()?;
        runner.try_wait().unwrap()
    });
    let held = gpu(&pool, 0);
    assert_eq!((u64_of(&held["lease"]["pid"]), &held["state"]), (daemon.into(), &Value::from("leased")));
    kill_process(Pid::from_raw(daemon.cast_signed()).unwrap(), Signal::KILL).unwrap();
    until("the GPU to be idle", || (states(&pool) == ["idle"]).then_some(()));
}

#[test]
fn acquired_gpus_are_freed_when_their_holder_exits() {
    let pool = Directory::of("0");
    let mut holder = Command::new("sleep").arg("infinity").spawn().unwrap();
    let printed = stdout_of(&run(&pool, &["acquire", "--for", &holder.id().to_string()]));
    assert!(printed.contains("export CUDA_VISIBLE_DEVICES=0\n"), "{printed}");
    let held = gpu(&pool, 0);
    assert_eq!(u64_of(&held["lease"]["pid"]), u64::from(holder.id()));
    assert_eq!((&held["lease"]["evidence"], &held["lease"]["mode"]), (&"alive".into(), &"acquire".into()));
    holder.kill().unwrap();
    until("the GPU to be idle", || (states(&pool) == ["idle"]).then_some(()));
    holder.wait().unwrap();
    let acquire = |args: &[&str]| {
        let printed = stdout_of(&run(&pool, &[&["acquire"][..], args].concat()));
        printed.lines().find_map(|line| line.strip_prefix("export BAILIFF_LEASE_ID=")).unwrap().to_owned()
    };
    let us = std::process::id().to_string();
    let lease = acquire(&["--for", &us]);
    for _ in 0..2 {
        stdout_of(&run(&pool, &["release", &lease]));
        assert_eq!(states(&pool), ["idle"]);
    }
    acquire(&["--for", &us]);
    assert_eq!(stdout_of(&run(&pool, &["release", "--mine"])).trim(), "1");
    acquire(&["--for", &us]);
    stdout_of(&run(&pool, &["release", "--gpu", "0"]));
    acquire(&["--duration", "50ms"]);
    until("the lease to expire", || (states(&pool) == ["idle"]).then_some(()));
    let lease = acquire(&["--duration", "1h"]);
    assert_eq!(gpu(&pool, 0)["lease"]["evidence"], "timed");
    stdout_of(&run(&pool, &["release", &lease]));
    let lease = stdout_of(&run(&pool, &["adopt", "--gpu", "0", "--pid", &us])).trim().to_owned();
    assert_eq!(code(&run(&pool, &["adopt", "--gpu", "0", "--pid", &us])), 75);
    stdout_of(&run(&pool, &["release", &lease]));
    assert_eq!(states(&pool), ["idle"]);
}

#[test]
fn release_mine_skips_leases_of_a_run() {
    let pool = Directory::of("0-5");
    let us = std::process::id().to_string();
    let acquire = || stdout_of(&run(&pool, &["acquire", "--for", &us]));
    for _ in 0..2 {
        acquire();
    }
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    let (name, value) = end_to_end::leases::LeasePool::variable(&pool);
    inside.env(name, value).env("BAILIFF", end_to_end::programs::bailiff());
    inside.arg("$BAILIFF lease acquire --duration 1h --format ids && $BAILIFF lease release --mine");
    assert_eq!(stdout_of(&inside.output().unwrap()), "2\n1\n");
    assert_eq!(states(&pool), ["leased", "leased", "idle", "idle", "idle", "idle"]);
    // The command of a `run` lease keeps the lease even if the record claims that it is an `acquire` lease.
    let holder = hold(&pool, &["run", "--gpu", "2"]);
    let file = pool.path().join("record/2");
    let record = fs::read_to_string(&file).unwrap();
    assert!(record.contains(r#""mode":"run""#), "{record}");
    fs::write(&file, record.replace(r#""mode":"run""#, r#""mode":"acquire""#)).unwrap();
    for _ in 0..3 {
        acquire();
    }
    let output = run(&pool, &["release", "--mine"]);
    assert_eq!((code(&output), String::from_utf8_lossy(&output.stdout).trim()), (3, "5"), "{output:?}");
    assert!(err(&output).contains("a running command holds the lease"), "{output:?}");
    assert_eq!(states(&pool), ["idle", "idle", "leased", "idle", "idle", "idle"]);
    end(holder, Signal::TERM);
}

#[test]
fn lease_holder_keeps_no_other_descriptor() {
    let pool = Directory::of("0");
    let path = pool.path().with_file_name("lock");
    let script = format!(
        "exec 8>{0}; flock 8; exec 9>&1; eval \"$({1} lease acquire --duration 1h)\"; echo $BAILIFF_LEASE_ID >&9",
        path.display(),
        end_to_end::programs::bailiff().display()
    );
    let (name, value) = end_to_end::leases::LeasePool::variable(&pool);
    let output = Command::new("bash").args(["-c", &script]).env(name, value).output().unwrap();
    assert_eq!(states(&pool), ["leased"], "the lease remains after the script's pipe was closed");
    assert!(Command::new("flock").args(["-n"]).arg(&path).arg("true").status().unwrap().success());
    stdout_of(&run(&pool, &["release", stdout_of(&output).trim()]));
    assert_eq!(states(&pool), ["idle"]);
}

#[test]
fn users_share_a_pool_and_cannot_release_others() {
    let pool = Directory::of("0,1");
    let mut other_user =
        bailiff_as_nobody(&pool, &["run", "--", "sh", "-c", "echo begun; exec sleep infinity"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    until("the lease of user nobody", || (gpu(&pool, 0)["lease"]["user"] == "nobody").then_some(()));
    let lease =
        stdout_of(&run(&pool, &["acquire", "--for", &std::process::id().to_string(), "--format", "json"]));
    let lease: Value = serde_json::from_str(&lease).unwrap();
    let name = lease["lease"].as_str().unwrap();
    assert_eq!(code(&bailiff_as_nobody(&pool, &["release", name]).output().unwrap()), 3);
    assert_eq!(code(&bailiff_as_nobody(&pool, &["run", "--nonblock", "true"]).output().unwrap()), 75);
    let seen: Value =
        serde_json::from_str(&stdout_of(&bailiff_as_nobody(&pool, &["list", "--json"]).output().unwrap()))
            .unwrap();
    assert_eq!(
        (&seen["gpus"][0]["lease"]["user"], &seen["gpus"][1]["lease"]["user"]),
        (&"nobody".into(), &"root".into())
    );
    // Each user has one waiter, and neither user can remove the other's ticket.
    let root = waiter(&pool, "root");
    let mut other = bailiff_as_nobody(&pool, &["run", "true"]).spawn().unwrap();
    queued(&pool, 2);
    let first = json_of(&pool, &["queue", "--json"])[0]["lease"].as_str().unwrap().to_owned();
    assert_eq!(code(&bailiff_as_nobody(&pool, &["release", &first]).output().unwrap()), 3);
    assert_eq!(json_of(&pool, &["queue", "--json"])[1]["user"], "nobody");
    stdout_of(&run(&pool, &["release", name]));
    assert!(root.wait_with_output().unwrap().status.success());
    assert!(other.wait().unwrap().success());
    kill_process(Pid::from_child(&other_user), Signal::TERM).unwrap();
    other_user.wait().unwrap();
    assert_eq!(states(&pool), ["idle"; 2]);
    assert_eq!(
        code(&bailiff_as_nobody(&pool, &["init", "--force", "--gpus", "0"]).output().unwrap()),
        69,
        "the pool belongs to root"
    );
}

#[test]
fn forged_record_directs_no_release_to_another_user() {
    let pool = Directory::of("0,1");
    let own = std::process::id().to_string();
    let lease: Value =
        serde_json::from_str(&stdout_of(&run(&pool, &["acquire", "--for", &own, "--format", "json"])))
            .unwrap();
    let attacker = bailiff_as_nobody(&pool, &["run", "sleep", "infinity"]).spawn().unwrap();
    until("the lease of user nobody", || (gpu(&pool, 1)["lease"]["user"] == "nobody").then_some(()));
    let waiter = waiter(&pool, "waiter");
    let ticket = json_of(&pool, &["queue", "--json"])[0]["lease"].clone();
    let files = ["record/0", "record/1"].map(|file| pool.path().join(file));
    let [victims, attackers]: [Value; 2] =
        files.clone().map(|file| serde_json::from_slice(&fs::read(file).unwrap()).unwrap());
    let forge = |file: &Path, mut record: Value, name: &Value, (field, value): (&str, Option<&str>)| {
        record["lease"] = name.clone();
        record["about"]["tok"] = "7".into();
        match value {
            Some(value) => record["about"][field] = value.into(),
            None => drop(record["about"].as_object_mut().unwrap().remove(field)),
        }
        fs::write(file, record.to_string()).unwrap();
    };
    let mut exited = victims.clone();
    (exited["about"]["pid"], exited["about"]["start"]) = ("4194303".into(), "1".into());
    forge(&files[0], exited, &lease["lease"], ("mode", Some("compat")));
    assert_eq!(
        stdout_of(&run(&pool, &["reap", "--dry-run"])),
        "",
        "the kernel releases the locks of exited processes"
    );
    assert_eq!(stdout_of(&run(&pool, &["reap"])).trim(), "0");
    // The victim's record no longer matches the lock, and the attacker's has the same name and token.
    forge(&files[0], victims.clone(), &lease["lease"], ("uid", Some("65534")));
    forge(&files[1], attackers.clone(), &lease["lease"], ("tok", Some("7")));
    assert_ne!(code(&run(&pool, &["release", "--gpu", "1"])), 0, "a command holds the GPU");
    fs::write(&files[0], victims.to_string()).unwrap();
    assert_eq!(gpu(&pool, 0)["lease"]["lease"], lease["lease"], "the victim's lease remains");
    forge(&files[1], attackers, &ticket, ("tok", None));
    run(&pool, &["release", "--gpu", "1"]);
    assert_eq!(json_of(&pool, &["queue", "--json"])[0]["lease"], ticket, "the request remains");
    end(attacker, Signal::TERM);
    stdout_of(&run(&pool, &["release", lease["lease"].as_str().unwrap()]));
    assert!(waiter.wait_with_output().unwrap().status.success());
}

/// Runs a shell program as user nobody, and waits until it has printed a line.
fn nobody_runs(pool: &Directory, program: &str) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", program]).uid(NOBODY_UID).gid(NOBODY_UID).current_dir("/").env("POOL", pool.path());
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    child
}

/// Lets user nobody lock a file of the pool, until the child is killed.
fn nobody_locks(pool: &Directory, file: &str, kind: &str) -> Child {
    nobody_runs(pool, &format!("exec 8<$POOL/{file}; flock -n {kind} 8 && echo x; read wait"))
}

#[test]
fn init_as_root_refuses_directories_of_other_users() {
    let pool = Directory::new();
    let top = pool.path().parent().unwrap().to_owned();
    let (loot, below) = (top.join("loot"), top.join("below"));
    let make = |path: &Path, mode: u32, owner: u32| {
        let _ = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
    };
    make(&loot, 0o755, NOBODY_UID);
    let init = |path: &Path| {
        let output = run(&pool, &["init", "--gpus", "0", "--pool-dir", path.to_str().unwrap()]);
        assert_eq!(fs::read_dir(&loot).unwrap().count(), 0, "{path:?}: {output:?}");
        (code(&output), err(&output))
    };
    let check = |path: &Path, expected: &str| {
        let (code, message) = init(path);
        assert_eq!(code, 69, "{path:?}: {message}");
        assert!(message.contains(expected) && message.contains(top.to_str().unwrap()), "{path:?}: {message}");
    };
    make(&below, 0o1777, 0);
    symlink(&loot, below.join("lease")).unwrap();
    check(&below.join("lease"), "symbolic link");
    check(&below.join("lease/inner"), "symbolic link");
    check(&loot, "owned by user 65534");
    check(&loot.join("lease"), "owned by user 65534");
    for mode in [0o777, 0o775] {
        make(&below, mode, 0);
        check(&below.join("lease"), "writable by other users");
    }
    make(&below, 0o1777, 0);
    for mode in [0o1777, 0o775] {
        make(&below.join("lease"), mode, 0);
        check(&below.join("lease"), "writable by other users");
    }
    // As systemd-tmpfiles creates it.
    make(&below, 0o1775, 0);
    make(&below.join("lease"), 0o755, 0);
    assert_eq!(init(&below.join("lease")), (0, String::new()));
    assert_eq!(init(&below.join("new/lease")), (0, String::new()));
}

#[test]
fn shared_lock_of_another_user_is_shown_as_holder() {
    let pool = Directory::of("0,1");
    let mut readers = [nobody_locks(&pool, "gpu/0", "-s"), nobody_locks(&pool, "gpu/0", "-s")];
    let pids: BTreeSet<u64> = readers.iter().map(|reader| reader.id().into()).collect();
    let shown = gpu(&pool, 0);
    assert_eq!(shown["state"], "leased");
    let blockers = shown["blockers"].as_array().unwrap();
    assert_eq!(blockers.iter().map(|blocker| u64_of(&blocker["pid"])).collect::<BTreeSet<_>>(), pids);
    assert!(blockers.iter().all(|blocker| blocker["user"] == "nobody"), "{shown}");
    assert!(pids.contains(&u64_of(&shown["lease"]["pid"])), "{shown}");
    assert_eq!(gpu(&pool, 1)["blockers"], Value::Null);
    // A record does not turn a shared lock into a lease.
    let record = fs::read_to_string(pool.path().join("record/0")).unwrap();
    assert!(record.is_empty());
    let listed = stdout_of(&run(&pool, &["list"]));
    let line = listed.lines().find(|line| line.starts_with("0 ")).unwrap();
    assert!(line.contains("nobody") && pids.iter().all(|pid| line.contains(&pid.to_string())), "{listed}");
    let mut doctor = Command::new(end_to_end::programs::bailiff());
    doctor.args(["doctor", "--pool-dir"]).arg(pool.path()).env_remove("LEASE_REDIS_URL");
    let report = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(report.contains("GPU 0 is locked without a lease") && report.contains("nobody"), "{report}");
    assert_eq!(code(&run(&pool, &["run", "--nonblock", "-n", "2", "true"])), 75);
    let holder = hold(&pool, &["run"]);
    assert_eq!(states(&pool), ["leased"; 2]);
    assert_eq!(gpu(&pool, 1)["blockers"], Value::Null, "a lease is not a blocker");
    for reader in &mut readers {
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    assert_eq!(states(&pool), ["idle", "leased"]);
    end(holder, Signal::TERM);
}

#[test]
fn forced_init_ignores_shared_locks_and_keeps_exclusive_ones() {
    let pool = Directory::of("0,1");
    let mut reader = nobody_locks(&pool, "gpu/0", "-s");
    let mut writer = nobody_locks(&pool, "gpu/1", "-x");
    let force = || code(&run(&pool, &["init", "--force", "--gpus", "0,1"]));
    assert_eq!(force(), 75, "an exclusive lock may be a lease whose record another user has overwritten");
    assert_eq!(states(&pool), ["leased"; 2]);
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(force(), 0);
    assert_eq!(states(&pool), ["idle"; 2]);
    let holder = hold(&pool, &["run", "-n", "2"]);
    fs::write(pool.path().join("record/0"), "{}").unwrap();
    assert_eq!(force(), 75);
    end(holder, Signal::TERM);
    assert!(reader.try_wait().unwrap().is_none());
    reader.kill().unwrap();
    reader.wait().unwrap();
}

/// Locks a GPU, writes the record of a lease whose lock holder has exited, and leaves the open file only in a socket.
const LOCK_IN_A_SOCKET: &str = "exec python3 -c '
import array, fcntl, json, os, socket, time
pool = os.environ[\"POOL\"]
held = os.open(pool + \"/gpu/0\", os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
about = {\"pidns\": os.readlink(\"/proc/self/ns/pid\")[5:-1], \"uid\": \"0\", \"user\": \"root\", \"tok\": \"7\", \"cmd\": \"train.py\",
    \"taker\": str(os.getpid()), \"lock_holder\": \"4194303\", \"lock_holder_start\": \"1\"}
with open(pool + \"/record/0\", \"r+\") as record:
    record.write(json.dumps({\"lease\": \"forged\", \"about\": about}))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
ours.sendmsg([b\"x\"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(\"i\", [held]))])
os.close(held)
print(\"x\", flush=True)
time.sleep(1000)'";

#[test]
fn lock_that_is_only_in_a_socket_shows_no_lease_and_forced_init_replaces_it() {
    let pool = Directory::of("0");
    let mut liar = nobody_runs(&pool, LOCK_IN_A_SOCKET);
    let shown = gpu(&pool, 0);
    assert_eq!((&shown["state"], &shown["lease"]), (&"unknown".into(), &Value::Null), "{shown}");
    let mut doctor = Command::new(end_to_end::programs::bailiff());
    doctor.args(["doctor", "--pool-dir"]).arg(pool.path()).env_remove("LEASE_REDIS_URL");
    let report = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(report.contains("GPU 0 is neither idle nor leased"), "{report}");
    stdout_of(&run(&pool, &["init", "--force", "--gpus", "0"]));
    assert_eq!(states(&pool), ["idle"]);
    liar.kill().unwrap();
    liar.wait().unwrap();
}

#[test]
fn record_of_another_container_needs_a_matching_lock() {
    let pool = Directory::of("0");
    let file = pool.path().join("record/0");
    let record =
        r#"{"lease":"false","about":{"pidns":"1","uid":"0","user":"root","tok":"9007199254740990"}}"#;
    fs::write(&file, record).unwrap();
    assert_eq!(states(&pool), ["idle"]);
    let mut liar = nobody_locks(&pool, "gpu/0", "-x");
    let shown = gpu(&pool, 0);
    assert_eq!(
        (&shown["lease"]["lease"], &shown["blockers"][0]["user"]),
        (&format!("pid:{}", liar.id()).into(), &"nobody".into())
    );
    liar.kill().unwrap();
    liar.wait().unwrap();
    let (name, value) = end_to_end::leases::LeasePool::variable(&pool);
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]).env(name, value);
    inside
        .arg("exec $BAILIFF lease run -- sh -c 'echo x; read wait'")
        .env("BAILIFF", end_to_end::programs::bailiff());
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    inside.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    let shown = gpu(&pool, 0);
    assert_eq!(
        (&shown["lease"]["mode"], &shown["lease"]["user"], &shown["blockers"]),
        (&"run".into(), &"root".into(), &Value::Null)
    );
    inside.kill().unwrap();
    inside.wait().unwrap();
}

#[test]
fn ticket_with_a_future_time_is_skipped() {
    let pool = Directory::of("0");
    let program = "t=$POOL/queue/00000000000000000000-ahead; echo >$t; touch -d 'now + 1 year' $t
exec 8<$t; flock -n 8 && echo x; read wait";
    let mut blocker = nobody_runs(&pool, program);
    stdout_of(&run(&pool, &["run", "--wait", "20s", "true"]));
    blocker.kill().unwrap();
    blocker.wait().unwrap();
}

/// Creates tickets of user nobody at the front of the queue. Their process does not take GPUs.
fn nobody_queues(pool: &Directory, count: usize, record: &str) -> Child {
    let record = record.replace('"', "\\\"");
    let program = format!(
        "exec python3 -c '
import fcntl, os, sys
files = [open(os.environ[\"POOL\"] + \"/queue/%020d-ahead%d\" % (0, n), \"w\") for n in range({count})]
[fcntl.flock(file, fcntl.LOCK_EX) for file in files]
[print(\"{record}\", end=\"\", file=file, flush=True) for file in files]
print(\"x\", flush=True)
sys.stdin.read()'"
    );
    nobody_runs(pool, &program)
}

/// Has a new ticket at the front of the queue every 5 s.
const CHANGING_TICKET: &str = "exec python3 -c '
import fcntl, os, time
number, old = 100, None
while True:
    name = \"%020d-ahead%d\" % (number, number)
    path = os.environ[\"POOL\"] + \"/queue/\" + name
    new = open(path, \"w\")
    fcntl.flock(new, fcntl.LOCK_EX)
    print(\"{\\\"lease\\\":\\\"ahead%d\\\",\\\"about\\\":{\\\"want\\\":\\\"1\\\"}}\" % number, file=new, flush=True)
    if old:
        os.unlink(old[0])
    else:
        print(\"x\", flush=True)
    number, old = number - 1, (path, new)
    time.sleep(5)'";

#[test]
fn tickets_of_a_user_who_takes_nothing_are_skipped() {
    let records = [
        (100, "", "behind 64 others"),
        (1, r#"{"lease":"ahead0","about":{"among":"0","want":"1","ttl_ms":"600000"}}"#, ""),
        (1, r#"{"lease":"ahead0","about":{"want":"4000000000","ttl_ms":"600000"}}"#, "behind 1 other"),
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pool = Directory::of("0");
            let mut blocker = nobody_runs(&pool, CHANGING_TICKET);
            stdout_of(&run(&pool, &["run", "--wait", "2min", "true"]));
            assert!(blocker.try_wait().unwrap().is_none());
            blocker.kill().unwrap();
            blocker.wait().unwrap();
        });
        for (count, record, expected) in records {
            scope.spawn(move || {
                let pool = Directory::of("0");
                let mut blocker = nobody_queues(&pool, count, record);
                let run = run(&pool, &["run", "--wait", "5min", "true"]);
                assert!(run.status.success() && err(&run).contains(expected), "{record}: {run:?}");
                blocker.kill().unwrap();
                blocker.wait().unwrap();
            });
        }
    });
}

/// Runs `bailiff lease …` with 256 MiB of memory.
fn run_in_little_memory(pool: &Directory, args: &[&str]) -> Output {
    let bailiff = bailiff(pool, args);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -v 262144; exec \"$@\"", "sh"])
        .arg(bailiff.get_program())
        .args(bailiff.get_args());
    for (name, value) in bailiff.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.output().unwrap()
}

/// Each record has 64 KiB with as many fields as possible.
#[test]
fn long_tickets_of_a_user_use_up_no_memory_of_others() {
    let pool = Directory::of("0");
    let program = "exec python3 -c '
import fcntl, itertools, json, os, resource, string, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
names = map(\"\".join, itertools.product(string.ascii_letters, repeat=3))
about = {\"ttl_ms\": \"600000\", **{name: \"\" for name in itertools.islice(names, 7200)}}
files = []
for n in range(700):
    file = open(os.environ[\"POOL\"] + \"/queue/%020d-ahead%d\" % (0, n), \"w\")
    fcntl.flock(file, fcntl.LOCK_EX)
    print(json.dumps({\"lease\": \"ahead%d\" % n, \"about\": about}, separators=(\",\", \":\")), end=\"\", file=file, flush=True)
    files.append(file)
print(\"x\", flush=True)
sys.stdin.read()'";
    let mut blocker = nobody_runs(&pool, program);
    let mut waiter = bailiff(&pool, &["run", "true"]).spawn().unwrap();
    until("the ticket", || (tickets(&pool) == 701).then_some(()));
    let output = run_in_little_memory(&pool, &["list", "--json"]);
    let list: Value = serde_json::from_str(&stdout_of(&output)).unwrap();
    let waiting = list["waiting"].as_array().unwrap();
    assert_eq!((waiting.len(), &list["waiting_not_shown"]), (65, &636.into()));
    assert_eq!((&waiting[0]["user"], &waiting[64]["user"]), (&"65534".into(), &"root".into()));
    let text = run_in_little_memory(&pool, &["list"]);
    assert!(err(&text).contains("636 further waiting requests are not shown"), "{text:?}");
    assert_eq!(stdout_of(&text).lines().count(), 1 + 1 + 65);
    assert!(stdout_of(&run_in_little_memory(&pool, &["status"])).contains("; 701 waiting"));
    // The path of the exporter's socket exists, so idle GPUs are looked for first.
    let stream = pool.path();
    let busy =
        run_in_little_memory(&pool, &["run", "--nonblock", "--stream", stream.to_str().unwrap(), "true"]);
    assert!(code(&busy) == 75, "{busy:?}");
    for child in [&mut waiter, &mut blocker] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn very_many_files_of_a_user_in_the_queue_hide_no_waiter() {
    let pool = Directory::of("0,1");
    let holder = hold(&pool, &["run"]);
    let program = "cd $POOL/queue && seq -f '%020g-small' 0 19999 | xargs touch && echo x; read wait";
    let mut blocker = nobody_runs(&pool, program);
    let mut waiter = bailiff(&pool, &["run", "-n", "2", "true"]).spawn().unwrap();
    let list = until("the waiter", || {
        let list = json_of(&pool, &["list", "--json"]);
        (list["waiting"].as_array().unwrap().len() == 1).then_some(list)
    });
    assert!(list["waiting_not_shown"].as_u64().unwrap() > 19_000, "{list}");
    end(holder, Signal::TERM);
    assert!(waiter.wait().unwrap().success());
    blocker.kill().unwrap();
    blocker.wait().unwrap();
}

/// A user can put several tickets before that of a waiter, and change their order by letting them sleep.
#[test]
fn waiter_behind_changing_tickets_leaks_nothing() {
    let pool = Directory::of("0");
    let holder = hold(&pool, &["run"]);
    let mut blocker = nobody_queues(&pool, 2, "");
    let waiter = bailiff(&pool, &["run", "true"]).spawn().unwrap();
    until("the tickets", || (tickets(&pool) == 3).then_some(()));
    let queue = fs::read_dir(pool.path().join("queue")).unwrap().map(|entry| entry.unwrap().path());
    let (ahead, own): (Vec<_>, Vec<_>) = queue.partition(|path| path.to_str().unwrap().contains("-ahead"));
    let last = ahead.into_iter().max().unwrap();
    let renewed = || fs::metadata(&own[0]).unwrap().modified().unwrap();
    for turn in 0..20 {
        let time = if turn % 2 == 0 { std::time::UNIX_EPOCH } else { std::time::SystemTime::now() };
        fs::File::options().write(true).open(&last).unwrap().set_modified(time).unwrap();
        let before = renewed();
        until("the waiter reads the queue again", || (renewed() > before).then_some(()));
    }
    let threads = fs::read_dir(format!("/proc/{}/task", waiter.id())).unwrap().count();
    assert!(threads <= 14, "{threads} threads after 20 changes");
    blocker.kill().unwrap();
    blocker.wait().unwrap();
    end(holder, Signal::TERM);
    assert!(waiter.wait_with_output().unwrap().status.success());
}

/// Records have mode 0666, so users can create links to them.
#[test]
fn link_to_a_file_of_the_pool_is_no_ticket() {
    let pool = Directory::of("0,1");
    let program = "exec 8<$POOL/record/1; flock -n 8; ln $POOL/record/1 $POOL/queue/00000000000000000000-ahead && echo x; read wait";
    let mut blocker = nobody_runs(&pool, program);
    stdout_of(&run(&pool, &["run", "--wait", "20s", "true"]));
    blocker.kill().unwrap();
    blocker.wait().unwrap();
}

/// `fusermount3`, which is setuid, mounts a user's file system over a file that the user can write to. All others then
/// cannot open the file, and the mount remains when the user's processes have exited.
#[test]
fn file_system_of_a_user_over_a_file_of_the_pool_blocks_nobody() {
    let pool = Directory::of("0,1");
    let writable =
        "cd $POOL && for file in gate pool gpu/* record/*; do test -w $file && echo $file; done; true";
    let mut shell = Command::new("sh");
    shell.args(["-c", writable]).uid(NOBODY_UID).gid(NOBODY_UID).current_dir("/").env("POOL", pool.path());
    assert_eq!(stdout_of(&shell.output().unwrap()), "record/0\nrecord/1\n");
    let attack = "cd $POOL && touch ../over && mount --bind ../over record/0 && mount --bind ../over record/1
        mount --bind ../over record/1 && mount --bind ../over record/1
        $BAILIFF lease run -n 2 -- $BAILIFF lease list --json
        echo text >../over && $BAILIFF lease release --mine && cat ../over
        grep -c /record/ /proc/self/mountinfo
        $BAILIFF lease init --gpus 0,1 --force && grep -c /record/ /proc/self/mountinfo";
    let (name, value) = end_to_end::leases::LeasePool::variable(&pool);
    let mut root = Command::new("unshare");
    root.args(["--mount", "sh", "-c", attack]).env(name, value).env("POOL", pool.path());
    let output = root.env("BAILIFF", end_to_end::programs::bailiff()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (list, rest) = text.rsplit_once("}\n").unwrap();
    let list: Value = serde_json::from_str(&format!("{list}}}")).unwrap();
    assert_eq!((&list["gpus"][0]["state"], &list["gpus"][1]["state"]), (&"leased".into(), &"leased".into()));
    assert_eq!(
        rest, "0\ntext\n4\npool created: 2 GPUs\n0\n",
        "the records are not written, and `init --force` removes the mounts"
    );
}

#[test]
fn time_limit_in_a_record_of_another_user_extends_nothing() {
    let pool = Directory::of("0");
    let run =
        bailiff(&pool, &["run", "--max-time", "2s", "--", "sh", "-c", "echo begun; exec sleep infinity"]);
    let mut run = { run }.stdout(Stdio::piped()).spawn().unwrap();
    run.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let file = pool.path().join("record/0");
    let record = until("the record", || {
        let record = fs::read_to_string(&file).ok()?;
        record.contains(r#""max_ms":"2000""#).then_some(record)
    });
    fs::write(&file, record.replace(r#""max_ms":"2000""#, r#""max_ms":"9999999""#)).unwrap();
    assert!(!run.wait().unwrap().success());
    assert_eq!(states(&pool), ["idle"]);
}

#[test]
fn held_gate_is_reported_and_leaks_nothing() {
    let pool = Directory::of("0");
    let mut gate = nobody_locks(&pool, "gate", "-x");
    let init = run(&pool, &["init", "--force", "--gpus", "0"]);
    let expected = format!("process {} of user 65534", gate.id());
    assert!(code(&init) == 69 && err(&init).contains(&expected) && !err(&init).contains("Redis"), "{init:?}");
    let holder = hold(&pool, &["run"]);
    let waiter = bailiff(&pool, &["run", "true"]).spawn().unwrap();
    let entries = |name: &str| fs::read_dir(format!("/proc/{}/{name}", waiter.id())).unwrap().count();
    until("the ticket", || (tickets(&pool) == 1).then_some(()));
    let started = std::time::Instant::now();
    let after = |seconds| {
        until("several waits", || (started.elapsed().as_secs() >= seconds).then_some(()));
        (entries("task"), entries("fd"))
    };
    // The waiter attempts to take the GPU at most once in 2 s, and each attempt waits 1 s for the gate.
    let (early, late) = (after(3), after(9));
    assert_eq!(early, late, "threads and descriptors");
    gate.kill().unwrap();
    gate.wait().unwrap();
    end(holder, Signal::TERM);
    assert!(waiter.wait_with_output().unwrap().status.success());
}

#[test]
fn dead_ticket_of_another_user_blocks_no_waiter() {
    let pool = Directory::of("0");
    let holder = hold(&pool, &["run"]);
    let mut other_user = bailiff(&pool, &["run", "true"]).spawn().unwrap();
    queued(&pool, 1);
    other_user.kill().unwrap();
    other_user.wait().unwrap();
    let waiter = bailiff_as_nobody(&pool, &["run", "true"]).spawn().unwrap();
    until("two tickets, one of a dead process of root", || (tickets(&pool) == 2).then_some(()));
    end(holder, Signal::TERM);
    assert!(waiter.wait_with_output().unwrap().status.success());
    assert_eq!(tickets(&pool), 1, "user nobody cannot remove root's ticket");
    assert_eq!(states(&pool), ["idle"]);
    assert_eq!(tickets(&pool), 0, "root removes its own ticket");
}

#[test]
fn tasks_150_over_8_gpus_never_share() {
    let pool = Directory::of("0-7");
    let done = Tasks::start(&pool, 150).all_end(&[]);
    assert_eq!(done.len(), 150);
    assert_eq!(BTreeSet::from_iter(done).len(), 8, "all GPUs are used");
    assert_eq!(states(&pool), ["idle"; 8]);
    assert_eq!(tickets(&pool), 0);
}

#[test]
fn tasks_150_with_some_killed_never_share() {
    let pool = Directory::of("0-7");
    let tasks = Tasks::start(&pool, 150);
    let mut killed = Vec::new();
    // Waiting runners, runners with a command, and commands of runners.
    for (number, task) in tasks.runners().iter().enumerate().filter(|(number, _)| number % 5 == 0) {
        match pidfd_of_command(task).filter(|_| number % 2 == 0) {
            Some(command) => pidfd_send_signal(command, Signal::KILL).unwrap_or_default(),
            None => kill_process(Pid::from_child(task), Signal::KILL).unwrap(),
        }
        killed.push(task.id());
    }
    assert!(tasks.all_end(&killed).len() >= 150 - killed.len());
    until("all to be idle", || (states(&pool) == ["idle"; 8]).then_some(()));
    assert_eq!(tickets(&pool), 0);
}

/// Returns a pidfd of a runner's command, if it has started. Its parent is checked again once the pidfd rules out
/// pid reuse.
fn pidfd_of_command(runner: &Child) -> Option<OwnedFd> {
    let children = format!("/proc/{0}/task/{0}/children", runner.id());
    let child = || Pid::from_raw(fs::read_to_string(&children).ok()?.split(' ').next()?.parse().ok()?);
    let pid = child()?;
    let command = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (child() == Some(pid)).then_some(command)
}
