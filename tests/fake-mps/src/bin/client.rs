//! A program that computes under MPS, as far as a daemon sees it: it connects, tells how that went, and lives on until it is
//! ended, also once its server has let it go.

use std::io::{self, Write};

use fake_mps::{Places, connect, receive, send};

fn main() -> io::Result<()> {
    let tell = |text: &str| {
        let mut output = io::stdout();
        writeln!(output, "{text}").and_then(|()| output.flush())
    };
    match connect(&Places::of_environment().socket()) {
        Err(_) => tell("without MPS")?,
        Ok(socket) => {
            send(&socket, "client")?;
            let said = receive(&socket)?.unwrap_or_default();
            tell(&said)?;
            if !said.starts_with("connected") {
                return Ok(());
            }
            while receive(&socket)?.is_some() {}
        }
    }
    loop {
        std::thread::park();
    }
}
