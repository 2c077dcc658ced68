//! A client of ours that plays by GPU.py's rules: it waits as ours do, has to say that it knows of its GPU, and gives that
//! back by its number.

use bailiff_lease::Op;

use crate::ours::arm;
use crate::wire::Link;
use crate::world::{TTL, Who, World, call};

enum Doing {
    Asking,
    Waiting,
    Knowing(String),
    Using(u32),
    Giving,
}

pub(crate) struct Compat {
    pub(crate) who: Who,
    pub(crate) lease: String,
    link: Link,
    slot: Option<Link>,
    doing: Doing,
    gpu: String,
    misused: bool,
}

impl Compat {
    pub(crate) fn new(who: Who, world: &mut World) -> Self {
        let link = world.link();
        let (lease, gpu) = (String::new(), String::new());
        let mut client = Self { who, lease, link, slot: None, doing: Doing::Asking, gpu, misused: false };
        client.request(world);
        client
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1) || self.slot.as_mut().is_some_and(|slot| slot.has(2))
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self.doing, Doing::Waiting)
    }

    /// Its ticket has ended while it waited: it asks again.
    pub(crate) fn ended(&mut self, world: &mut World) {
        self.link = world.link();
        self.request(world);
    }

    pub(crate) fn step(&mut self, world: &mut World) {
        if !self.link.has(1) {
            return self.fill(world);
        }
        let reply = self.link.take();
        match std::mem::replace(&mut self.doing, Doing::Asking) {
            Doing::Asking => {
                let answer = reply.texts();
                match answer[0].as_str() {
                    "held" => self.know(&answer[1], &answer[2]),
                    "waiting" => self.wait(world),
                    other => panic!("{other}: {}", world.story()),
                }
            }
            Doing::Waiting => {
                let told = reply.texts().remove(1);
                let (token, gpu) = told.split_once(':').expect("a token and a GPU");
                self.know(token, gpu);
            }
            Doing::Knowing(gpu) => {
                let answer = reply.texts();
                if answer[0] == "held" {
                    world.takes(self.who, &gpu);
                    world.count("grants by GPU.py's rules");
                    self.gpu = gpu;
                    let left = world.dice.u32(0..4);
                    self.go_on(left, world);
                } else {
                    assert!(world.misuse > 0.0, "{answer:?}{}", world.story());
                    world.count("released before it was known");
                    self.request(world);
                }
            }
            Doing::Using(left) => self.go_on(left, world),
            Doing::Giving => {
                let answer = reply.texts();
                let well = answer[0] == "released" || world.misuse > 0.0;
                assert!(well, "{answer:?}{}", world.story());
                self.given(world);
            }
        }
    }

    /// Its slot was served, for whomever.
    fn fill(&mut self, world: &mut World) {
        let Some(mut slot) = self.slot.take() else { return };
        slot.take();
        slot.take();
        if matches!(self.doing, Doing::Waiting) {
            arm(&mut slot, world);
            self.slot = Some(slot);
        }
    }

    fn request(&mut self, world: &mut World) {
        self.slot = None;
        world.leases += 1;
        self.lease = format!("{:032x}", world.leases);
        let pid = self.who.number.to_string();
        let about = ["pid", &pid, "legacy_pid", &pid, "offset", "3600", "mode", "compat"];
        let mut arguments = vec![self.lease.as_str(), "1", "0", TTL, "0"];
        arguments.extend(about);
        self.link.send(&[&call(Op::Enqueue, &arguments)]);
        self.doing = Doing::Asking;
    }

    fn wait(&mut self, world: &mut World) {
        let mut slot = world.link();
        arm(&mut slot, world);
        self.slot = Some(slot);
        self.link.send(&[&["BLPOP", &format!("GPU_V2:WAKE:{}", self.lease), "0"]]);
        self.doing = Doing::Waiting;
    }

    fn know(&mut self, token: &str, gpu: &str) {
        self.link.send(&[&call(Op::Touch, &[&self.lease, TTL, token])]);
        self.doing = Doing::Knowing(gpu.to_owned());
    }

    fn go_on(&mut self, left: u32, world: &mut World) {
        if left > 0 {
            self.link.send(&[&["PING"]]);
            self.doing = Doing::Using(left - 1);
        } else {
            let gpu = std::mem::take(&mut self.gpu);
            world.leaves(self.who, &gpu);
            self.give(&gpu, world);
        }
    }

    fn give(&mut self, gpu: &str, world: &mut World) {
        // Whoever had recorded himself is forgotten with it.
        world.recorded.remove(gpu);
        let pid = self.who.number.to_string();
        self.link.send(&[&call(Op::Give, &[gpu, "3600", &pid])]);
        self.doing = Doing::Giving;
    }

    /// Asks for the next one; or gives once more, its own or somebody's.
    fn given(&mut self, world: &mut World) {
        if !self.misused && world.dice.f64() < world.misuse {
            self.misused = true;
            world.count("misuses");
            let any = world.dice.choice(&world.ids).cloned().expect("there are GPUs");
            return self.give(&any, world);
        }
        self.misused = false;
        self.request(world);
    }
}
