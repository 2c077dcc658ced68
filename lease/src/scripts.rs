//! The scripts: each is what they all know, and its own part. One has a shorter way before the long one.

use std::sync::LazyLock;

use redis::Script;

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $([$first:literal])? $file:literal)+) => {
        /// What can be asked of a pool, each a script that Redis runs as one step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $op,)+
        }

        impl Op {
            /// The script.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$op => concat!(
                        include_str!("scripts/grant.lua"),
                        $(include_str!(concat!("scripts/", $first)),)?
                        include_str!("scripts/common.lua"),
                        include_str!(concat!("scripts/", $file)),
                    ),)+
                }
            }

            /// The script, to be called by its hash.
            pub(crate) fn script(self) -> &'static Script {
                match self {
                    $(Self::$op => {
                        static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(Op::$op.text()));
                        &SCRIPT
                    })+
                }
            }
        }
    };
}

ops! {
    /// Begins a pool.
    Init "init.lua"
    /// Asks for GPUs.
    Enqueue "enqueue.lua"
    /// Serves those who wait.
    Assign ["slot.lua"] "assign.lua"
    /// Keeps a ticket; acknowledges or renews a lease.
    Touch "touch.lua"
    /// Ends a lease, or withdraws a ticket.
    Release "release.lua"
    /// Gives a lease back that a server has forgotten.
    Reclaim "reclaim.lua"
    /// Ends what is known to be dead, or what a rule wants to be ended.
    Kill "kill.lua"
    /// Puts a GPU back that was withheld while somebody was on it.
    Clear "clear.lua"
    /// Keeps what was seen of a client of GPU.py's.
    Seen "seen.lua"
    /// Says that a node has an agent.
    Agent "agent.lua"
    /// Puts a GPU back that nobody holds and that is nowhere.
    Resolve "resolve.lua"
    /// Hands a lease on to the process that it is for.
    Transfer "transfer.lua"
    /// Gives more time.
    Extend "extend.lua"
    /// Gives a GPU back by its number, as GPU.py does.
    Give "give.lua"
    /// Forgets a pool.
    Forget "forget.lua"
    /// Tells everything.
    Audit "audit.lua"
}
