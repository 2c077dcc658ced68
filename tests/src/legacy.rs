//! A test double for GPUGET's `GPU.py`: the commands that it sends, one by one, and the texts that it prints. Each
//! step can be run alone, because its races occur between two steps.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use crate::redis::Redis;

/// A time in the format of GPU.py. The value does not matter.
const TIME: &str = "2024-06-13 12:00:00";

/// One run of the program.
pub struct Legacy {
    stream: BufReader<UnixStream>,
    /// Pid of the process that ran the program.
    pid: u32,
}

/// A reply from Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status, a text or a number.
    Text(String),
    /// Null.
    Nil,
    /// An array.
    List(Vec<Self>),
}

impl Legacy {
    /// Connects to Redis. This pid will be recorded.
    pub fn run_by(redis: &Redis, pid: u32) -> Self {
        let mut legacy =
            Self { stream: BufReader::new(UnixStream::connect(redis.socket()).expect("Redis listens")), pid };
        assert_eq!(legacy.query(&["PING"]), Reply::Text("PONG".to_owned()));
        legacy
    }

    /// Sends a command and returns the reply.
    pub fn query(&mut self, args: &[&str]) -> Reply {
        self.send(args);
        self.answer()
    }

    fn send(&mut self, args: &[&str]) {
        let args: Vec<String> = args.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let bytes = format!("*{}\r\n{}", args.len(), args.concat());
        self.stream.get_mut().write_all(bytes.as_bytes()).expect("Redis takes a command");
    }

