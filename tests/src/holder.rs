//! Real processes to hold GPUs. Each is ended with its test.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::programs;

/// A process of this test.
pub struct Holder(Child);

impl Holder {
    /// One that sleeps.
    ///
    /// # Panics
    /// Where no process can be started.
    #[must_use]
    pub fn sleeping() -> Self {
        Self(Command::new("sleep").arg("infinity").process_group(0).spawn().expect("sleep starts"))
    }

    /// A Python program; back when it has printed a line.
    ///
    /// # Panics
    /// Where it does not start, or prints nothing.
    #[must_use]
    pub fn python(program: &str) -> Self {
        let mut command = Command::new(programs::python());
        let mut child = command
            .args(["-u", "-c", program])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("python starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it has an output");
        BufReader::new(out).read_line(&mut line).expect("it prints a line");
        assert!(!line.is_empty(), "the program ended before it said anything");
        Self(child)
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it, and waits until it has.
    ///
    /// # Panics
    /// Where it cannot be ended.
    pub fn end(&mut self) {
        self.0.kill().expect("our own child can be ended");
        self.0.wait().expect("our own child can be waited for");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
