//! A client that sends the commands of GPU.py one by one.

use crate::connection::Connection;
use crate::model::{ClientId, Model, PREFIX};

enum Step {
    Popping,
    LoggingGrant,
    WritingPid,
    WritingTime,
    Using(u32),
    ReadingIdle,
    ReadingManaged(Vec<String>),
    LoggingRelease,
    DeletingRecord,
    Pushing,
}

pub(crate) struct Legacy {
    pub(crate) client_id: ClientId,
    link: Connection,
    step: Step,
    gpu: String,
    /// The GPU that the client releases, which may belong to another client.
    target: String,
    misused: bool,
}

impl Legacy {
    pub(crate) fn new(client_id: ClientId, model: &Model) -> Self {
        let mut link = model.link();
        link.send(&[&["BRPOP", "GPU_IDLE", "0"]]);
        let (gpu, target) = (String::new(), String::new());
        Self { client_id, link, step: Step::Popping, gpu, target, misused: false }
    }

    pub(crate) fn runnable(&mut self) -> bool {
        self.link.has(1)
    }

    /// Returns the pid in the client's records.
    pub(crate) fn pid(&self) -> String {
        self.client_id.number.to_string()
    }

    pub(crate) fn step(&mut self, model: &mut Model) {
        let reply = self.link.take();
        let (pid, gpu) = (self.pid(), self.gpu.clone());
        let record = format!("{PREFIX}_GPU{gpu}");
        self.step = match std::mem::replace(&mut self.step, Step::Popping) {
            Step::Popping => {
                self.gpu = reply.texts().remove(1);
                model.add_holder(self.client_id, &self.gpu);
                model.count("legacy grants");
                let line = format!("2026-11-21 06:29:57: GPU {} acquired by PID {pid}.", self.gpu);
                self.link.send(&[&["LPUSH", "GPU_EVENTS", &line]]);
                Step::LoggingGrant
            }
            Step::LoggingGrant => {
                self.link.send(&[&["HSET", &record, "PID", &pid]]);
                model.recorded.insert(gpu, self.client_id);
                Step::WritingPid
            }
            Step::WritingPid => {
                self.link.send(&[&["HSET", &record, "TIME", "2026-11-21 06:29:57"]]);
                Step::WritingTime
            }
            Step::WritingTime => self.go_on(model.rng.u32(0..4)),
            Step::Using(left) => self.go_on(left),
            Step::ReadingIdle => {
                self.link.send(&[&["LRANGE", "GPU_MANAGED", "0", "-1"]]);
                Step::ReadingManaged(reply.texts())
            }
            Step::ReadingManaged(idle) => {
                if idle.contains(&self.target) || !reply.texts().contains(&self.target) {
                    // Another client has released the GPU. GPU.py reports that and stops using the
                    // GPU.
                    model.remove_holder(self.client_id, &self.target);
                    self.released(model)
                } else {
                    let line = format!("2026-11-21 06:29:57: GPU {} released by PID {pid}.", self.target);
                    self.link.send(&[&["LPUSH", "GPU_EVENTS", &line]]);
                    Step::LoggingRelease
                }
            }
            Step::LoggingRelease => {
                self.link.send(&[&["DEL", &format!("{PREFIX}_GPU{}", self.target)]]);
                model.recorded.remove(&self.target);
                Step::DeletingRecord
            }
            Step::DeletingRecord => {
                model.remove_holder(self.client_id, &self.target);
                self.link.send(&[&["LPUSH", "GPU_IDLE", &self.target]]);
                Step::Pushing
            }
            Step::Pushing => self.released(model),
        };
    }

    fn go_on(&mut self, left: u32) -> Step {
        if left > 0 {
            self.link.send(&[&["PING"]]);
            Step::Using(left - 1)
        } else {
            self.release(self.gpu.clone())
        }
    }

    fn release(&mut self, target: String) -> Step {
        self.target = target;
        self.link.send(&[&["LRANGE", "GPU_IDLE", "0", "-1"]]);
        Step::ReadingIdle
    }

    /// Takes the next GPU, or releases once more: its own GPU or another client's GPU.
    fn released(&mut self, model: &mut Model) -> Step {
        if !self.misused && model.rng.f64() < model.misuse {
            self.misused = true;
            model.count("misuses");
            let any = model.rng.choice(&model.ids).cloned().expect("there are GPUs");
            let target = if model.rng.bool() { any } else { self.gpu.clone() };
            return self.release(target);
        }
        self.misused = false;
        self.link.send(&[&["BRPOP", "GPU_IDLE", "0"]]);
        Step::Popping
    }
}
