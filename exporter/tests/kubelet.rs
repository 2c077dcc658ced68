//! Tests the client of the kubelet against servers that write HTTP/2 frames byte by byte, also wrong ones.

#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]
#![allow(clippy::disallowed_methods, reason = "a test has files")]

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use bailiff_exporter::kubelet::query;
use bailiff_sampler::KubeletMethod;
use bailiff_snapshot::Fault;
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use tempfile::TempDir;

// Types and flags of frames (RFC 9113).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` and `:status: 500` in HPACK's static table.
const OK: &[u8] = &[0x88];
const SERVER_ERROR: &[u8] = &[0x8e];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns a header that is not in a table.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).expect("a short text");
        assert!(length < 127);
        [&[length], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[])
}

fn head() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, OK)
}

/// Returns a frame with a message: its head, and these bytes.
fn data(compressed: u8, length: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, 1, &[&[compressed, 0, 0, 0, length], bytes].concat())
}

fn trailers(status: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &header("grpc-status", status))
}

/// What the server does after its bytes.
#[derive(Clone, Copy)]
enum Then {
    Closes,
    /// Waits for the client to close the connection.
    Waits,
    /// Writes these bytes again until the client closes the connection.
    Repeats(&'static [u8]),
}

/// Starts a server for one connection; its socket is removed with the directory.
fn serve(bytes: Vec<u8>, then: Then) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("kubelet.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        // Each fails if the client has given up.
        let _ = read_request(&mut stream);
        let _ = stream.write_all(&bytes);
        match then {
            Then::Closes => {}
            Then::Waits => drop(std::io::copy(&mut stream, &mut std::io::sink())),
            Then::Repeats(more) => while stream.write_all(more).is_ok() {},
        }
    });
    (directory, path)
}

/// Reads the client's preface and frames up to the end of its request.
fn read_request(stream: &mut UnixStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24])?;
    let mut head = [0; 9];
    while (head[3], head[4], head[8]) != (DATA, END_STREAM, 1) {
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        std::io::copy(&mut stream.take(length.into()), &mut std::io::sink())?;
    }
    Ok(())
}

fn asked(frames: &[Vec<u8>], then: Then) -> Result<Vec<u8>, Fault> {
    let (_directory, path) = serve(frames.concat(), then);
    query(&path, KubeletMethod::List).map_err(|error| error.fault)
}

#[test]
fn message_is_what_a_complete_response_contains() {
    let good = [settings(), head(), message(), trailers("0")];
    assert_eq!(asked(&good, Then::Waits), Ok(b"abc".to_vec()));
    let parts = [
        settings(),
        head(),
        frame(PING, 0, 0, &[7; 8]),
        frame(DATA, 0, 1, &[0, 0, 0]),
        frame(DATA, 0, 1, &[0, 3, b'a']),
        frame(DATA, 0, 1, b""),
        frame(DATA, 0, 1, b"bc"),
        trailers("0"),
        frame(GO_AWAY, 0, 0, &[0; 8]),
    ];
    assert_eq!(asked(&parts, Then::Waits), Ok(b"abc".to_vec()));
    assert_eq!(asked(&[settings(), head(), data(0, 0, b""), trailers("0")], Then::Waits), Ok(vec![]));
}

/// Returns a message of three bytes.
fn message() -> Vec<u8> {
    data(0, 3, b"abc")
}

#[test]
fn response_that_breaks_off_is_an_error() {
    let cases = [
        vec![],
        vec![settings()[..5].to_vec()],
        vec![settings()],
        vec![settings(), head()],
        vec![settings(), head(), message()[..12].to_vec()],
        vec![settings(), head(), message()],
    ];
    for frames in cases {
        assert_eq!(asked(&frames, Then::Closes), Err(Fault::Error), "{frames:?}");
    }
}

