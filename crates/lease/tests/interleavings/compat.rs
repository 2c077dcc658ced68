//! A client of ours that follows GPU.py's rules. It waits like our other clients, must acknowledge its GPU, and
//! releases the GPU by its number.

use bailiff_lease::Op;

use crate::connection::Connection;
use crate::model::{ClientId, Model, TTL, call};
use crate::native::arm;

enum Step {
    Requesting,
    Waiting,
    Acknowledging(String),
    Using(u32),
    Releasing,
}

pub(crate) struct Compat {
    pub(crate) client_id: ClientId,
    pub(crate) lease: String,
    link: Connection,
    slot: Option<Connection>,
    step: Step,
    gpu: String,
    misused: bool,
}

impl Compat {
    pub(crate) fn new(client_id: ClientId, model: &mut Model) -> Self {
        let link = model.link();
        let (lease, gpu) = (String::new(), String::new());
        let mut client =
            Self { client_id, lease, link, slot: None, step: Step::Requesting, gpu, misused: false };
        client.request(model);
        client
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1) || self.slot.as_mut().is_some_and(|slot| slot.has(2))
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self.step, Step::Waiting)
    }

    /// The ticket has ended while the client was waiting, so the client requests again.
    pub(crate) fn ended(&mut self, model: &mut Model) {
        self.link = model.link();
        self.request(model);
    }

    pub(crate) fn step(&mut self, model: &mut Model) {
        if !self.link.has(1) {
            return self.rearm_slot(model);
        }
        let reply = self.link.take();
        match std::mem::replace(&mut self.step, Step::Requesting) {
            Step::Requesting => {
                let answer = reply.texts();
                match answer[0].as_str() {
                    "held" => self.acknowledge(&answer[1], &answer[2]),
                    "waiting" => self.wait(model),
                    other => panic!("{other}: {}", model.trace()),
                }
            }
            Step::Waiting => {
                let wakeup = reply.texts().remove(1);
                let (token, gpu) = wakeup.split_once(':').expect("a token and a GPU");
                self.acknowledge(token, gpu);
            }
            Step::Acknowledging(gpu) => {
                let answer = reply.texts();
                if answer[0] == "held" {
                    model.add_holder(self.client_id, &gpu);
                    model.count("grants by GPU.py's rules");
                    self.gpu = gpu;
                    let left = model.rng.u32(0..4);
                    self.go_on(left, model);
                } else {
                    assert!(model.misuse > 0.0, "{answer:?}{}", model.trace());
                    model.count("released before the acknowledgement");
                    self.request(model);
                }
            }
            Step::Using(left) => self.go_on(left, model),
            Step::Releasing => {
                let answer = reply.texts();
                let expected = answer[0] == "released" || model.misuse > 0.0;
                assert!(expected, "{answer:?}{}", model.trace());
                self.released(model);
            }
        }
    }

    /// Blocks the slot again after it has popped a GPU, for this client or for another.
    fn rearm_slot(&mut self, model: &mut Model) {
        let Some(mut slot) = self.slot.take() else { return };
        slot.take();
        slot.take();
        if matches!(self.step, Step::Waiting) {
            arm(&mut slot, model);
            self.slot = Some(slot);
        }
    }

    fn request(&mut self, model: &mut Model) {
        self.slot = None;
        model.leases += 1;
        self.lease = format!("{:032x}", model.leases);
        let pid = self.client_id.number.to_string();
        let about = ["pid", &pid, "legacy_pid", &pid, "offset", "3600", "mode", "compat"];
        let mut arguments = vec![self.lease.as_str(), "1", "0", TTL, "0"];
        arguments.extend(about);
        self.link.send(&[&call(Op::Enqueue, &arguments)]);
        self.step = Step::Requesting;
    }

    fn wait(&mut self, model: &mut Model) {
        let mut slot = model.link();
        arm(&mut slot, model);
        self.slot = Some(slot);
        self.link.send(&[&["BLPOP", &format!("GPU_V2:WAKE:{}", self.lease), "0"]]);
        self.step = Step::Waiting;
    }

    fn acknowledge(&mut self, token: &str, gpu: &str) {
        self.link.send(&[&call(Op::Touch, &[&self.lease, TTL, token])]);
        self.step = Step::Acknowledging(gpu.to_owned());
    }

    fn go_on(&mut self, left: u32, model: &mut Model) {
        if left > 0 {
            self.link.send(&[&["PING"]]);
            self.step = Step::Using(left - 1);
        } else {
            let gpu = std::mem::take(&mut self.gpu);
            model.remove_holder(self.client_id, &gpu);
            self.release(&gpu, model);
        }
    }

    fn release(&mut self, gpu: &str, model: &mut Model) {
        // The release also deletes the record of another client.
        model.recorded.remove(gpu);
        let pid = self.client_id.number.to_string();
        self.link.send(&[&call(Op::Give, &[gpu, "3600", &pid])]);
        self.step = Step::Releasing;
    }

    /// Requests the next lease, or releases once more: its own GPU or another client's GPU.
    fn released(&mut self, model: &mut Model) {
        if !self.misused && model.rng.f64() < model.misuse {
            self.misused = true;
            model.count("misuses");
            let any = model.rng.choice(&model.ids).cloned().expect("there are GPUs");
            return self.release(&any, model);
        }
        self.misused = false;
        self.request(model);
    }
}
