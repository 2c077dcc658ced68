//! The directory of an enforcer in a test: rules, sockets, state, audit log, and a stand-in for a device file.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use tempfile::TempDir;

use crate::enforcer::Enforcer;
use crate::wait::until;

/// The directory.
pub struct Home(TempDir);

impl Home {
    /// Creates an empty directory that other users can read.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a temporary directory"));
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("the directory is writable");
        fs::create_dir(home.state()).expect("a directory");
        // A FIFO without a writer. Its reader blocks without the help of another program.
        mknodat(CWD, home.device(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        home
    }

    /// Creates a directory with these rules.
    pub fn with(rules: &str) -> Self {
        let home = Self::new();
        home.write(rules);
        home
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of the rules.
    pub fn rules(&self) -> PathBuf {
        self.path().join("rules.yaml")
    }

    /// Returns the path of the exporter's stream socket.
    pub fn stream(&self) -> PathBuf {
        self.path().join("stream.sock")
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        self.path().join("control.sock")
    }

    /// Returns the path of the state directory, which is kept across restarts.
    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Returns the path of the audit log.
    pub fn audit(&self) -> PathBuf {
        self.path().join("audit.jsonl")
    }

    /// Returns the path of the stand-in for a device file.
    pub fn device(&self) -> PathBuf {
        self.path().join("nvidia0")
    }

    /// Opens the device file.
    ///
    /// # Panics
    /// If the device file cannot be opened.
    pub fn open_device(&self) -> fs::File {
        OpenOptions::new().read(true).write(true).open(self.device()).expect("the device can be opened")
    }

    /// Replaces the rules.
    ///
    /// # Panics
    /// If the rules cannot be written.
    pub fn write(&self, rules: &str) {
        let next = self.path().join("next");
        fs::write(&next, rules).expect("rules can be written");
        fs::rename(next, self.rules()).expect("rules can be replaced");
    }

    /// Starts an enforcer in the directory, with these additional arguments.
    ///
    /// # Panics
    /// If the enforcer does not listen.
    pub fn enforcer(&self, arguments: &[&str]) -> Enforcer {
        Enforcer::start(self, arguments)
    }

    /// Returns the lines of the audit log.
    ///
    /// # Panics
    /// If a line is not JSON.
    pub fn lines(&self) -> Vec<Value> {
        lines(&self.audit())
    }

    /// Returns the first audit line about this step with this result.
    pub fn line(&self, step: &str, result: &str) -> Option<Value> {
        self.lines().into_iter().find(|line| line["step"] == step && line["result"] == result)
    }

    /// Waits for an audit line about this step with this result.
    #[expect(clippy::must_use_candidate, reason = "waiting may be all that is needed")]
    pub fn until_line(&self, step: &str, result: &str) -> Value {
        until(&format!("{step} {result}"), || self.line(step, result))
    }

    /// Returns the results of a step's actions, in order.
    pub fn results(&self, step: &str) -> Vec<String> {
        let of_step = self.lines().into_iter().filter(|line| line["step"] == step);
        of_step.filter_map(|line| Some(line["result"].as_str()?.to_owned())).collect()
    }

    /// Results of a step's actions that had an effect. On a busy machine an action may be cancelled first, because its
    /// confirmation is older than one of the tests' short sampling intervals.
    pub fn effects(&self, step: &str) -> Vec<String> {
        let without = ["due", "begun", "withheld", "cancelled", "reprieved"];
        self.results(step).into_iter().filter(|result| !without.contains(&result.as_str())).collect()
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the audit log:\n{}", fs::read_to_string(self.audit()).unwrap_or_default());
        }
    }
}

/// Returns the complete lines of an audit log at any path.
///
/// # Panics
/// If a line is not JSON.
pub fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
}
