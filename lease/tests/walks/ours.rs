//! A client of ours: a ticket, as many slots as GPUs that it wants, a lease.

use bailiff_lease::Op;

use crate::wire::Link;
use crate::world::{SHORT, TTL, Who, World, call};

enum Doing {
    Asking,
    Waiting,
    Using(u32),
    Releasing,
    ReleasingAgain,
}

pub(crate) struct Ours {
    pub(crate) who: Who,
    pub(crate) lease: String,
    link: Link,
    slots: Vec<Link>,
    doing: Doing,
    want: u32,
    /// Only of these, where any will not do.
    among: Option<Vec<String>>,
    gpus: Vec<String>,
    /// Those that somebody else had too when it last renewed.
    shared: Vec<String>,
}

impl Ours {
    pub(crate) fn new(who: Who, world: &mut World) -> Self {
        let link = world.link();
        let mut client = Self {
            who,
            lease: String::new(),
            link,
            slots: Vec::new(),
            doing: Doing::Asking,
            want: 0,
            among: None,
            gpus: Vec::new(),
            shared: Vec::new(),
        };
        client.ask(world);
        client
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1) || self.slots.iter_mut().any(|slot| slot.has(2))
    }

    /// Whoever waits says so now and then, on a connection that is not blocked.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.doing, Doing::Waiting)
    }

    pub(crate) fn step(&mut self, world: &mut World) {
        let ready = self.slots.iter_mut().position(|slot| slot.has(2));
        if let Some(place) = ready
            && (!self.link.has(1) || world.dice.bool())
        {
            return self.fill(place, world);
        }
        let reply = self.link.take();
        match self.doing {
            Doing::Asking => {
                let answer = reply.texts();
                match answer[0].as_str() {
                    "held" => self.holds(&answer[2], world),
                    "waiting" => self.wait(world),
                    other => panic!("{other}: {}", world.story()),
                }
            }
            Doing::Waiting => {
                world.count("our waits");
                let told = reply.texts().remove(1);
                let (_, gpus) = told.split_once(':').expect("a token and GPUs");
                self.holds(gpus, world);
            }
            Doing::Using(left) => {
                let answer = reply.texts();
                let told: Vec<&str> =
                    if answer[0] == "conflict" { answer[2].split(',').collect() } else { Vec::new() };
                let hidden = self.shared.iter().find(|gpu| !told.contains(&gpu.as_str()));
                assert_eq!(hidden, None, "shared, and not told: {answer:?}{}", world.story());
                if !told.is_empty() {
                    world.count("conflicts told");
                }
                for gpu in told {
                    world.leaves(self.who, gpu);
                }
                self.go_on(left, world);
            }
            Doing::Releasing if world.dice.u32(0..10) < 3 => {
                self.release();
                self.doing = Doing::ReleasingAgain;
            }
            Doing::Releasing | Doing::ReleasingAgain => self.ask(world),
        }
    }

    /// A slot was served, for whomever.
    fn fill(&mut self, place: usize, world: &mut World) {
        let slot = &mut self.slots[place];
        slot.take();
        if slot.take().text() == "SERVED" {
            world.count("served the short way");
        }
        if matches!(self.doing, Doing::Waiting) {
            world.count("slots sent again");
            arm(slot, world);
        } else {
            self.slots.remove(place);
        }
    }

    fn ask(&mut self, world: &mut World) {
        self.slots.clear();
        world.leases += 1;
        self.lease = format!("{:032x}", world.leases);
        self.want = world.dice.u32(1..=world.most);
        let (want, priority) = (self.want.to_string(), u32::from(world.dice.u32(0..4) == 0).to_string());
        let pid = self.who.number.to_string();
        let about = ["pid", &pid, "legacy_pid", "0", "offset", "3600", "user", "alice", "mode", "run"];
        let ttl = if world.dice.u32(0..5) == 0 { SHORT.to_string() } else { TTL.to_owned() };
        let mut arguments = vec![self.lease.as_str(), &want, &priority, &ttl, "0"];
        arguments.extend(about);
        self.among = (world.dice.u32(0..6) == 0).then(|| world.some(self.want));
        let among = self.among.as_ref().map(|ids| ids.join(","));
        if let Some(among) = &among {
            arguments.extend(["among", among]);
        }
        self.link.send(&[&call(Op::Enqueue, &arguments)]);
        self.doing = Doing::Asking;
    }

    fn wait(&mut self, world: &mut World) {
        // Whoever wants some in particular has no use for others: he is served when he says that he waits.
        for _ in 0..if self.among.is_some() { 0 } else { self.want } {
            let mut slot = world.link();
            arm(&mut slot, world);
            self.slots.push(slot);
        }
        self.link.send(&[&["BLPOP", &format!("GPU_V2:WAKE:{}", self.lease), "0"]]);
        self.doing = Doing::Waiting;
    }

    fn holds(&mut self, gpus: &str, world: &mut World) {
        self.gpus = gpus.split(',').map(str::to_owned).collect();
        assert_eq!(self.gpus.len(), self.want as usize, "all or none: {}", world.story());
        for gpu in &self.gpus {
            let wanted = self.among.as_ref().is_none_or(|among| among.contains(gpu));
            assert!(wanted, "{gpu} is none of {:?}: {}", self.among, world.story());
            world.takes(self.who, gpu);
        }
        world.count("our grants");
        // Most drop their slots at once; some leave them behind.
        if world.dice.u32(0..10) < 7 {
            self.slots.clear();
        }
        let left = world.dice.u32(0..4);
        self.go_on(left, world);
    }

    fn go_on(&mut self, left: u32, world: &mut World) {
        if left > 0 {
            self.shared = self.gpus.iter().filter(|gpu| world.shared(gpu)).cloned().collect();
            self.link.send(&[&call(Op::Touch, &[&self.lease, TTL, ""])]);
            self.doing = Doing::Using(left - 1);
        } else {
            for gpu in std::mem::take(&mut self.gpus) {
                world.leaves(self.who, &gpu);
            }
            self.release();
            self.doing = Doing::Releasing;
        }
    }

    fn release(&mut self) {
        let pid = self.who.number.to_string();
        self.link.send(&[&call(Op::Release, &[&self.lease, "", "3600", &pid])]);
    }
}

/// In one write, so that Redis serves those who wait even where the client is dead by then. Some say which server they
/// know, as the real ones do, and some leave it to the script to ask.
pub(crate) fn arm(slot: &mut Link, world: &mut World) {
    let run = world.run.clone();
    let known = [run.as_str()];
    let arguments: &[&str] = if world.dice.u32(0..4) == 0 { &[] } else { &known };
    slot.send(&[&["BRPOPLPUSH", "GPU_IDLE", "GPU_V2:POT", "0"], &call(Op::Assign, arguments)]);
}
