//! A CUDA program under MPS, from the daemon's view: it connects, prints the result, and runs until it
//! is killed, even after its server has terminated it.

use std::io::{self, Write};

use fake_mps::{Places, connect, receive, send};

fn main() -> io::Result<()> {
    let print = |text: &str| {
        let mut output = io::stdout();
        writeln!(output, "{text}").and_then(|()| output.flush())
    };
    match connect(&Places::of_environment().socket()) {
        Err(_) => print("without MPS")?,
        Ok(socket) => {
            send(&socket, "client")?;
            let reply = receive(&socket)?.unwrap_or_default();
            print(&reply)?;
            if !reply.starts_with("connected") {
                return Ok(());
            }
            while receive(&socket)?.is_some() {}
        }
    }
    loop {
        std::thread::park();
    }
}
