//! The Lua scripts. Each consists of the common part and its own part. One script has a fast path before
//! the common part.

use std::sync::LazyLock;

use redis::Script;

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $([$first:literal])? $file:literal)+) => {
        /// An operation on a pool. Each operation is a script that Redis runs atomically.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $op,)+
        }

        impl Op {
            /// The source of the script.
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

            /// The script, called by its hash.
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
    /// Creates a pool.
    Init "init.lua"
    /// Requests GPUs.
    Enqueue "enqueue.lua"
    /// Serves waiting tickets.
    Assign ["slot.lua"] "assign.lua"
    /// Renews a ticket; acknowledges or renews a lease.
    Touch "touch.lua"
    /// Ends a lease, or withdraws a ticket.
    Release "release.lua"
    /// Restores a lease that the server has lost.
    Reclaim "reclaim.lua"
    /// Ends a lease whose holder has exited, or that a rule revokes.
    Kill "kill.lua"
    /// Releases a quarantined GPU.
    Clear "clear.lua"
    /// Stores evidence about the process that wrote a GPU.py record.
    Seen "seen.lua"
    /// Registers the agent of a node.
    Agent "agent.lua"
    /// Returns a GPU without a holder to the pool, if it is quarantined or not in any list.
    Resolve "resolve.lua"
    /// Transfers a lease to the process for which it was taken.
    Transfer "transfer.lua"
    /// Extends a lease with a time limit.
    Extend "extend.lua"
    /// Releases a GPU by its number, as GPU.py does.
    Give "give.lua"
    /// Deletes a pool.
    Forget "forget.lua"
    /// Returns the whole state.
    Audit "audit.lua"
}
