//! Changes to records, as Redis pushes them (`CLIENT TRACKING`, Redis 6 and later).

use std::sync::LazyLock;
use std::time::Duration;

use redis::{ProtocolVersion, PushKind, Script, Value};

use crate::audit::Record;
use crate::connection::Connection;
use crate::{LeaseError, Pool};

/// Maximum length of a GPU's id in a key.
const MOST_DIGITS: usize = 10;

/// Reads a record, unless a field is longer than any that `GPU.py` or this program writes.
static RECORD: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local fields = {'PID', 'TIME', 'lease', 'mode'}
        for _, field in ipairs(fields) do
            if redis.call('HSTRLEN', KEYS[1], field) > 256 then return {false, false, false, false} end
        end
        return redis.call('HMGET', KEYS[1], unpack(fields))",
    )
});

/// A subscription to changes of records. Redis pushes changes on one connection, and the records are read on another.
pub struct Changes {
    pushes: Connection,
    pool: Pool,
    records: String,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Changes").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens new connections to Redis, and subscribes to all changes made from now on.
    ///
    /// # Errors
    /// If Redis does not respond, is older than version 6, or does not permit the subscription.
    pub fn changes(&self) -> Result<Changes, LeaseError> {
        let settings = self.server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let mut pushes = self.connection_of(&self.server.clone().set_redis_settings(settings))?;
        let records = format!("{}_GPU", self.prefix);
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(&records);
        self.map_error(tracking.exec(&mut pushes))?;
        Ok(Changes { pushes, pool: self.another()?, records })
    }
}

impl Changes {
    /// Waits up to `at_most` for GPUs whose records have changed. Returns all GPUs if Redis does not name the keys, or
    /// `None` if no change arrived, which is also the case on a dead connection.
    ///
    /// # Errors
    /// If the connection broke, after which changes are missed.
    pub fn next(&mut self, at_most: Duration, all: &[String]) -> Result<Option<Vec<String>>, LeaseError> {
        match self.pushes.push(at_most) {
            Ok(Value::Push { kind: PushKind::Invalidate, data }) => Ok(Some(match data.into_iter().next() {
                Some(Value::Array(keys)) => keys.into_iter().filter_map(|key| self.gpu(key)).collect(),
                _ => all.to_vec(),
            })),
            Ok(_) => Ok(None),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => self.pool.map_error(Err(error)),
        }
    }

    /// Returns the GPU id in a key: `3` for `PREFIX_GPU3`.
    fn gpu(&self, key: Value) -> Option<String> {
        let key: String = redis::from_redis_value(key).ok()?;
        let id = key.strip_prefix(&self.records)?;
        let is_id = (1..=MOST_DIGITS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then(|| id.to_owned())
    }

    /// Reads the record of a GPU. Returns `None` if there is no record, or if it belongs to a lease that does not
    /// follow GPU.py's rules.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn read(&mut self, gpu: &str) -> Result<Option<Record>, LeaseError> {
        type Fields = (Option<String>, Option<String>, Option<String>, Option<String>);
        let mut request = RECORD.prepare_invoke();
        request.key(format!("{}{gpu}", self.records));
        let (pid, time, lease, mode): Fields = match self.pool.with(|connection| request.invoke(connection)) {
            Err(LeaseError::WrongType(_)) => (None, None, None, None),
            answer => answer?,
        };
        let legacy = lease.is_none() || mode.as_deref() == Some("compat");
        let pid = pid.filter(|_| legacy);
        Ok(pid.map(|pid| Record { pid, time: time.unwrap_or_default(), lease, seen: None }))
    }

    /// Returns the pool in which evidence is stored.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }
}
