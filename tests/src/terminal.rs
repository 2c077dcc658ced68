//! A terminal of a test's own, for programs that write otherwise to a terminal than into a pipe.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What a program writes to a terminal of so many columns and rows, and its exit code.
///
/// # Panics
/// Where there is no terminal, or the program cannot be started.
#[must_use]
pub fn shown(mut command: Command, (columns, rows): (u16, u16)) -> (String, Option<i32>) {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&near).expect("it is ours");
    unlockpt(&near).expect("it can be opened");
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&near, size).expect("it takes a size");
    let name = ptsname(&near, Vec::new()).expect("it has a name").into_string().expect("of plain letters");
    let far = OpenOptions::new().read(true).write(true).open(name).expect("its far end");
    let mut child = command.stdout(Stdio::from(far)).spawn().expect("the program starts");
    // Ours of the far end has gone with the command.
    drop(command);
    let mut text = Vec::new();
    let mut near = File::from(near);
    let mut part = [0; 4096];
    // Once the last far end is closed, reading fails.
    while let Ok(count @ 1..) = near.read(&mut part) {
        text.extend_from_slice(&part[..count]);
    }
    let code = child.wait().expect("our own child can be waited for").code();
    (String::from_utf8_lossy(&text).replace("\r\n", "\n"), code)
}
