//! A pseudo-terminal, for programs whose output on a terminal differs from their output in a pipe.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Returns the output of a program on a terminal with this many columns and rows, and its exit code.
///
/// # Panics
/// If a terminal is not available, or the program cannot be started.
pub fn shown(mut command: Command, size: (u16, u16)) -> (String, Option<i32>) {
    let (near, far) = terminal(size);
    let child = command.stdout(Stdio::from(far)).spawn().expect("the program starts");
    // Dropping the command closes this process's copies of the other end.
    drop(command);
    written(near, child, |_, _| {})
}

/// Returns the standard output and error of a program that is sent SIGINT once it has written this text,
/// and its exit code.
///
/// # Panics
/// If a terminal is not available, or the program cannot be started.
pub fn interrupted(mut command: Command, size: (u16, u16), after: &str) -> (String, Option<i32>) {
    let (near, far) = terminal(size);
    let errors = far.try_clone().expect("the descriptor can be cloned");
    let child = command.stdout(Stdio::from(far)).stderr(Stdio::from(errors)).spawn();
    drop(command);
    let mut sent = false;
    written(near, child.expect("the program starts"), |child, text| {
        if !sent && String::from_utf8_lossy(text).contains(after) {
            kill_process(Pid::from_child(child), Signal::INT).expect("the terminal belongs to this process");
            sent = true;
        }
    })
}

fn terminal((columns, rows): (u16, u16)) -> (File, File) {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&near).expect("the terminal belongs to this process");
    unlockpt(&near).expect("the terminal can be unlocked");
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&near, size).expect("the size can be set");
    let name = ptsname(&near, Vec::new())
        .expect("the terminal has a name")
        .into_string()
        .expect("the name is UTF-8");
    let far = OpenOptions::new().read(true).write(true).open(name).expect("the other end can be opened");
    (File::from(near), far)
}

fn written(mut near: File, mut child: Child, mut seen: impl FnMut(&Child, &[u8])) -> (String, Option<i32>) {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    // Reading fails once the last copy of the other end is closed.
    while let Ok(count @ 1..) = near.read(&mut part) {
        text.extend_from_slice(&part[..count]);
        seen(&child, &text);
    }
    let code = child.wait().expect("our own child can be waited for").code();
    (String::from_utf8_lossy(&text).replace("\r\n", "\n"), code)
}
