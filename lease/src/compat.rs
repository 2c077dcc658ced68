//! What GPU.py knows of a pool, read from its own keys; and what its rules allow that ours do not: to give back what
//! somebody else has, and to begin again under whoever holds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis::Script;

use crate::pool::{Init, Pool};
use crate::{LeaseError, Op};

/// One moment of three keys. Not MULTI: redis 1.8.1 panics where a user may not call that.
static VIEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local all = function(key) return redis.call('LRANGE', key, 0, -1) end
        return {redis.call('HGETALL', KEYS[1]), all(KEYS[2]), all(KEYS[3])}",
    )
});

/// Deletes those lists of GPU.py's that are of another type, as it does itself before it begins a pool or deletes one. A
/// lease that is held, or a pool that is not to be begun again, is left as it is.
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

/// What GPU.py would read, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Whether the pool was begun.
    pub begun: bool,
    /// How many GPUs there were when it was begun.
    pub count: Option<u32>,
    /// Ids of managed GPUs.
    pub managed: Vec<String>,
    /// Ids of idle GPUs, one twice that was released twice.
    pub idle: Vec<String>,
}

/// A pid and a time, as far as they are there.
pub type Recorded = (Option<String>, Option<String>);

/// How it went that a GPU was given back by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// It is free.
    Released,
    /// Nobody has it.
    Idle,
    /// The pool does not know it.
    Unmanaged,
    /// A lease has it that ends with its holder alone.
    Held(String),
    /// It is quarantined, for this reason.
    Quarantined(String),
}

/// Whether a pool is begun over what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Not over another.
    No,
    /// Over another, if nobody holds a lease.
    Over,
    /// Under whoever holds a lease; his lease ends.
    Under,
}

impl Force {
    /// As scripts read it.
    const fn digit(self) -> &'static str {
        match self {
            Self::No => "0",
            Self::Over => "1",
            Self::Under => "2",
        }
    }
}

impl Pool {
    /// Asks whether anybody is there.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn ping(&mut self) -> Result<(), LeaseError> {
        self.with(|connection| redis::cmd("PING").exec(connection))
    }

    /// What GPU.py would read.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn view(&mut self) -> Result<View, LeaseError> {
        let mut look = VIEW.prepare_invoke();
        for name in ["INIT", "MANAGED", "IDLE"] {
            look.key(format!("{}_{name}", self.prefix));
        }
        let (begun, managed, idle): (BTreeMap<String, String>, _, _) =
            self.with(|connection| look.invoke(connection))?;
        let count = begun.get("GPUCOUNT").and_then(|count| count.parse().ok());
        Ok(View { begun: !begun.is_empty(), count, managed, idle })
    }

    /// Lines of GPU.py's log, the oldest first.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn lines(&mut self) -> Result<Vec<String>, LeaseError> {
        let mut all = redis::cmd("LRANGE");
        all.arg(format!("{}_EVENTS", self.prefix)).arg(0).arg(-1);
        let mut events: Vec<String> = self.with(|connection| all.query(connection))?;
        events.reverse();
        Ok(events)
    }

    /// The records of GPUs.
    ///
    /// # Errors
    /// Where there is no answer.
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

    /// Begins a pool of these GPUs, of so many that there are.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn begin(
        &mut self,
        (gpus, count): (&[(u32, Option<String>)], usize),
        offset: i32,
        force: Force,
    ) -> Result<Init, LeaseError> {
        let mut arguments = vec![offset.to_string(), force.digit().to_owned()];
        for (number, uuid) in gpus {
            arguments.extend([number.to_string(), uuid.clone().unwrap_or_default()]);
        }
        arguments.push(count.to_string());
        let (how, count) = self.replacing(Op::Init, &arguments, force)?;
        match how.as_str() {
            "done" => Ok(Init::Done(count)),
            "initialised" => Ok(Init::Already(count)),
            "held" => Ok(Init::Held(count)),
            other => Err(LeaseError::Strange(other.to_owned())),
        }
    }

    /// Calls a script, and once more where lists of GPU.py's were of another type and could be deleted.
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
            // It names the key.
            Err(LeaseError::WrongType(_)) => Err(refused),
            answer => answer,
        }
    }

    /// Deletes a pool and the keys of ours, with the leases that are held only where that is forced; returns how many those
    /// are where it is not done.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn forget(&mut self, force: Force) -> Result<Result<(), u64>, LeaseError> {
        let over = if force == Force::No { Force::Over } else { force };
        let arguments = [u8::from(force == Force::Under).to_string()];
        let (how, count) = self.replacing(Op::Forget, &arguments, over)?;
        Ok(if how == "held" { Err(count) } else { Ok(()) })
    }

    /// Gives a GPU back by its number, whoever has it; `pid` is who says so, for the log.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn give(&mut self, id: &str, (offset, pid): (i32, u32)) -> Result<Given, LeaseError> {
        let (how, why): (String, String) =
            self.call(Op::Give, &[id.to_owned(), offset.to_string(), pid.to_string()])?;
        Ok(match how.as_str() {
            "released" => Given::Released,
            "idle" => Given::Idle,
            "unmanaged" => Given::Unmanaged,
            "held" => Given::Held(why),
            "quarantined" => Given::Quarantined(why),
            _ => return Err(LeaseError::Strange(how)),
        })
    }

    /// Puts a GPU back whose record of GPU.py names a process that is dead; looked at again before it is done. Tells
    /// whether it was.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn strike(&mut self, id: &str, (pid, time): (&str, &str), offset: i32) -> Result<bool, LeaseError> {
        let arguments = [id.to_owned(), pid.to_owned(), offset.to_string(), time.to_owned()];
        let how: String = self.call(Op::Resolve, &arguments)?;
        Ok(how == "freed")
    }
}
