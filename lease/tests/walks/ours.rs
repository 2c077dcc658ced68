//! A client of ours: a ticket, as many slots as GPUs that it wants, a lease.

use bailiff_lease::Op;

use crate::wire::Link;
use crate::world::{SHORT, TTL, Who, World, call};

enum Doing {
    Asking,
    Waiting,
    Using(u32),
    /// The server has forgotten its lease.
    AskingBack(u32),
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
    /// What it asked for, as it was sent.
    asked: Vec<String>,
    gpus: Vec<String>,
    token: String,
    /// Those that somebody else had too when it last renewed.
    shared: Vec<String>,
    /// It holds, and has not said so to the server that came back.
    silent: bool,
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
            asked: Vec::new(),
            gpus: Vec::new(),
            token: String::new(),
            shared: Vec::new(),
            silent: false,
        };
        client.request(world);
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
                    "held" => self.holds(&answer[1], &answer[2], world),
                    "waiting" => self.wait(world),
                    other => panic!("{other}: {}", world.story()),
                }
            }
            Doing::Waiting => {
                world.count("our waits");
                let told = reply.texts().remove(1);
                let (token, gpus) = told.split_once(':').expect("a token and GPUs");
                self.holds(token, gpus, world);
            }
            Doing::Using(left) | Doing::AskingBack(left) => self.renewed(&reply.texts(), left, world),
            Doing::Releasing if world.dice.u32(0..10) < 3 => {
                self.release();
                self.doing = Doing::ReleasingAgain;
            }
            Doing::Releasing | Doing::ReleasingAgain => self.request(world),
        }
    }

    fn renewed(&mut self, answer: &[String], left: u32, world: &mut World) {
        if self.silent && answer[0] == "unknown" && matches!(self.doing, Doing::Using(_)) {
            world.count("asked back");
            world.asked_back.insert(self.lease.clone());
            self.ask_back();
            self.doing = Doing::AskingBack(left);
            return;
        }
        let well = answer[0] == "held" || answer[0] == "conflict" && world.misuse > 0.0;
        assert!(well, "{answer:?}{}", world.story());
        self.silent = false;
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

    fn request(&mut self, world: &mut World) {
        self.slots.clear();
        world.leases += 1;
        self.lease = format!("{:032x}", world.leases);
        self.want = world.dice.u32(1..=world.most);
        let priority = u32::from(world.dice.u32(0..4) == 0).to_string();
        let ttl = if world.dice.u32(0..5) == 0 { SHORT.to_string() } else { TTL.to_owned() };
        self.among = (world.dice.u32(0..6) == 0).then(|| world.some(self.want));
        self.asked = [self.lease.clone(), self.want.to_string(), priority, ttl, "0".to_owned()].to_vec();
        let pid = self.who.number.to_string();
        let about = ["pid", &pid, "legacy_pid", "0", "offset", "3600", "user", "alice", "mode", "run"];
        self.asked.extend(about.map(str::to_owned));
        if let Some(among) = &self.among {
            self.asked.extend(["among".to_owned(), among.join(",")]);
        }
        self.ask_as_before();
    }

    fn ask_as_before(&mut self) {
        let arguments: Vec<&str> = self.asked.iter().map(String::as_str).collect();
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

    fn holds(&mut self, token: &str, gpus: &str, world: &mut World) {
        token.clone_into(&mut self.token);
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
            self.touch();
            self.doing = Doing::Using(left - 1);
        } else {
            for gpu in std::mem::take(&mut self.gpus) {
                world.leaves(self.who, &gpu);
            }
            self.release();
            self.doing = Doing::Releasing;
        }
    }

    fn touch(&mut self) {
        self.link.send(&[&call(Op::Touch, &[&self.lease, TTL, &self.token])]);
    }

    fn ask_back(&mut self) {
        let (gpus, pid) = (self.gpus.join(","), self.who.number.to_string());
        let about = ["pid", &pid, "legacy_pid", "0", "offset", "3600", "user", "alice", "mode", "run"];
        let mut arguments = vec![self.lease.as_str(), &self.token, &gpus, TTL];
        arguments.extend(about);
        self.link.send(&[&call(Op::Reclaim, &arguments)]);
    }

    /// All connections broke: whatever was asked is asked again, and whoever holds says so.
    pub(crate) fn reconnect(&mut self, world: &mut World) {
        self.link = world.link();
        self.slots.clear();
        match self.doing {
            Doing::Asking | Doing::Waiting => self.ask_as_before(),
            Doing::Using(left) | Doing::AskingBack(left) => {
                self.silent = true;
                self.touch();
                self.doing = Doing::Using(left);
            }
            Doing::Releasing | Doing::ReleasingAgain => self.release(),
        }
    }

    /// Its GPUs are idle by what the server knows, for all that it has said.
    pub(crate) fn silent(&self) -> bool {
        self.silent
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
