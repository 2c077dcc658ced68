//! A client that sends what GPU.py sends, command by command.

use crate::wire::Link;
use crate::world::{PREFIX, Who, World};

enum Doing {
    Popping,
    Telling,
    Recording,
    Timing,
    Using(u32),
    Looking,
    Comparing(Vec<String>),
    Announcing,
    Erasing,
    Pushing,
}

pub(crate) struct Legacy {
    pub(crate) who: Who,
    link: Link,
    doing: Doing,
    gpu: String,
    /// What it releases, which may not be its own.
    target: String,
    misused: bool,
}

impl Legacy {
    pub(crate) fn new(who: Who, world: &World) -> Self {
        let mut link = world.link();
        link.send(&[&["BRPOP", "GPU_IDLE", "0"]]);
        let (gpu, target) = (String::new(), String::new());
        Self { who, link, doing: Doing::Popping, gpu, target, misused: false }
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1)
    }

    /// It is between its pop and its record, or between its commands of a release.
    pub(crate) fn pid(&self) -> String {
        self.who.number.to_string()
    }

    pub(crate) fn step(&mut self, world: &mut World) {
        let reply = self.link.take();
        let (pid, gpu) = (self.pid(), self.gpu.clone());
        let record = format!("{PREFIX}_GPU{gpu}");
        self.doing = match std::mem::replace(&mut self.doing, Doing::Popping) {
            Doing::Popping => {
                self.gpu = reply.texts().remove(1);
                world.takes(self.who, &self.gpu);
                world.count("legacy grants");
                let line = format!("2026-11-21 06:29:57: GPU {} acquired by PID {pid}.", self.gpu);
                self.link.send(&[&["LPUSH", "GPU_EVENTS", &line]]);
                Doing::Telling
            }
            Doing::Telling => {
                self.link.send(&[&["HSET", &record, "PID", &pid]]);
                world.recorded.insert(gpu, self.who);
                Doing::Recording
            }
            Doing::Recording => {
                self.link.send(&[&["HSET", &record, "TIME", "2026-11-21 06:29:57"]]);
                Doing::Timing
            }
            Doing::Timing => self.go_on(world.dice.u32(0..4)),
            Doing::Using(left) => self.go_on(left),
            Doing::Looking => {
                self.link.send(&[&["LRANGE", "GPU_MANAGED", "0", "-1"]]);
                Doing::Comparing(reply.texts())
            }
            Doing::Comparing(idle) => {
                if idle.contains(&self.target) || !reply.texts().contains(&self.target) {
                    // Somebody else released it: it is told so, and has it no more.
                    world.leaves(self.who, &self.target);
                    self.released(world)
                } else {
                    let line = format!("2026-11-21 06:29:57: GPU {} released by PID {pid}.", self.target);
                    self.link.send(&[&["LPUSH", "GPU_EVENTS", &line]]);
                    Doing::Announcing
                }
            }
            Doing::Announcing => {
                self.link.send(&[&["DEL", &format!("{PREFIX}_GPU{}", self.target)]]);
                world.recorded.remove(&self.target);
                Doing::Erasing
            }
            Doing::Erasing => {
                world.leaves(self.who, &self.target);
                self.link.send(&[&["LPUSH", "GPU_IDLE", &self.target]]);
                Doing::Pushing
            }
            Doing::Pushing => self.released(world),
        };
    }

    fn go_on(&mut self, left: u32) -> Doing {
        if left > 0 {
            self.link.send(&[&["PING"]]);
            Doing::Using(left - 1)
        } else {
            self.release(self.gpu.clone())
        }
    }

    fn release(&mut self, target: String) -> Doing {
        self.target = target;
        self.link.send(&[&["LRANGE", "GPU_IDLE", "0", "-1"]]);
        Doing::Looking
    }

    /// Takes the next one; or releases once more, its own or somebody's.
    fn released(&mut self, world: &mut World) -> Doing {
        if !self.misused && world.dice.f64() < world.misuse {
            self.misused = true;
            world.count("misuses");
            let any = world.dice.choice(&world.ids).cloned().expect("there are GPUs");
            let target = if world.dice.bool() { any } else { self.gpu.clone() };
            return self.release(target);
        }
        self.misused = false;
        self.link.send(&[&["BRPOP", "GPU_IDLE", "0"]]);
        Doing::Popping
    }
}
