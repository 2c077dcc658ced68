//! Leases: a separate thread queries the pool once per interval, and a sample uses only the answer to its own
//! query. The sample waits briefly for it; a late answer is discarded.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::audit::Audit;
use bailiff_lease::report::Node;
use bailiff_lease::{LeaseError, Pool};
use bailiff_proc::clock::{Deadline, running};
use bailiff_snapshot::{Fault, Leases, PidNamespace, Sample, Source, SourceState, millis};

use crate::SampleSource;

/// A sample waits for the answer at most this fraction of the deadline or of the interval, whichever is
/// shorter: a delayed sample costs more than missing leases.
const PATIENCE_PART: u32 = 10;

/// The lease pool and how to query it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// URL of Redis; may contain a password.
    pub redis: Secret,
    /// Prefix of all keys of the pool.
    pub prefix: String,
    /// Deadline of a Redis query.
    pub deadline: Duration,
    /// Sampling interval.
    pub interval: Duration,
    /// `/proc`, in which holders of leases are looked up.
    pub procfs: PathBuf,
    /// What is known of the PID namespace of `procfs`.
    pub namespace: PidNamespace,
}

/// A string that is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("…")
    }
}

/// A sample source with the lease pool added.
pub struct Leasing {
    source: Box<dyn SampleSource>,
    query: Sender<u64>,
    answers: Receiver<Answer>,
    patience: Duration,
    /// Fault of the previous interval; `logged` is the fault that was logged last.
    before: Option<Fault>,
    logged: Option<Fault>,
}

/// Result of the query of one interval.
struct Answer {
    seq: u64,
    outcome: Result<PoolReply, Down>,
}

struct PoolReply {
    leases: Leases,
    took: Duration,
}

/// Why a query failed, and its error message.
struct Down(Fault, String);

impl Leasing {
    /// Starts the query thread. The first query is sent with the first sample.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(source: Box<dyn SampleSource>, settings: LeaseSettings) -> io::Result<Self> {
        let (query, asked) = channel();
        let (answer, answers) = channel();
        let patience = settings.deadline.min(settings.interval) / PATIENCE_PART;
        let node = Node::read(&settings.procfs, settings.namespace);
        let mut asker = Asker { settings, node, pool: None };
        thread::Builder::new().name("leases".into()).spawn(move || asker.run(&asked, &answer))?;
        Ok(Self { source, query, answers, patience, before: None, logged: None })
    }

    /// Returns the answer to the query of this interval, and discards answers to earlier queries.
    fn answer(&self, seq: u64) -> Result<PoolReply, Down> {
        let until = Deadline::after(self.patience);
        while let Ok(answer) = self.answers.recv_timeout(until.left()) {
            if answer.seq == seq {
                return answer.outcome;
            }
        }
        Err(Down(Fault::Timeout, "Redis did not respond in time".to_owned()))
    }

    /// Logs a change of state once, and only if it lasts two intervals, because a busy machine is
    /// occasionally late.
    fn say(&mut self, down: Option<&Down>) {
        let fault = down.map(|Down(fault, _)| *fault);
        let lasts = std::mem::replace(&mut self.before, fault) == fault;
        if !lasts || self.logged == fault {
            return;
        }
        if let Some(Down(_, error_text)) = down {
            tracing::warn!("cannot read leases: {error_text}");
        } else {
            tracing::info!("leases can be read again");
        }
        self.logged = fault;
    }
}

impl SampleSource for Leasing {
    fn sample(&mut self, seq: u64) -> Option<Sample> {
        // If this fails, the query thread has ended: no answer follows, and the source is reported as down.
        let _ = self.query.send(seq);
        let mut sample = self.source.sample(seq)?;
        let answer = self.answer(seq);
        self.say(answer.as_ref().err());
        let state = match answer {
            Ok(PoolReply { mut leases, took }) => {
                leases.boot_ms = millis(sample.at.boot);
                sample.leases = Some(leases);
                SourceState::up(took)
            }
            Err(Down(fault, _)) => SourceState::down(fault),
        };
        sample.sources.insert(Source::Redis, state);
        Some(sample)
    }
}

