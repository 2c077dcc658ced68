//! The user's command on a pool of a test's own.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "runs programs and fails loudly"
)]

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::programs;
use crate::redis::Redis;
use crate::wait::until;

/// `bailiff lease …` on a Redis.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn bailiff(redis: &Redis, words: &[&str]) -> Command {
    let mut command = Command::new(programs::bailiff());
    command.arg("lease").args(words).env("LEASE_REDIS_URL", redis.address()).env_remove("BAILIFF_LEASE_ID");
    command
}

/// Its output.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn run(redis: &Redis, words: &[&str]) -> Output {
    bailiff(redis, words).output().unwrap()
}

/// Its exit code.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

/// What it printed, where it succeeded.
///
/// # Panics
/// Where that fails.
#[expect(clippy::must_use_candidate, reason = "that it succeeded may be enough")]
pub fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Each GPU's state, in their order.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn states(redis: &Redis) -> Vec<String> {
    let told: Value = serde_json::from_str(&said(&run(redis, &["list", "--json"]))).unwrap();
    told["gpus"].as_array().unwrap().iter().map(|gpu| gpu["state"].as_str().unwrap().to_owned()).collect()
}

/// A pool of these GPUs on a Redis of its own.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn pool(gpus: &str) -> Redis {
    let redis = Redis::start();
    said(&run(&redis, &["init", "--gpus", gpus]));
    redis
}

/// A command under a lease that says when it has begun.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn hold(redis: &Redis, words: &[&str]) -> Child {
    let mut command = bailiff(redis, words);
    command.args(["--", "sh", "-c", "echo begun; exec sleep infinity"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"begun\n");
    child
}

/// Ends a child by a signal, and sees its end.
///
/// # Panics
/// Where that fails.
pub fn end(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap();
}

/// The process that a lease was run for.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn heir(runner: &Child) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", runner.id());
    let text = until("the command to be there", || {
        fs::read_to_string(&children).ok().filter(|text| !text.is_empty())
    });
    Pid::from_raw(text.split(' ').next().unwrap().parse().unwrap()).unwrap()
}

/// What it told as JSON.
///
/// # Panics
/// Where that fails.
#[must_use]
pub fn told(redis: &Redis, words: &[&str]) -> Value {
    serde_json::from_str(&said(&run(redis, words))).unwrap()
}
