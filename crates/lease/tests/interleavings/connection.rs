//! A connection that is read without blocking, because the test decides which client continues.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A reply from Redis in RESP2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Number(i64),
    Nil,
    List(Vec<Self>),
    Error(String),
}

impl Reply {
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::List(all) => all.iter().map(Self::text).collect(),
            other => panic!("{other:?} is not a list"),
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            other => panic!("{other:?} is not a string"),
        }
    }
}

pub(crate) struct Connection {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, inbox: Vec::new() }
    }

    /// Sends commands in a single write.
    pub(crate) fn send(&mut self, commands: &[&[&str]]) {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(format!("*{}\r\n", command.len()).bytes());
            for argument in *command {
                bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).bytes());
            }
        }
        self.stream.write_all(&bytes).unwrap();
    }

    /// Returns whether this many replies have arrived.
    pub(crate) fn has(&mut self, count: usize) -> bool {
        let mut chunk = [0; 16384];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the server has closed a connection"),
                Ok(read) => self.inbox.extend(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut at = 0;
        (0..count).all(|_| parse(&self.inbox, &mut at).is_some())
    }

    /// Takes the next reply, which must have arrived.
    pub(crate) fn take(&mut self) -> Reply {
        let mut at = 0;
        let reply = parse(&self.inbox, &mut at).expect("an answer");
        self.inbox.drain(..at);
        if let Reply::Error(error) = &reply {
            panic!("Redis: {error}");
        }
        reply
    }

    /// Sends a command and waits for the reply.
    pub(crate) fn request(&mut self, command: &[&str]) -> Reply {
        self.send(&[command]);
        while !self.has(1) {
            std::thread::yield_now();
        }
        self.take()
    }
}

fn parse(bytes: &[u8], at: &mut usize) -> Option<Reply> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = std::str::from_utf8(rest.get(1..end)?).unwrap();
    let mut next = *at + end + 2;
    let number = || line.parse::<i64>().unwrap();
    let reply = match rest[0] {
        b'+' => Reply::Text(line.to_owned()),
        b'-' => Reply::Error(line.to_owned()),
        b':' => Reply::Number(number()),
        b'$' | b'*' if number() < 0 => Reply::Nil,
        b'$' => {
            let length = usize::try_from(number()).unwrap();
            let text = bytes.get(next..next + length)?;
            bytes.get(next + length + 1)?;
            next += length + 2;
            Reply::Text(String::from_utf8_lossy(text).into_owned())
        }
        b'*' => {
            let mut all = Vec::new();
            for _ in 0..number() {
                all.push(parse(bytes, &mut next)?);
            }
            Reply::List(all)
        }
        other => panic!("{other} does not start a reply"),
    };
    *at = next;
    Some(reply)
}