/// The query thread.
struct Asker {
    settings: LeaseSettings,
    node: Node,
    pool: Option<Pool>,
}

impl Asker {
    fn run(&mut self, asked: &Receiver<u64>, answer: &Sender<Answer>) {
        while let Ok(first) = asked.recv() {
            // Queries of earlier intervals need no answer any more.
            let seq = asked.try_iter().last().unwrap_or(first);
            let outcome = self.outcome();
            if answer.send(Answer { seq, outcome }).is_err() {
                return;
            }
        }
    }

    fn outcome(&mut self) -> Result<PoolReply, Down> {
        let began = running();
        let answer = self.query();
        let took = running().saturating_sub(began);
        match answer {
            Ok(audit) => Ok(PoolReply { leases: audit.leases(&self.node, Duration::ZERO), took }),
            Err(error) => {
                let late = took >= self.settings.deadline;
                Err(Down(if late { Fault::Timeout } else { fault(&error) }, error.to_string()))
            }
        }
    }

    fn query(&mut self) -> Result<Audit, LeaseError> {
        let LeaseSettings { redis, prefix, deadline, .. } = &self.settings;
        // After an error the connection is not reused: its late answer could be taken for the answer to the
        // next query.
        let mut pool = match self.pool.take() {
            Some(pool) => pool,
            None => Pool::open(&redis.0, prefix, *deadline)?,
        };
        let audit = pool.audit()?;
        self.pool = Some(pool);
        Ok(audit)
    }
}

const fn fault(error: &LeaseError) -> Fault {
    match error {
        LeaseError::Unreachable { .. } => Fault::Unreachable,
        LeaseError::Silent(_) => Fault::Timeout,
        LeaseError::Denied(_) => Fault::NotPermitted,
        _ => Fault::Error,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bailiff_snapshot::{Driver, Gaps, Moment};

    use super::*;

    /// A source of empty samples.
    struct Blind;

    impl SampleSource for Blind {
        fn sample(&mut self, seq: u64) -> Option<Sample> {
            Some(Sample {
                seq,
                at: Moment { wall: Duration::ZERO, boot: Duration::from_secs(seq) },
                took: Duration::ZERO,
                interval: Duration::ZERO,
                boot_id: None,
                namespace: PidNamespace::Unknown,
                sources: BTreeMap::new(),
                driver: Driver::default(),
                gpus: Vec::new(),
                processes: BTreeMap::new(),
                relatives: None,
                groups: BTreeMap::new(),
                device_processes: None,
                leases: None,
                quotas: None,
                slurm: None,
                pod_resources: None,
                kernel_log: None,
                mps: None,
                gaps: Gaps::default(),
                workers_hung: 0,
            })
        }
    }

    #[test]
    fn a_interval_takes_only_the_answer_that_came_for_it() {
        let (query, asked) = channel();
        let (answer, answers) = channel();
        let mut leasing = Leasing {
            source: Box::new(Blind),
            query,
            answers,
            patience: Duration::ZERO,
            before: None,
            logged: None,
        };
        let on_time = |seq| Answer {
            seq,
            outcome: Ok(PoolReply { leases: Leases::default(), took: Duration::from_millis(seq) }),
        };
        let mut source = |seq, came: Vec<Answer>| {
            for came in came {
                answer.send(came).expect("the receiver exists");
            }
            let sample = leasing.sample(seq).expect("a sample");
            (sample.sources[&Source::Redis].fault, sample.leases.map(|leases| leases.boot_ms))
        };
        assert_eq!(source(1, vec![]), (Some(Fault::Timeout), None), "the answer is late");
        assert_eq!(source(2, vec![on_time(1)]), (Some(Fault::Timeout), None), "a late answer is not new");
        assert_eq!(source(3, vec![on_time(2), on_time(3)]), (None, Some(3000)));
        let refused = Answer { seq: 4, outcome: Err(Down(Fault::NotPermitted, "no".to_owned())) };
        assert_eq!(source(4, vec![refused]), (Some(Fault::NotPermitted), None));
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
