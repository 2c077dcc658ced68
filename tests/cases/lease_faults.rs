//! Tests leases with wrong clocks, reused pids, holders of other users or in containers, and a Redis server that
//! refuses commands or is not responding. Checks the exit codes, and that a running holder is never treated as
//! dead.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bailiff_lease::Leases as _;
use bailiff_lease::{End, Pool};
use end_to_end::certificates::Authority;
use end_to_end::hostile_redis::{ATTACKS, serve};
use end_to_end::leases::{bailiff, code, command_of, end, hold, pool, run, states, stdout_of};
use end_to_end::redis::Redis;
use end_to_end::wait::until;
use end_to_end::{programs, tls};
use rustix::process::{Pid, Signal, kill_process};
use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

/// Returns the number of leases that `reap` has freed.
fn reap(redis: &Redis) -> String {
    stdout_of(&run(redis, &["reap"])).trim().to_owned()
}

fn json_of(redis: &Redis, args: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(&run(redis, args))).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns `bailiff lease` with a clock that is this many seconds off.
fn with_clock_offset(redis: &Redis, seconds: i64, args: &[&str]) -> Command {
    let mut command = bailiff(redis, args);
    command
        .env("LD_PRELOAD", programs::tool("libfaketime.so.1"))
        .env("FAKETIME", format!("{seconds:+}s"))
        // The wall clock is faked, the monotonic clock is not.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

#[test]
fn only_the_clock_of_redis_counts() {
    let date = Command::new("date")
        .arg("+%s")
        .env("LD_PRELOAD", programs::tool("libfaketime.so.1"))
        .env("FAKETIME", "-86400s")
        .output()
        .unwrap();
    let date: u64 = stdout_of(&date).trim().parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(date < now - 86000, "libfaketime has no effect: {date}, {now}");

    for seconds in [-86400, 86400] {
        let redis = pool("0,1");
        let mut holder =
            with_clock_offset(&redis, seconds, &["run", "--renew", "100ms", "--", "sleep", "infinity"])
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
        until("a lease", || (states(&redis) == ["leased", "idle"]).then_some(()));
        let timed = with_clock_offset(&redis, -seconds, &["acquire", "--duration", "2h"]).output().unwrap();
        stdout_of(&timed);
        for command in [bailiff(&redis, &["reap"]), with_clock_offset(&redis, -seconds, &["reap"])] {
            let mut command = command;
            assert_eq!(stdout_of(&command.output().unwrap()).trim(), "0", "{seconds}");
        }
        assert_eq!(states(&redis), ["leased"; 2]);
        // Both clients print the time that Redis has set.
        let list = json_of(&redis, &["list", "--json"]);
        for gpu in list["gpus"].as_array().unwrap() {
            let acquired = gpu["lease"]["acquired"].as_str().unwrap();
            let acquired = humantime::parse_rfc3339_weak(acquired).unwrap();
            let since = SystemTime::now().duration_since(acquired).unwrap_or_default();
            assert!(since < Duration::from_hours(1), "{seconds}: {gpu}");
        }
        let late = with_clock_offset(&redis, -seconds, &["run", "--wait", "100ms", "true"]).output().unwrap();
        assert_eq!(code(&late), 124, "{late:?}");
        let waiter =
            with_clock_offset(&redis, seconds, &["run", "--wait", "1m", "--", "sh", "-c", "echo had"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
        until("the request to wait", || {
            (json_of(&redis, &["queue", "--json"]).as_array().unwrap().len() == 1).then_some(())
        });
        kill_process(Pid::from_child(&holder), Signal::TERM).unwrap();
        holder.wait().unwrap();
        assert_eq!(stdout_of(&waiter.wait_with_output().unwrap()).trim(), "had");
        assert_eq!(states(&redis), ["idle", "leased"]);
    }
}

/// A PID namespace with a shell that runs one line at a time.
struct Namespace {
    shell: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Namespace {
    fn new(redis: &Redis) -> Self {
        let mut shell = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh"])
            .env("LEASE_REDIS_URL", redis.address())
            .env("BAILIFF", programs::bailiff())
            .env_remove("BAILIFF_LEASE_ID")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(shell.stdout.take().unwrap());
        Self { shell, answers }
    }

    /// Runs a line and returns the single line that it prints.
    fn query(&mut self, line: &str) -> String {
        writeln!(self.shell.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn reused_pid_is_another_holder() {
    let redis = pool("0");
    let mut inside = Namespace::new(&redis);
    assert_eq!(
        inside.query("sleep infinity & holder=$!; $BAILIFF lease acquire --for $holder --format ids"),
        "0"
    );
    assert_eq!(inside.query("$BAILIFF lease reap"), "0");
    assert_eq!(
        inside.query(
            "kill -9 $holder; wait $holder 2>/dev/null; \
             echo $((holder - 1)) >/proc/sys/kernel/ns_last_pid; sleep infinity & echo $(($! - holder))"
        ),
        "0",
        "another process has the holder's pid"
    );
    assert_eq!(inside.query("$BAILIFF lease reap"), "1");
    assert_eq!(states(&redis), ["idle"]);
}

#[test]
fn container_holders_are_judged_within_their_pid_namespace() {
    let redis = pool("0,1");
    let mut inside = Namespace::new(&redis);
    let mut holder =
        || inside.query("sleep infinity & holder=$!; $BAILIFF lease acquire --for $holder --format ids");
    assert_eq!((holder(), holder()), ("0".to_owned(), "1".to_owned()));
    assert_eq!(reap(&redis), "0", "from outside");
    let mut another = Namespace::new(&redis);
    assert_eq!(another.query("$BAILIFF lease reap"), "0", "reap runs in another PID namespace");
    assert_eq!(inside.query("kill -9 $holder; wait $holder 2>/dev/null; echo dead"), "dead");
    assert_eq!((reap(&redis), another.query("$BAILIFF lease reap")), ("0".to_owned(), "0".to_owned()));
    assert_eq!(states(&redis), ["leased"; 2]);
    assert_eq!(inside.query("$BAILIFF lease reap"), "1", "the holder's PID namespace is visible");
    assert_eq!(states(&redis), ["leased", "idle"]);
    // Processes inside do not affect the holder outside.
    let outside = hold(&redis, &["run"]);
    assert_eq!(
        (inside.query("$BAILIFF lease reap"), another.query("$BAILIFF lease reap")),
        ("0".to_owned(), "0".to_owned())
    );
    end(outside, Signal::TERM);
    drop(inside);
    assert_eq!(another.query("$BAILIFF lease reap"), "0", "a container sees only its own processes");
    until("a container that is gone to have no process left", || (reap(&redis) == "1").then_some(()));
    assert_eq!(states(&redis), ["idle"; 2]);
}

#[test]
fn release_keeps_leases_of_other_containers() {
    let redis = pool("0-2");
    let (mut one, mut other) = (Namespace::new(&redis), Namespace::new(&redis));
    let timed = "$BAILIFF lease acquire --duration 1h --format ids";
    let held = "sleep infinity & $BAILIFF lease acquire --for $! --format ids";
    assert_eq!((one.query(timed), one.query(held), other.query(held)), ("0".into(), "1".into(), "2".into()));
    assert_eq!(stdout_of(&run(&redis, &["release", "--mine"])).trim(), "0");
    assert_eq!(other.query("$BAILIFF lease release --mine"), "1");
    assert_eq!(states(&redis), ["leased", "leased", "idle"]);
    assert_eq!(one.query("$BAILIFF lease release --mine"), "2");
    assert_eq!(states(&redis), ["idle"; 3]);
}

/// Returns `bailiff lease` as an unprivileged user.
fn as_user(uid: u32, redis: &Redis, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let uid = uid.to_string();
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).arg(programs::bailiff());
    command.arg("lease").args(args).env("LEASE_REDIS_URL", redis.address()).env_remove("BAILIFF_LEASE_ID");
    command
}

#[test]
fn holders_of_other_users_count_as_alive() {
    const FOREIGN: u32 = 65534;
    const OTHERS: u32 = 65533;
    let redis = pool("0,1");
    let reaped = |uid| stdout_of(&as_user(uid, &redis, &["reap"]).output().unwrap()).trim().to_owned();
    let local = hold(&redis, &["run"]);
    let script = "echo begun; exec sleep infinity";
    let mut foreign =
        as_user(FOREIGN, &redis, &["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(foreign.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "begun\n");
    assert_eq!(
        (reap(&redis), reaped(FOREIGN), reaped(OTHERS)),
        ("0".to_owned(), "0".to_owned(), "0".to_owned())
    );
    let command = command_of(&foreign);
    kill_process(Pid::from_child(&foreign), Signal::KILL).unwrap();
    foreign.wait().unwrap();
    assert_eq!(
        (reap(&redis), reaped(FOREIGN)),
        ("0".to_owned(), "0".to_owned()),
        "the command is still running"
    );
    assert_eq!(reaped(OTHERS), "0", "whether the command is running is unknown");
    assert_eq!(states(&redis), ["leased"; 2]);
    kill_process(command, Signal::KILL).unwrap();
    until("the lease to end with its last process", || (reaped(OTHERS) == "1").then_some(()));
    end(local, Signal::TERM);
    assert_eq!(states(&redis), ["idle"; 2]);
}

#[test]
fn redis_refusal_exits_with_unavailable() {
    let redis = pool("0");
    let redis_cli = |args: &[&str]| {
        let reply = Command::new("redis-cli").arg("-s").arg(redis.socket()).args(args).output().unwrap();
        assert!(stdout_of(&reply).starts_with("OK"), "{args:?}: {reply:?}");
    };
    let refused = |because: &str| {
        for args in
            [&["run", "true"][..], &["acquire"], &["list"], &["reap"], &["release", "whose"], &["queue"]]
        {
            let output = run(&redis, args);
            assert_eq!(code(&output), 69, "{args:?}: {output:?}");
            assert!(err(&output).contains(because), "{args:?}: {output:?}");
        }
    };
    redis_cli(&["ACL", "SETUSER", "default", "on", "nopass", "resetkeys", "~nothing*", "+@all"]);
    refused("add a user and a password");
    redis_cli(&["ACL", "SETUSER", "default", "resetkeys", "~*", "-evalsha", "-eval"]);
    refused("add a user and a password");
    redis_cli(&["ACL", "SETUSER", "default", "+@all"]);
    redis_cli(&["RENAME", "GPU_EVENTS", "aside"]);
    redis_cli(&["SET", "GPU_EVENTS", "what is this"]);
    refused("GPU_EVENTS is a string");
    redis_cli(&["RENAME", "aside", "GPU_EVENTS"]);
    redis_cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = run(&redis, &["run", "true"]);
    assert_eq!((code(&full), err(&full).contains("no memory left")), (69, true), "{full:?}");
    redis_cli(&["CONFIG", "SET", "maxmemory", "0"]);
    redis_cli(&["CONFIG", "SET", "requirepass", "secret"]);
    refused("add a user and a password");
    let redis_url = format!("{}?pass=secret", redis.address());
    let known = bailiff(&redis, &["run", "true"]).env("LEASE_REDIS_URL", redis_url).output().unwrap();
    stdout_of(&known);
}

#[test]
fn value_that_fills_memory_is_refused() {
    let redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let fill = "for _, key in ipairs(redis.call('KEYS', '*')) do \
                if redis.call('TYPE', key).ok == 'hash' then \
                redis.call('HSET', key, 'note', string.rep('x', 60 * 1024 * 1024)) end end return 'OK'";
    let reply = Command::new("redis-cli").arg("-s").arg(redis.socket()).args(["EVAL", fill, "0"]).output();
    assert!(stdout_of(&reply.unwrap()).starts_with("OK"));
    let output = run(&redis, &["list"]);
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(err(&output).contains("larger than 8 MiB"), "{output:?}");
    end(holder, Signal::TERM);
}

#[test]
fn hostile_server_over_tcp_and_tls_is_bounded() {
    let (authority, directory) = (Authority::new("ours"), tempfile::tempdir().unwrap());
    let trusted = directory.path().join("ca.pem");
    std::fs::write(&trusted, authority.pem()).unwrap();
    let config = tls::server(&authority.signs(&["127.0.0.1"]));
    for ((attack, why), scheme) in
        ATTACKS.into_iter().flat_map(|attack| [(attack, "redis"), (attack, "rediss")])
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("{scheme}://{}/0", listener.local_addr().unwrap());
        let config = Arc::clone(&config);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
                std::thread::spawn(move || match scheme {
                    "redis" => serve(stream, attack),
                    _ => serve(StreamOwned::new(tls, stream), attack),
                });
            }
        });
        let mut list = Command::new(programs::bailiff());
        list.args(["lease", "list"]).env("LEASE_REDIS_URL", address).env("SSL_CERT_FILE", &trusted);
        let output = list.output().unwrap();
        assert_eq!(code(&output), 69, "{scheme} {attack:?}: {output:?}");
        assert!(err(&output).contains(why), "{scheme} {attack:?}: {output:?}");
        assert!(err(&output).len() < 1024, "{scheme} {attack:?}");
    }
}

#[test]
fn silent_redis_times_out() {
    let redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let began = Instant::now();
    let output = redis.while_stopped(|| run(&redis, &["run", "--wait", "1s", "true"]));
    let took = began.elapsed();
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(err(&output).contains("does not respond"), "{output:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(states(&redis), ["leased"]);
    end(holder, Signal::TERM);
    until("the GPU to be idle", || {
        stdout_of(&run(&redis, &["reap"]));
        (states(&redis) == ["idle"]).then_some(())
    });
}

/// Returns a waiter that is stopped when a GPU is granted to it, and that continues when another holder has the
/// GPU.
fn suspended_waiters(redis: &Redis) -> (Child, Child) {
    let mut leases = Pool::open(&redis.address(), "GPU", Duration::from_secs(5)).unwrap();
    let holder = hold(redis, &["run"]);
    let waiter = bailiff(redis, &["run", "--", "sh", "-c", "echo had"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the waiter to be queued", || {
        let reply =
            Command::new("redis-cli").arg("-s").arg(redis.socket()).args(["INFO", "clients"]).output();
        stdout_of(&reply.unwrap()).contains("blocked_clients:2").then_some(())
    });
    let foreign = leases.audit().unwrap().queue.remove(0);
    kill_process(Pid::from_child(&waiter), Signal::STOP).unwrap();
    end(holder, Signal::TERM);
    until("the GPU to be granted", || {
        let audit = leases.audit().unwrap();
        audit.leases.iter().any(|lease| lease.lease == foreign && lease.state == "held").then_some(())
    });
    // After a period without heartbeats, a client on another machine ended the lease as if its holder were dead.
    leases.end(&foreign, End::Dead { pid: "", start: "", known: false }, &[]).unwrap();
    let next = hold(redis, &["run", "--nonblock"]);
    kill_process(Pid::from_child(&waiter), Signal::CONT).unwrap();
    until("the waiter to queue again", || {
        let queue = leases.audit().unwrap().queue;
        (queue.len() == 1 && queue[0] != foreign).then_some(())
    });
    (waiter, next)
}

#[test]
fn waiter_suspended_past_its_grant_queues_again() {
    let redis = pool("0");
    let (waiter, next) = suspended_waiters(&redis);
    end(next, Signal::TERM);
    let output = waiter.wait_with_output().unwrap();
    assert_eq!(stdout_of(&output), "had\n");
    assert!(err(&output).contains("requesting again"), "{output:?}");
    assert_eq!(states(&redis), ["idle"]);
}

#[test]
fn requeued_waiter_on_sigterm_leaves_the_queue() {
    let redis = pool("0");
    let (waiter, next) = suspended_waiters(&redis);
    kill_process(Pid::from_child(&waiter), Signal::TERM).unwrap();
    let output = waiter.wait_with_output().unwrap();
    assert_eq!((code(&output), output.stdout.len()), (143, 0), "{output:?}");
    assert_eq!(json_of(&redis, &["queue", "--json"]).as_array().unwrap().len(), 0);
    end(next, Signal::TERM);
    assert_eq!(states(&redis), ["idle"]);
}

#[test]
fn signal_ends_a_wait_without_redis() {
    let mut redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let mut waiter = bailiff(&redis, &["run", "true"]).stderr(Stdio::null()).spawn().unwrap();
    until("the request to wait", || {
        (json_of(&redis, &["queue", "--json"]).as_array().unwrap().len() == 1).then_some(())
    });
    redis.kill();
    kill_process(Pid::from_child(&waiter), Signal::TERM).unwrap();
    assert_eq!(waiter.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()));
    end(holder, Signal::TERM);
}
