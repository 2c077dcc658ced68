//! The end of a command that was found idle: a signal, a grace, and the kill.

#![expect(clippy::disallowed_methods, reason = "a grace has a length")]

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

/// Between two kills of a tree that goes on growing.
const AGAIN: Duration = Duration::from_millis(50);
/// How long we wait for those that were killed: some do not take the signal (state D).
const PATIENCE: Duration = Duration::from_secs(10);

impl Session<'_> {
    /// Ends the command.
    pub(super) fn end(&mut self, events: &Receiver<Event>) {
        if let Some(signal) = self.settings.signal {
            self.warn(signal);
            self.await_end(events, self.settings.grace);
        }
        if self.status.is_none() {
            self.log.line(Level::Error, "process still alive, maybe hung, killing.");
        }
        self.kill(events);
    }

    fn warn(&mut self, signal: Signal) {
        if self.settings.signal_children {
            self.warn_children(signal);
        }
        let (number, child) = (signal.as_raw(), self.child.as_raw_nonzero());
        self.log.line(Level::Info, format!("Sending signal {number} to process {child}"));
        // Until it has been waited for, its pid is nobody else's.
        let _ = kill_process(self.child, signal);
    }

    /// The deepest first.
    fn warn_children(&self, signal: Signal) {
        let say = |text: String| self.log.line(Level::Info, format!("signal children: {text}"));
        let layers = self.layers();
        say("logging process tree".to_owned());
        for (layer, pid) in
            layers.iter().enumerate().flat_map(|(layer, keys)| keys.iter().map(move |key| (layer, key.pid)))
        {
            say(format!("layer {layer}: pid {pid}: '{}'", process_tree::command_line(pid)));
        }
        say("signalling started".to_owned());
        for (layer, keys) in layers.iter().enumerate().skip(1).rev() {
            for key in keys {
                // Without a space, as the original has it.
                say(format!("send signal {}to pid {} in layer {layer}", signal.as_raw(), key.pid));
                process_tree::signal(*key, signal);
            }
        }
        say("signaling ended".to_owned());
    }

    /// The command, its children, theirs. Whom others left behind is in the layer of the command's children.
    fn layers(&self) -> Vec<Vec<ProcessKey>> {
        let child = self.child.as_raw_nonzero().get();
        let below = self.process_tree.below().unwrap_or_default();
        let is_child = |stat: &Stat| i32::try_from(stat.key.pid) == Ok(child);
        let mut layers: Vec<Vec<ProcessKey>> = Vec::new();
        for (depth, stat) in &below {
            let layer = if *depth == 0 && !is_child(stat) { 1 } else { *depth };
            layers.resize_with(layers.len().max(layer + 1), Vec::new);
            layers[layer].push(stat.key);
        }
        layers
    }

    /// Waits until whoever is to be killed has ended, at most so long.
    fn await_end(&mut self, events: &Receiver<Event>, longest: Duration) {
        let began = Instant::now();
        while !self.is_over() {
            let left = longest.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            // Whoever is not our child ends without a word.
            match events.recv_timeout(left.min(AGAIN)) {
                Ok(Event::Signal(signal)) => self.pass_on(told),
                Ok(Event::ChildEnded | Event::Sampled(_) | Event::Waited) | Err(_) => {}
            }
            self.reap();
        }
    }

    fn is_over(&self) -> bool {
        let nobody_left = || self.left().is_ok_and(|left| left.is_empty());
        self.status.is_some() && (self.settings.kill == Kill::Command || nobody_left())
    }

    fn left(&self) -> io::Result<Vec<ProcessKey>> {
        let lives = |stat: &Stat| !matches!(stat.state, State::Zombie | State::Dead);
        let below = self.process_tree.below()?.into_iter();
        Ok(below.filter(|(_, stat)| lives(stat)).map(|(_, stat)| stat.key).collect())
    }

    /// SIGKILL, since they are likely hung, until nobody is left; whoever was born meanwhile, too.
    fn kill(&mut self, events: &Receiver<Event>) {
        let began = Instant::now();
        while !self.is_over() && began.elapsed() < PATIENCE {
            if self.status.is_none() {
                let _ = kill_process(self.child, Signal::KILL);
            }
            if self.settings.kill == Kill::Tree {
                self.process_tree.signal(Signal::KILL);
            }
            self.await_end(events, AGAIN);
        }
        if !self.is_over() {
            let left: Vec<String> =
                self.left().unwrap_or_default().iter().map(|key| key.pid.to_string()).collect();
            let left = left.join(", ");
            self.log
                .remark(Level::Warning, format!("killed, and not ended: {left}; they hang in the kernel"));
        }
    }
}
