//! Benchmarks leases: the cost of a command, and the delay until a waiter gets a freed GPU, compared with Redis' own
//! blocking pop.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{End, Pool, Ticket, TicketStatus};

use crate::programs;
use crate::redis::Redis;
use crate::wait::until;

/// A Redis server with a pool of one GPU.
pub struct Counter {
    redis: Redis,
}

/// A connection with a line-based protocol.
struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    fn open(redis: &Redis) -> Self {
        Self { reader: BufReader::new(UnixStream::connect(redis.socket()).expect("Redis listens")) }
    }

    fn send(&mut self, words: &str) {
        self.reader.get_mut().write_all(format!("{words}\r\n").as_bytes()).expect("Redis reads");
    }

    /// Reads this many lines.
    fn receive(&mut self, lines: usize) -> Vec<String> {
        let line = |reader: &mut BufReader<UnixStream>| {
            let mut line = String::new();
            reader.read_line(&mut line).expect("Redis responds");
            line.trim_end().to_owned()
        };
        (0..lines).map(|_| line(&mut self.reader)).collect()
    }

    fn blocked(&mut self, count: usize) {
        until("waiters to be blocked", || {
            self.send("INFO clients");
            let length: usize = self.receive(1)[0].trim_start_matches('$').parse().expect("a length");
            let mut text = vec![0; length + 2];
            std::io::Read::read_exact(&mut self.reader, &mut text).expect("Redis responds");
            let expected = format!("blocked_clients:{count}\r");
            String::from_utf8_lossy(&text).lines().any(|line| format!("{line}\r") == expected).then_some(())
        });
    }
}

impl Counter {
    /// Starts Redis with the pool.
    pub fn new() -> Self {
        let counter = Self { redis: Redis::start() };
        counter.command(&["init", "--gpus", "0"]);
        counter
    }

    fn command(&self, words: &[&str]) -> (Duration, String) {
        let mut command = Command::new(programs::bailiff());
        command
            .arg("lease")
            .args(words)
            .env("LEASE_REDIS_URL", self.redis.address())
            .stderr(Stdio::inherit());
        let began = Instant::now();
        let output = command.output().expect("bailiff runs");
        let took = began.elapsed();
        assert!(output.status.success(), "{output:?}");
        (took, String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the durations of acquire and release, each from process start to exit.
    pub fn one_shot(&self) -> (Duration, Duration) {
        let pid = std::process::id().to_string();
        let (acquired, receiver) = self.command(&["acquire", "--for", &pid]);
        let lease =
            receiver.lines().find_map(|line| line.strip_prefix("export BAILIFF_LEASE_ID=")).expect("a lease");
        (acquired, self.command(&["release", lease]).0)
    }

    /// Returns the durations of a command with `run` and without it.
    pub fn run(&self) -> (Duration, Duration) {
        let began = Instant::now();
        Command::new("true").status().expect("`true` runs");
        let bare = began.elapsed();
        (self.command(&["run", "true"]).0, bare)
    }

    /// Returns the times from a push to the return of a plain pop, with this many blocked connections.
    pub fn bare(&self, waiters: usize) -> Vec<Duration> {
        self.served(waiters, 1, |redis, served| {
            let mut line = Line::open(redis);
            line.send("BRPOP BARE 0");
            line.receive(5);
            served();
        })
    }

    /// Returns the times from a push until one of our waiters has its lease.
    pub fn ours(&self, waiters: usize) -> Vec<Duration> {
        self.served(waiters, 2, |redis, served| {
            let mut pool =
                Pool::open(&redis.address(), "GPU", Duration::from_secs(5)).expect("Redis listens");
            let lease = format!("{:?}-{:?}", std::thread::current().id(), Instant::now());
            let local_host = LocalHost::read();
            let mut about = local_host.holder(std::process::id());
            about.push(("legacy_pid", "0".to_owned()));
            let ttl = Duration::from_mins(10);
            let ticket = Ticket { lease, want: 1, priority: 0, ttl, nonblock: false, about };
            let status = pool.wait(&ticket, (&local_host, None), |_| {}).expect("Redis responds");
            assert!(matches!(status, TicketStatus::Held(_)), "{status:?}");
            served();
            pool.end(&ticket.lease, End::Dead { pid: "", start: "", known: false }, &[])
                .expect("Redis responds");
        })
    }

    /// Serves waiters one after the other. `each` is the number of blocked connections per waiter.
    fn served(&self, waiters: usize, each: usize, wait: impl Fn(&Redis, &dyn Fn()) + Sync) -> Vec<Duration> {
        let list = if each == 1 { "BARE" } else { "GPU_IDLE" };
        let mut line = Line::open(&self.redis);
        // A waiter returns the GPU after it has been served. The GPU is removed again, so that one waiter is served at
        // a time.
        line.send("DEL BARE GPU_IDLE");
        line.receive(1);
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for number in 0..waiters {
                let (sender, wait) = (sender.clone(), &wait);
                scope.spawn(move || {
                    let (go, come) = channel::<()>();
                    wait(&self.redis, &|| {
                        sender.send((Instant::now(), go.clone())).expect("a receiver");
                        // The GPU is returned only when the next waiter is measured.
                        let _ = come.recv();
                    });
                });
                line.blocked((number + 1) * each);
            }
            let mut took = Vec::new();
            let mut done = Vec::new();
            for number in 0..waiters {
                std::thread::park_timeout(Duration::from_millis(1));
                let began = Instant::now();
                // The pool has one GPU. Its lease is removed before the GPU is pushed again.
                line.send(&format!("LPUSH {list} 0"));
                line.receive(1);
                let (served, go) = receiver.recv().expect("a waiter is served");
                took.push(served.duration_since(began));
                if each == 2 {
                    line.send("DEL GPU_V2:OWN GPU_GPU0");
                    line.receive(1);
                    line.blocked((waiters - number - 1) * each);
                }
                done.push(go);
            }
            for go in done {
                let _ = go.send(());
            }
            took
        })
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}