#[test]
fn frames_that_are_no_response_are_errors() {
    let long: Vec<Vec<u8>> = (0..120).map(|n| header(&format!("x-{n}"), &"v".repeat(120))).collect();
    let cases = [
        ("HTTP/1", vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]),
        ("an HTTP error", vec![settings(), frame(HEADERS, END_HEADERS, 1, SERVER_ERROR)]),
        ("a reset", vec![settings(), head(), message(), frame(RESET, 0, 1, &[0, 0, 0, 8])]),
        ("a push", vec![settings(), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])]),
        (
            "long headers",
            vec![
                settings(),
                frame(HEADERS, 0, 1, OK),
                frame(CONTINUATION, END_HEADERS, 1, &long.concat()),
                message(),
                trailers("0"),
            ],
        ),
        (
            "more data than was permitted",
            vec![settings(), head(), frame(DATA, 0, 1, &[0; 16_384]).repeat(80)],
        ),
    ];
    for (case, frames) in cases {
        assert_eq!(asked(&frames, Then::Waits), Err(Fault::Error), "{case}");
    }
}

#[test]
fn response_without_success_or_with_another_message_is_an_error() {
    let early = |status| {
        vec![frame(HEADERS, END_HEADERS | END_STREAM, 1, &[OK, &header("grpc-status", status)].concat())]
    };
    let complete = |data: Vec<u8>, status| vec![head(), data, trailers(status)];
    let cases = [
        ("no status", vec![head(), frame(DATA, END_STREAM, 1, &[0; 5])], Fault::Error),
        ("odd status", complete(message(), "ok"), Fault::Error),
        ("failed", complete(message(), "13"), Fault::Error),
        ("late", complete(message(), "4"), Fault::Timeout),
        ("not implemented", early("12"), Fault::Error),
        ("not permitted", early("7"), Fault::NotPermitted),
        ("not available", early("14"), Fault::Unreachable),
        ("no message", early("0"), Fault::Error),
        ("compressed", complete(data(1, 3, b"abc"), "0"), Fault::Error),
        ("too short", complete(data(0, 4, b"abc"), "0"), Fault::Error),
        ("too long", complete(data(0, 2, b"abc"), "0"), Fault::Error),
        ("two messages", complete(message().repeat(2), "0"), Fault::Error),
    ];
    for (case, frames, fault) in cases {
        assert_eq!(asked(&[vec![settings()], frames].concat(), Then::Waits), Err(fault), "{case}");
    }
}

#[test]
fn kubelet_that_does_not_end_its_response_is_late() {
    const PINGS: &[u8] = &[0, 0, 8, PING, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let cases = [
        (vec![settings(), head(), data(0, 200, b"abc")], Then::Waits),
        (vec![settings(), head(), data(0, 200, b"abc")], Then::Repeats(PINGS)),
        (vec![], Then::Waits),
    ];
    for (frames, then) in cases {
        let began = Instant::now();
        assert_eq!(asked(&frames, then), Err(Fault::Timeout));
        // The deadline is 2 s. A busy machine adds to that.
        assert!((2..8).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}

#[test]
fn server_of_another_user_is_not_the_kubelet() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can act as another user: nothing was tested");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("our own directory");
    let path = directory.path().join("kubelet.sock");
    let bind = {
        let path = path.clone();
        move || {
            set_thread_uid(Uid::from_raw(65_534)).expect("root can be any user");
            UnixListener::bind(path).expect("a socket")
        }
    };
    let _listener = thread::spawn(bind).join().expect("a listener");
    let fault = query(&path, KubeletMethod::List).map_err(|error| error.fault);
    assert_eq!(fault, Err(Fault::NotPermitted));
}

#[test]
fn path_without_a_server_is_unreachable() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("kubelet.sock");
    let fault = || query(&path, KubeletMethod::GetAllocatableResources).map_err(|error| error.fault);
    assert_eq!(fault(), Err(Fault::Unreachable));
    drop(UnixListener::bind(&path).expect("a socket"));
    assert_eq!(fault(), Err(Fault::Unreachable), "its server has ended");
    std::fs::remove_file(&path).expect("a file");
    std::fs::write(&path, "").expect("a file");
    assert_eq!(fault(), Err(Fault::Unreachable), "it is no socket");
}
