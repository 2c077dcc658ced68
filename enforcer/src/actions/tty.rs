//! Notifications on the owner's terminals that accept messages (`mesg y`), in printable ASCII only, because
//! process names may be hostile.

use std::path::Path;

use rustix::fs::{AtFlags, CWD};
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};
use rustix::io::Errno;

/// Maximum number of terminals to write to, per directory.
const MOST: usize = 64;

/// Error if no terminal received the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TtyError {
    #[error("the owner is unknown")]
    NoOwner,
    #[error("the owner has no terminal that accepts messages")]
    NoTerminal,
    #[error("cannot write to the terminal now: {0}")]
    Full(Errno),
    #[error("the owner's terminals do not respond")]
    Late,
}

/// Writes the lines to all terminals of the user `uid` below the directory `dev`.
pub(super) fn notify(dev: &Path, uid: Option<u32>, lines: &[String]) -> Result<(), TtyError> {
    let uid = uid.ok_or(TtyError::NoOwner)?;
    let mut text = String::from("\r\n");
    for line in lines {
        text.push_str(&plain(line));
        text.push_str("\r\n");
    }
    let dev = dev.to_owned();
    let sent = bailiff_proc::with_terminals_of(uid, move || write_all(&dev, uid, text.as_bytes()));
    sent.unwrap_or(Err(TtyError::Late))
}

fn write_all(dev: &Path, uid: u32, text: &[u8]) -> Result<(), TtyError> {
    let mut sent = Err(TtyError::NoTerminal);
    for (directory, prefix) in [(dev.join("pts"), ""), (dev.to_owned(), "tty")] {
        for name in terminals(&directory, prefix, uid).unwrap_or_default() {
            match write(&directory, &name, uid, text) {
                Ok(()) => sent = Ok(()),
                Err(error) if sent == Err(TtyError::NoTerminal) => sent = Err(TtyError::Full(error)),
                Err(_) => {}
            }
        }
    }
    sent
}

/// Escapes everything that is not printable ASCII, because a terminal with another encoding may read the
/// bytes of a letter as a control sequence.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            ' '..='~' => plain.push(character),
            other => plain.extend(other.escape_unicode()),
        }
    }
    plain
}

/// Returns the names (`3`, `tty3`) of terminals that belong to the user and are writable by their group.
fn terminals(directory: &Path, prefix: &str, uid: u32) -> Result<Vec<String>, Errno> {
    let held = openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::read_from(&held)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let number = name.strip_prefix(prefix).unwrap_or_default();
        let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let accepts =
            || statat(&held, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|about| listens(&about, uid));
        if numbered && found.len() < MOST && accepts() {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

fn listens(about: &Stat, uid: u32) -> bool {
    FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice
        && about.st_uid == uid
        && Mode::from_raw_mode(about.st_mode).contains(Mode::WGRP)
}

fn write(directory: &Path, name: &str, uid: u32, text: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let terminal = open(directory.join(name), flags, Mode::empty())?;
    if !listens(&fstat(&terminal)?, uid) || !rustix::termios::isatty(&terminal) {
        return Err(Errno::NOTTY);
    }
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&terminal, rest))?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_that_drives_a_terminal_passes() {
        let cases = [
            ("python3", "python3"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("\u{7}\r\n\t", "\\u{7}\\u{d}\\u{a}\\u{9}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}evil\u{2066}", "\\u{202e}evil\\u{2066}"),
            ("\u{7f}", "\\u{7f}"),
            // The second byte of this character is CSI on a terminal without UTF-8.
            ("\u{11b}", "\\u{11b}"),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), expected);
        }
    }

    proptest! {
        #[test]
        fn it_is_printable_ascii_whatever_comes(text: String) {
            prop_assert!(plain(&text).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }
    }
}
