//! The control client: reads commands from standard input and prints the replies, one after the
//! other.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use crate::places::Places;
use crate::sockets::{connect, receive, send};

pub(crate) fn query(places: &Places) -> io::Result<ExitCode> {
    let Ok(socket) = connect(&places.socket()) else {
        eprintln!("Cannot find MPS control daemon process");
        return Ok(ExitCode::FAILURE);
    };
    let mut output = io::stdout().lock();
    for command in io::stdin().lock().lines() {
        let command = command?;
        if command.trim().is_empty() {
            continue;
        }
        send(&socket, command.trim())?;
        let Some(answer) = receive(&socket)? else { return Ok(ExitCode::FAILURE) };
        output.write_all(answer.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
