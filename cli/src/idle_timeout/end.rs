//! Ends an idle command: a signal, a grace period, and SIGKILL.

#![expect(clippy::disallowed_methods, reason = "a grace period needs a clock")]

use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{ProcessKey, State};
use rustix::process::{Signal, kill_process};

use super::flags::Kill;
use super::log::Level;
use super::session::Session;
use crate::command::Event;
use crate::process_tree;

/// The interval between two SIGKILLs of a process tree that keeps growing.
const RETRY: Duration = Duration::from_millis(50);
/// The maximum wait for killed processes: a process in state D does not handle the signal.
const KILL_WAIT: Duration = Duration::from_secs(10);

impl Session<'_> {
    /// Signals the command, waits for the grace period, and kills it.
    pub(super) fn end(&mut self, events: &Receiver<Event>) {
        if let Some(signal) = self.settings.signal {
            self.send_signal(signal);
            self.await_end(events, self.settings.grace);
        }
        if self.status.is_none() {
            self.log.line(Level::Error, "process still alive, maybe hung, killing.");
        }
        self.kill(events);
    }

    fn send_signal(&mut self, signal: Signal) {
        if self.settings.signal_children {
            self.signal_children(signal);
        }
        let (number, child) = (signal.as_raw(), self.child.as_raw_nonzero());
        self.log.line(Level::Info, format!("Sending signal {number} to process {child}"));
        // The pid is not reused before this process has waited for the command.
        let _ = kill_process(self.child, signal);
    }

    /// Signals the descendants, the deepest layer first.
    fn signal_children(&self, signal: Signal) {
        let log = |text: String| self.log.line(Level::Info, format!("signal children: {text}"));
        let layers = self.layers();
        log("logging process tree".to_owned());
        for (layer, pid) in
            layers.iter().enumerate().flat_map(|(layer, keys)| keys.iter().map(move |key| (layer, key.pid)))
        {
            log(format!("layer {layer}: pid {pid}: '{}'", process_tree::command_line(pid)));
        }
        log("signalling started".to_owned());
        for (layer, keys) in layers.iter().enumerate().skip(1).rev() {
            for key in keys {
                // `gpu_idle_timeout.py` also lacks the space after the signal number.
                log(format!("send signal {}to pid {} in layer {layer}", signal.as_raw(), key.pid));
                process_tree::signal(*key, signal);
            }
        }
        log("signaling ended".to_owned());
    }

    /// Returns the layers of the process tree: the command, its children, their children, and so on. Orphaned
    /// processes are in the layer of the command's children.
    fn layers(&self) -> Vec<Vec<ProcessKey>> {
        let child = self.child.as_raw_nonzero().get();
        let descendants = self.process_tree.descendants().unwrap_or_default();
        let is_child = |stat: &Stat| i32::try_from(stat.key.pid) == Ok(child);
        let mut layers: Vec<Vec<ProcessKey>> = Vec::new();
        for (depth, stat) in &descendants {
            let layer = if *depth == 0 && !is_child(stat) { 1 } else { *depth };
            layers.resize_with(layers.len().max(layer + 1), Vec::new);
            layers[layer].push(stat.key);
        }
        layers
    }

    /// Waits until all processes that must end have exited, or the timeout has passed.
    fn await_end(&mut self, events: &Receiver<Event>, timeout: Duration) {
        let began = Instant::now();
        while !self.is_over() {
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            // The exit of a process that is not a child causes no event, so it is checked at intervals.
            match events.recv_timeout(left.min(RETRY)) {
                Ok(Event::Signal(signal)) => self.forward(signal),
                Ok(Event::ChildEnded | Event::Sampled(_) | Event::Waited) | Err(_) => {}
            }
            self.reap();
        }
    }

    fn is_over(&self) -> bool {
        let all_exited = || self.left().is_ok_and(|left| left.is_empty());
        self.status.is_some() && (self.settings.kill == Kill::Command || all_exited())
    }

    fn left(&self) -> io::Result<Vec<ProcessKey>> {
        let is_running = |stat: &Stat| !matches!(stat.state, State::Zombie | State::Dead);
        let descendants = self.process_tree.descendants()?.into_iter();
        Ok(descendants.filter(|(_, stat)| is_running(stat)).map(|(_, stat)| stat.key).collect())
    }

    /// Sends SIGKILL until no process is left, including processes started meanwhile.
    fn kill(&mut self, events: &Receiver<Event>) {
        let began = Instant::now();
        while !self.is_over() && began.elapsed() < KILL_WAIT {
            if self.status.is_none() {
                let _ = kill_process(self.child, Signal::KILL);
            }
            if self.settings.kill == Kill::Tree {
                self.process_tree.signal(Signal::KILL);
            }
            self.await_end(events, RETRY);
        }
        if !self.is_over() {
            let left: Vec<String> =
                self.left().unwrap_or_default().iter().map(|key| key.pid.to_string()).collect();
            let left = left.join(", ");
            self.log.remark(
                Level::Warning,
                format!("killed, but still running: {left}; these processes hang in the kernel"),
            );
        }
    }
}