    fn answer(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("Redis responds");
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("an answer");
        let length = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" | ":" => Reply::Text(rest.to_owned()),
            "$" | "*" if length() < 0 => Reply::Nil,
            "$" => {
                let mut text = vec![0; usize::try_from(length()).expect("a length") + 2];
                self.stream.read_exact(&mut text).expect("the text");
                text.truncate(text.len() - 2);
                Reply::Text(String::from_utf8(text).expect("a text"))
            }
            "*" => Reply::List((0..length()).map(|_| self.answer()).collect()),
            _ => panic!("Redis: {line}"),
        }
    }

    fn list(&mut self, name: &str) -> Vec<String> {
        self.query(&["LRANGE", name, "0", "-1"]).texts()
    }

    fn note(&mut self, what: &str) {
        self.query(&["LPUSH", "GPU_EVENTS", &format!("{TIME}: {what}")]);
    }

    /// Runs `--redis-manage …` with these GPUs out of `count`, and returns the output.
    pub fn manage(&mut self, ids: &[u32], count: u32, force: bool) -> String {
        let begun = !self.query(&["HGETALL", "GPU_INIT"]).texts().is_empty();
        if begun && !force {
            return "Objects already initialized, add force to proceed.".to_owned();
        }
        for name in ["IDLE", "MANAGED", "EVENTS", "INIT"] {
            self.query(&["DEL", &format!("GPU_{name}")]);
        }
        for id in ids {
            self.query(&["LPUSH", "GPU_IDLE", &id.to_string()]);
            self.query(&["LPUSH", "GPU_MANAGED", &id.to_string()]);
        }
        let joined = ids.iter().map(u32::to_string).collect::<Vec<String>>().join(",");
        for (field, value) in
            [("TIME", TIME), ("GPUMANAGED", joined.as_str()), ("GPUCOUNT", count.to_string().as_str())]
        {
            self.query(&["HSET", "GPU_INIT", field, value]);
        }
        self.note(&format!("Redis initialized, {} managed GPUs.", ids.len()));
        ids.len().to_string()
    }

    /// Runs `--get`, and returns the output.
    pub fn get(&mut self) -> String {
        let id = self.pop();
        self.record(&id);
        id
    }

    /// Runs the first step of `--get`.
    pub fn pop(&mut self) -> String {
        self.query(&["BRPOP", "GPU_IDLE", "0"]).texts().remove(1)
    }

    /// Runs the other steps of `--get`.
    pub fn record(&mut self, id: &str) {
        self.note(&format!("GPU {id} acquired by PID {}.", self.pid));
        let (key, pid) = (format!("GPU_GPU{id}"), self.pid.to_string());
        self.query(&["HSET", &key, "PID", &pid]);
        self.query(&["HSET", &key, "TIME", TIME]);
    }

    /// Runs `--release`, and returns the output.
    pub fn release(&mut self, id: &str) -> String {
        if let Some(refused) = self.refuse_release(id) {
            return refused;
        }
        self.erase_record(id);
        self.push_idle(id)
    }

    /// Runs the first steps of `--release`. Returns the output if the release is refused.
    pub fn refuse_release(&mut self, id: &str) -> Option<String> {
        let idle = self.list("GPU_IDLE");
        let managed = self.list("GPU_MANAGED");
        if !managed.iter().any(|other| other == id) {
            return Some(format!("GPU {id} is not managed."));
        }
        idle.iter().any(|other| other == id).then(|| format!("GPU {id} is already idle."))
    }

    /// Runs the next steps of `--release`.
    pub fn erase_record(&mut self, id: &str) {
        self.note(&format!("GPU {id} released by PID {}.", self.pid));
        self.query(&["DEL", &format!("GPU_GPU{id}")]);
    }

    /// Runs the last step of `--release`.
    pub fn push_idle(&mut self, id: &str) -> String {
        self.query(&["LPUSH", "GPU_IDLE", id]);
        format!("GPU {id} released.")
    }

    /// Runs `--redis-purge` with a function that checks whether a pid exists.
    pub fn purge(&mut self, is_there: impl Fn(&str) -> bool) {
        let managed = self.list("GPU_MANAGED");
        let idle = self.list("GPU_IDLE");
        for id in managed.iter().filter(|id| !idle.contains(id)) {
            let key = format!("GPU_GPU{id}");
            let Reply::Text(pid) = self.query(&["HGET", &key, "PID"]) else { continue };
            if !is_there(&pid) {
                self.query(&["DEL", &key]);
                self.note(&format!(
                    "GPU {id} acquired by process with PID {pid}, was released by redis purge as the process with \
                     given PID does no longer exist."
                ));
                self.query(&["LPUSH", "GPU_IDLE", id]);
            }
        }
    }

    /// Runs `--active`, and returns the holder of each GPU.
    pub fn active(&mut self) -> BTreeMap<String, Option<String>> {
        let managed = self.list("GPU_MANAGED");
        let idle = self.list("GPU_IDLE");
        let mut active = BTreeMap::new();
        for id in managed.into_iter().filter(|id| !idle.contains(id)) {
            let key = format!("GPU_GPU{id}");
            let pid = self.query(&["HGET", &key, "PID"]);
            let time = self.query(&["HGET", &key, "TIME"]);
            assert_eq!(pid == Reply::Nil, time == Reply::Nil, "a record must be complete: {pid:?} {time:?}");
            active.insert(id, if let Reply::Text(pid) = pid { Some(pid) } else { None });
        }
        active
    }

    /// Runs `--idle`, and returns the list from left to right.
    pub fn idle(&mut self) -> Vec<String> {
        self.list("GPU_IDLE")
    }

    /// Runs `--log`, and returns the lines without times.
    pub fn log(&mut self) -> Vec<String> {
        let mut lines = self.list("GPU_EVENTS");
        lines.reverse();
        lines.iter().map(|line| line[TIME.len() + 2..].to_owned()).collect()
    }

    /// Returns the number of blocked connections.
    pub fn blocked(&mut self) -> usize {
        let Reply::Text(info) = self.query(&["INFO", "clients"]) else { panic!("Redis lists its clients") };
        let count = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
        count.and_then(|count| count.trim().parse().ok()).expect("a number")
    }
}

impl Reply {
    /// Returns the texts in an array.
    pub fn texts(self) -> Vec<String> {
        let Self::List(all) = self else { panic!("{self:?} is not a list") };
        let text =
            |reply| if let Self::Text(text) = reply { text } else { panic!("{reply:?} is not a text") };
        all.into_iter().map(text).collect()
    }
}
