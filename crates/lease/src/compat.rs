//! A pool as GPU.py sees it, read from GPU.py's own keys, and the operations that only GPU.py's rules permit:
//! releasing a GPU that another client holds, and recreating a pool while leases are held.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis::Script;

use crate::pool::{Init, Pool, numbers_and_uuids};
use crate::{LeaseError, Op};

/// Reads three keys atomically. MULTI is not used, because redis 1.8.1 panics if the user is not permitted to call it.
static VIEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local all = function(key) return redis.call('LRANGE', key, 0, -1) end
        return {redis.call('HGETALL', KEYS[1]), all(KEYS[2]), all(KEYS[3])}",
    )
});

/// Deletes GPU.py's list keys that have a type other than list, as GPU.py does before it creates or deletes a pool.
/// Does nothing if a lease is held or the pool exists, unless forced.
static REPLACE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local force, held = ARGV[1], redis.call('HLEN', KEYS[1])
        local begun = ARGV[2] == 'Init' and redis.call('HLEN', KEYS[2]) > 0
        if begun and force == '0' then return {'initialised', 0} end
        if held > 0 and force ~= '2' then return {'held', held} end
        for place = 3, #KEYS do
            local kind = redis.call('TYPE', KEYS[place]).ok
            if kind ~= 'none' and kind ~= 'list' then redis.call('DEL', KEYS[place]) end
        end
        return {'done', 0}",
    )
});

/// The pool as GPU.py reads it, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Whether the pool exists.
    pub begun: bool,
    /// The number of GPUs at its creation.
    pub count: Option<u32>,
    /// Ids of managed GPUs.
    pub managed: Vec<String>,
    /// Ids of idle GPUs. An id that was released twice appears twice.
    pub idle: Vec<String>,
}

/// The pid and time of a record, if present.
pub type Recorded = (Option<String>, Option<String>);

/// The result of releasing a GPU by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumberedRelease {
    /// The GPU was released.
    Released,
    /// The GPU was already idle.
    Idle,
    /// The GPU is not in the pool.
    Unmanaged,
    /// The GPU is held by a lease that only its holder can end.
    Held(String),
    /// The GPU is quarantined for this reason.
    Quarantined(String),
}

/// Whether to replace an existing pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Do not replace an existing pool.
    No,
    /// Replace an existing pool if no lease is held.
    Over,
    /// Replace an existing pool, and end held leases.
    Under,
}

impl Force {
    /// The value that the scripts expect.
    const fn digit(self) -> &'static str {
        match self {
            Self::No => "0",
            Self::Over => "1",
            Self::Under => "2",
        }
    }
}

impl Pool {
    /// Checks that the server responds.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn ping(&mut self) -> Result<(), LeaseError> {
        self.with(|connection| redis::cmd("PING").exec(connection))
    }

    /// The pool as GPU.py reads it.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn view(&mut self) -> Result<View, LeaseError> {
        let mut script = VIEW.prepare_invoke();
        for name in ["INIT", "MANAGED", "IDLE"] {
            script.key(format!("{}_{name}", self.prefix));
        }
        let (begun, managed, idle): (BTreeMap<String, String>, _, _) =
            self.with(|connection| script.invoke(connection))?;
        let count = begun.get("GPUCOUNT").and_then(|count| count.parse().ok());
        Ok(View { begun: !begun.is_empty(), count, managed, idle })
    }

    /// Returns the lines of GPU.py's log, oldest first.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn lines(&mut self) -> Result<Vec<String>, LeaseError> {
        let mut all = redis::cmd("LRANGE");
        all.arg(format!("{}_EVENTS", self.prefix)).arg(0).arg(-1);
        let mut events: Vec<String> = self.with(|connection| all.query(connection))?;
        events.reverse();
        Ok(events)
    }

    /// The records of these GPUs.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn records(&mut self, ids: &[String]) -> Result<Vec<Recorded>, LeaseError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("HMGET").arg(format!("{}_GPU{id}", self.prefix)).arg("PID").arg("TIME");
        }
        self.with(|connection| pipe.query(connection))
    }

    /// Creates a pool of these GPUs; `count` is the number of GPUs on the host.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn begin(
        &mut self,
        (gpus, count): (&[(u32, Option<String>)], usize),
        offset: i32,
        force: Force,
    ) -> Result<Init, LeaseError> {
        let mut arguments = vec![offset.to_string(), force.digit().to_owned()];
        arguments.extend(numbers_and_uuids(gpus));
        arguments.push(count.to_string());
        Init::of(self.replacing(Op::Init, &arguments, force)?)
    }

    /// Calls a script. If it fails because a key that GPU.py uses as a list has another type, deletes such keys, if
    /// that is allowed, and calls the script again.
    fn replacing(&mut self, op: Op, arguments: &[String], force: Force) -> Result<(String, u64), LeaseError> {
        let refused = match self.call(op, arguments) {
            Err(refused @ LeaseError::WrongType(_)) => refused,
            answer => return answer,
        };
        let mut replace = REPLACE.prepare_invoke();
        replace.arg(force.digit()).arg(format!("{op:?}"));
        for name in ["V2:OWN", "INIT", "IDLE", "MANAGED", "EVENTS"] {
            replace.key(format!("{}_{name}", self.prefix));
        }
        match self.with(|connection| replace.invoke::<(String, u64)>(connection)) {
            Ok((how, _)) if how == "done" => self.call(op, arguments),
            // The first error names the key.
            Err(LeaseError::WrongType(_)) => Err(refused),
            answer => answer,
        }
    }

    /// Deletes a pool and all keys of this program. If leases are held and deletion is not forced, returns their
    /// number and deletes nothing.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn forget(&mut self, force: Force) -> Result<Result<(), u64>, LeaseError> {
        let over = if force == Force::No { Force::Over } else { force };
        let arguments = [u8::from(force == Force::Under).to_string()];
        let (how, count) = self.replacing(Op::Forget, &arguments, over)?;
        Ok(if how == "held" { Err(count) } else { Ok(()) })
    }

    /// Releases a GPU by its number, whichever client holds it; `pid` is the caller, for the log.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn release_by_number(
        &mut self,
        id: &str,
        (offset, pid): (i32, u32),
    ) -> Result<NumberedRelease, LeaseError> {
        let (how, why): (String, String) =
            self.call(Op::Give, &[id.to_owned(), offset.to_string(), pid.to_string()])?;
        Ok(match how.as_str() {
            "released" => NumberedRelease::Released,
            "idle" => NumberedRelease::Idle,
            "unmanaged" => NumberedRelease::Unmanaged,
            "held" => NumberedRelease::Held(why),
            "quarantined" => NumberedRelease::Quarantined(why),
            _ => return Err(LeaseError::unexpected(how)),
        })
    }

    /// Returns a GPU to the pool if the pid in its GPU.py record belongs to an exited process. The script checks the
    /// record again first. Returns whether the GPU was freed.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn free_record(
        &mut self,
        id: &str,
        (pid, time): (&str, &str),
        offset: i32,
    ) -> Result<bool, LeaseError> {
        let arguments = [id.to_owned(), pid.to_owned(), offset.to_string(), time.to_owned()];
        let how: String = self.call(Op::Resolve, &arguments)?;
        Ok(how == "freed")
    }
}
