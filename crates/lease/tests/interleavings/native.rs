//! A native client: a ticket, one slot per requested GPU, and a lease.

use bailiff_lease::Op;

use crate::connection::Connection;
use crate::model::{ClientId, Model, SHORT, TTL, call};

enum Step {
    Requesting,
    Waiting,
    Using(u32),
    /// The server has lost the client's lease.
    Reclaiming(u32),
    Releasing,
    ReleasingAgain,
}

pub(crate) struct Native {
    pub(crate) client_id: ClientId,
    pub(crate) lease: String,
    link: Connection,
    slots: Vec<Connection>,
    step: Step,
    want: u32,
    /// The only ids that the client accepts, or `None` if it accepts any id.
    among: Option<Vec<String>>,
    /// Arguments of the client's request.
    arguments: Vec<String>,
    gpus: Vec<String>,
    token: String,
    /// GPUs that another client also had at the last renewal.
    shared: Vec<String>,
    /// Whether the client holds a lease but has not renewed it since the server was rolled back.
    silent: bool,
}

impl Native {
    pub(crate) fn new(client_id: ClientId, model: &mut Model) -> Self {
        let link = model.link();
        let mut client = Self {
            client_id,
            lease: String::new(),
            link,
            slots: Vec::new(),
            step: Step::Requesting,
            want: 0,
            among: None,
            arguments: Vec::new(),
            gpus: Vec::new(),
            token: String::new(),
            shared: Vec::new(),
            silent: false,
        };
        client.request(model);
        client
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1) || self.slots.iter_mut().any(|slot| slot.has(2))
    }

    /// Returns whether the client is waiting. A waiting client sometimes renews on another connection.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.step, Step::Waiting)
    }

    pub(crate) fn step(&mut self, model: &mut Model) {
        let ready = self.slots.iter_mut().position(|slot| slot.has(2));
        if let Some(place) = ready
            && (!self.link.has(1) || model.rng.bool())
        {
            return self.rearm_slot(place, model);
        }
        let reply = self.link.take();
        match self.step {
            Step::Requesting => {
                let answer = reply.texts();
                match answer[0].as_str() {
                    "held" => self.holds(&answer[1], &answer[2], model),
                    "waiting" => self.wait(model),
                    other => panic!("{other}: {}", model.trace()),
                }
            }
            Step::Waiting => {
                model.count("our waits");
                let wakeup = reply.texts().remove(1);
                let (token, gpus) = wakeup.split_once(':').expect("a token and GPUs");
                self.holds(token, gpus, model);
            }
            Step::Using(left) | Step::Reclaiming(left) => self.renewed(&reply.texts(), left, model),
            Step::Releasing if model.rng.u32(0..10) < 3 => {
                self.release();
                self.step = Step::ReleasingAgain;
            }
            Step::Releasing | Step::ReleasingAgain => self.request(model),
        }
    }

    fn renewed(&mut self, answer: &[String], left: u32, model: &mut Model) {
        if self.silent && answer[0] == "unknown" && matches!(self.step, Step::Using(_)) {
            model.count("reclaimed");
            model.reclaimed.insert(self.lease.clone());
            self.reclaim();
            self.step = Step::Reclaiming(left);
            return;
        }
        let expected = answer[0] == "held" || answer[0] == "conflict" && model.misuse > 0.0;
        assert!(expected, "{answer:?}{}", model.trace());
        self.silent = false;
        let conflicts: Vec<&str> =
            if answer[0] == "conflict" { answer[2].split(',').collect() } else { Vec::new() };
        let missing = self.shared.iter().find(|gpu| !conflicts.contains(&gpu.as_str()));
        assert_eq!(missing, None, "a shared GPU was not reported: {answer:?}{}", model.trace());
        if !conflicts.is_empty() {
            model.count("reported conflicts");
        }
        for gpu in conflicts {
            model.remove_holder(self.client_id, gpu);
        }
        self.go_on(left, model);
    }

    /// Blocks a slot again after it has popped a GPU, for this client or for another.
    fn rearm_slot(&mut self, place: usize, model: &mut Model) {
        let slot = &mut self.slots[place];
        slot.take();
        if slot.take().text() == "SERVED" {
            model.count("served by the fast path");
        }
        if matches!(self.step, Step::Waiting) {
            model.count("slots sent again");
            arm(slot, model);
        } else {
            self.slots.remove(place);
        }
    }

    fn request(&mut self, model: &mut Model) {
        self.slots.clear();
        model.leases += 1;
        self.lease = format!("{:032x}", model.leases);
        self.want = model.rng.u32(1..=model.most);
        let priority = u32::from(model.rng.u32(0..4) == 0).to_string();
        let ttl = if model.rng.u32(0..5) == 0 { SHORT.to_string() } else { TTL.to_owned() };
        self.among = (model.rng.u32(0..6) == 0).then(|| model.some(self.want));
        self.arguments = [self.lease.clone(), self.want.to_string(), priority, ttl, "0".to_owned()].to_vec();
        let pid = self.client_id.number.to_string();
        let about = ["pid", &pid, "legacy_pid", "0", "offset", "3600", "user", "alice", "mode", "run"];
        self.arguments.extend(about.map(str::to_owned));
        if let Some(among) = &self.among {
            self.arguments.extend(["among".to_owned(), among.join(",")]);
        }
        self.send_request();
    }

    fn send_request(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.link.send(&[&call(Op::Enqueue, &arguments)]);
        self.step = Step::Requesting;
    }

    fn wait(&mut self, model: &mut Model) {
        // A client that accepts only some ids has no slots. It is served when it renews.
        for _ in 0..if self.among.is_some() { 0 } else { self.want } {
            let mut slot = model.link();
            arm(&mut slot, model);
            self.slots.push(slot);
        }
        self.link.send(&[&["BLPOP", &format!("GPU_V2:WAKE:{}", self.lease), "0"]]);
        self.step = Step::Waiting;
    }

    fn holds(&mut self, token: &str, gpus: &str, model: &mut Model) {
        token.clone_into(&mut self.token);
        self.gpus = gpus.split(',').map(str::to_owned).collect();
        assert_eq!(
            self.gpus.len(),
            self.want as usize,
            "a lease has all of its GPUs or none: {}",
            model.trace()
        );
        for gpu in &self.gpus {
            let accepted = self.among.as_ref().is_none_or(|among| among.contains(gpu));
            assert!(accepted, "{gpu} is not one of {:?}: {}", self.among, model.trace());
            model.add_holder(self.client_id, gpu);
        }
        model.count("our grants");
        // Most clients close their slots at once, some leave them open.
        if model.rng.u32(0..10) < 7 {
            self.slots.clear();
        }
        let left = model.rng.u32(0..4);
        self.go_on(left, model);
    }

    fn go_on(&mut self, left: u32, model: &mut Model) {
        if left > 0 {
            self.shared = self.gpus.iter().filter(|gpu| model.shared(gpu)).cloned().collect();
            self.touch();
            self.step = Step::Using(left - 1);
        } else {
            for gpu in std::mem::take(&mut self.gpus) {
                model.remove_holder(self.client_id, &gpu);
            }
            self.release();
            self.step = Step::Releasing;
        }
    }

    fn touch(&mut self) {
        self.link.send(&[&call(Op::Touch, &[&self.lease, TTL, &self.token])]);
    }

    fn reclaim(&mut self) {
        let (gpus, pid) = (self.gpus.join(","), self.client_id.number.to_string());
        let about = ["pid", &pid, "legacy_pid", "0", "offset", "3600", "user", "alice", "mode", "run"];
        let mut arguments = vec![self.lease.as_str(), &self.token, &gpus, TTL];
        arguments.extend(about);
        self.link.send(&[&call(Op::Reclaim, &arguments)]);
    }

    /// Simulates that all connections broke: requests are repeated, and held leases are renewed.
    pub(crate) fn reconnect(&mut self, model: &mut Model) {
        self.link = model.link();
        self.slots.clear();
        match self.step {
            Step::Requesting | Step::Waiting => self.send_request(),
            Step::Using(left) | Step::Reclaiming(left) => {
                self.silent = true;
                self.touch();
                self.step = Step::Using(left);
            }
            Step::Releasing | Step::ReleasingAgain => self.release(),
        }
    }

    /// Returns whether the server may list the client's GPUs as idle, because the client has not renewed since the
    /// rollback.
    pub(crate) fn silent(&self) -> bool {
        self.silent
    }

    fn release(&mut self) {
        let pid = self.client_id.number.to_string();
        self.link.send(&[&call(Op::Release, &[&self.lease, "", "3600", &pid])]);
    }
}

/// Sends both commands in a single write, so that Redis serves waiting tickets even if the client exits. Some
/// clients pass the `run_id`, as real clients do; others leave it to the script.
pub(crate) fn arm(slot: &mut Connection, model: &mut Model) {
    let run = model.run.clone();
    let known = [run.as_str()];
    let arguments: &[&str] = if model.rng.u32(0..4) == 0 { &[] } else { &known };
    slot.send(&[&["BRPOPLPUSH", "GPU_IDLE", "GPU_V2:POT", "0"], &call(Op::Assign, arguments)]);
}
