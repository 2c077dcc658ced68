//! Parses `leases`: the lease pool that this node's agent maintains.

use std::path::Path;
use std::time::Duration;

use super::{Address, keys};
use crate::yaml::{Faults, Fields, Node, expected, flag, some_time, text};

/// Ample, because `GPU.py` records a GPU within a millisecond of taking it.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// The lease pool that this node's agent maintains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// Address of the server.
    pub redis: Address,
    /// Prefix of all keys.
    pub prefix: String,
    /// Whether leases of exited holders are released.
    pub reap: bool,
    /// How long a GPU of an exited `GPU.py` client must be unused before it is released; never if `None`.
    pub legacy_idle_grace: Option<Duration>,
    /// How long a GPU must be unused, and recorded neither as idle nor as taken, before it returns to the pool.
    pub lost_after: Duration,
}

/// Parses the section; `None` if it is invalid.
pub(super) fn read(node: &Node, is_address: fn(&str) -> bool, faults: &mut Faults) -> Option<Leases> {
    let fields = Fields::open(node, keys::table("leases"), faults)?;
    let redis = server((node, &fields), is_address, faults);
    let prefix =
        fields.or(("prefix", "GPU"), |node, faults| text(node, "text, such as `GPU`", faults), faults);
    let reap = fields.or(("reap", true), flag, faults);
    let chance = ("the value must be above 0", "a single observation can be an outlier");
    let time = |node: &Node, faults: &mut Faults| some_time(node, chance, faults);
    let grace = fields.given("legacy_idle_grace", time, faults);
    let lost = fields.or(("lost_after", LOST_AFTER), time, faults);
    if let (Some(false), Some(node)) = (reap, fields.get("legacy_idle_grace")) {
        faults.warn(&node.at, "nothing is freed while `reap` is false", "remove `reap: false` or this key");
    }
    Some(Leases {
        redis: redis?,
        prefix: prefix?.to_owned(),
        reap: reap?,
        legacy_idle_grace: grace,
        lost_after: lost?,
    })
}

fn server(
    (node, fields): (&Node, &Fields<'_>),
    is_address: fn(&str) -> bool,
    faults: &mut Faults,
) -> Option<Address> {
    match (fields.get("redis"), fields.get("redis_file")) {
        (Some(url), None) => {
            let address = text(url, "a URL, such as `redis://127.0.0.1:6379/0`", faults)?;
            if is_address(address) {
                return Some(Address::Url(address.to_owned()));
            }
            expected(url, "an address, such as `redis://HOST:PORT/DB` or `redis+unix:///PATH`", faults);
            None
        }
        (None, Some(file)) => {
            let path = text(file, "an absolute path, such as `/etc/bailiff/redis-url`", faults)?;
            if Path::new(path).is_absolute() {
                return Some(Address::File(path.into()));
            }
            expected(file, "an absolute path, which begins with `/`", faults);
            None
        }
        (first, _) => {
            let at = first.map_or(&node.at, |first| &first.at);
            let help = "put a URL with a password into a file, and use `redis_file`";
            faults.error(at, "`leases` needs exactly one of `redis` and `redis_file`", help);
            None
        }
    }
}
