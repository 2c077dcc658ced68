//! Records every signal on this machine with the kernel's tracepoint `signal:signal_generate`: sender, receiver,
//! number and time on `CLOCK_BOOTTIME`. This includes KILL and STOP, which a process cannot log itself.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::run;

/// A separate tracer instance, so that other users of the tracer are not disturbed.
pub(crate) struct Trace {
    instance: PathBuf,
    pipe: Option<File>,
    text: Vec<u8>,
}

/// A signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) at: Duration,
    /// Thread id of the sender.
    pub(crate) sender: u32,
    pub(crate) number: i32,
    /// 0 for signals sent by programs, 128 for signals sent by the kernel.
    pub(crate) code: i32,
    pub(crate) pid: u32,
    /// Whether the receiver is the enforcer's watchdog.
    pub(crate) to_watchdog: bool,
}

impl Trace {
    /// Starts tracing. The mount at `directory` is visible only in this mount namespace.
    pub(crate) fn open(directory: &Path) -> Self {
        fs::create_dir(directory).expect("a directory");
        run("mount", &["-t", "tracefs", "tracefs", &directory.display().to_string()]);
        let instance = directory.join(format!("instances/bailiff-trial-{}", std::process::id()));
        fs::create_dir(&instance).expect("an instance of the tracer");
        let put = |name: &str, text: &str| fs::write(instance.join(name), text).expect(name);
        put("trace_clock", "boot");
        let filter = [1, 2, 3, 9, 10, 12, 15, 18, 19].map(|number| format!("sig=={number}")).join("||");
        put("events/signal/signal_generate/filter", &filter);
        put("events/signal/signal_generate/enable", "1");
        let mut options = OpenOptions::new();
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
        let pipe = options.read(true).custom_flags(nonblocking).open(instance.join("trace_pipe"));
        Self { instance, pipe: Some(pipe.expect("trace_pipe")), text: Vec::new() }
    }

    /// Returns the signals since the last call.
    pub(crate) fn read(&mut self) -> Vec<Signal> {
        let mut part = [0; 1 << 14];
        while let Some(count @ 1..) = self.pipe.as_mut().and_then(|pipe| pipe.read(&mut part).ok()) {
            self.text.extend_from_slice(&part[..count]);
        }
        let whole = self.text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.text.split_off(whole);
        let lines = std::mem::replace(&mut self.text, rest);
        String::from_utf8_lossy(&lines).lines().filter_map(parse).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.instance.join("events/signal/signal_generate/enable"), "0");
        self.pipe = None;
        let _ = fs::remove_dir(&self.instance);
        let mount = self.instance.ancestors().nth(2).unwrap_or(&self.instance);
        let _ = Command::new("umount").arg(mount).status();
    }
}

/// `  worker-4711  [001] d..1.  123.456789: signal_generate: sig=15 errno=0 code=0 comm=target pid=99 grp=1 res=0`
fn parse(line: &str) -> Option<Signal> {
    let (head, fields) = line.split_once(": signal_generate: ")?;
    let (task, _) = head.rsplit_once(" [")?;
    let (seconds, micros) = head.rsplit(' ').next()?.split_once('.')?;
    let micros: u64 = micros.parse().ok()?;
    // A name can contain any text, so the numbers after it are parsed from the end.
    let last = |name: &str| fields.rsplit(' ').find_map(|field| field.strip_prefix(name));
    Some(Signal {
        at: Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros),
        sender: task.rsplit('-').next()?.trim().parse().ok()?,
        number: fields.split(' ').next()?.strip_prefix("sig=")?.parse().ok()?,
        to_watchdog: [" comm=exe ", " comm=hand ", " comm=bailiff-enforce "]
            .iter()
            .any(|it| fields.contains(it)),
        code: fields.split(' ').find_map(|field| field.strip_prefix("code="))?.parse().ok()?,
        pid: last("pid=")?.parse().ok()?,
    })
}
