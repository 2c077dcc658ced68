//! Changes of records, as Redis tells them the moment they are made (`CLIENT TRACKING`, Redis 6 and later).

use std::time::Duration;

use redis::{Connection, ProtocolVersion, PushKind, Value};

use crate::audit::Record;
use crate::{LeaseError, Pool};

/// Redis tells on one connection; on another it is asked what is there now.
pub struct Changes {
    told: Connection,
    pool: Pool,
    records: String,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Changes").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Pool {
    /// Asks to be told of changes from now on, on connections of its own.
    ///
    /// # Errors
    /// Where there is no answer, or Redis is older than 6 or does not allow it.
    pub fn changes(&self) -> Result<Changes, LeaseError> {
        let about = self.client.get_connection_info();
        let redis = about.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = self.asked(redis::Client::open(about.clone().set_redis_settings(redis)))?;
        let mut told = self.connection_of(&client)?;
        let records = format!("{}_GPU", self.prefix);
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(&records);
        self.asked(tracking.exec(&mut told))?;
        Ok(Changes { told, pool: self.another(&self.client)?, records })
    }
}

impl Changes {
    /// GPUs whose records have changed, waited for at most so long; all that there are where that is not known. None
    /// where nothing was told: also a connection that is dead says nothing.
    ///
    /// # Errors
    /// Where the connection broke: changes are missed from then on.
    pub fn next(&mut self, at_most: Duration, all: &[String]) -> Result<Option<Vec<String>>, LeaseError> {
        self.pool.asked(self.told.set_read_timeout(Some(at_most)))?;
        match self.told.recv_response() {
            Ok(Value::Push { kind: PushKind::Invalidate, data }) => Ok(Some(match data.into_iter().next() {
                Some(Value::Array(keys)) => keys.into_iter().filter_map(|key| self.gpu(key)).collect(),
                _ => all.to_vec(),
            })),
            Ok(_) => Ok(None),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => self.pool.asked(Err(error)),
        }
    }

    /// `PREFIX_GPU3` is of `3`.
    fn gpu(&self, key: Value) -> Option<String> {
        let key: String = redis::from_redis_value(key).ok()?;
        let id = key.strip_prefix(&self.records)?;
        (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).then(|| id.to_owned())
    }

    /// The record of a GPU now; none where there is none, or it is of a lease that plays by our rules.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn look(&mut self, gpu: &str) -> Result<Option<Record>, LeaseError> {
        type Told = (Option<String>, Option<String>, Option<String>, Option<String>);
        let mut request = redis::cmd("HMGET");
        request.arg(format!("{}{gpu}", self.records)).arg(&["PID", "TIME", "lease", "mode"]);
        let (pid, time, lease, mode): Told = match self.pool.with(|connection| request.query(connection)) {
            Err(LeaseError::WrongType(_)) => (None, None, None, None),
            told => told?,
        };
        let legacy = lease.is_none() || mode.as_deref() == Some("compat");
        let pid = pid.filter(|_| legacy);
        Ok(pid.map(|pid| Record { pid, time: time.unwrap_or_default(), lease, seen: None }))
    }

    /// The pool, for what is to be kept of what was seen.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }
}
