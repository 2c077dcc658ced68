//! What can go wrong between us and whoever keeps the pool, in words that name the way out.

use std::io;
use std::path::Path;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The address makes no sense.
    #[error(
        "{0} is no address of Redis; write redis://HOST:PORT/DB, rediss:// with TLS, or redis+unix:///PATH"
    )]
    Address(String),
    /// Nobody answers.
    #[error("Redis at {address} does not answer: {why}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What the system says.
        why: String,
    },
    /// Somebody is there, and has nothing to say.
    #[error(
        "Redis at {0} does not answer in time; is it stopped, or does it speak TLS (rediss://) and we do not, or we and not it?"
    )]
    Silent(String),
    /// It wants to know who we are, or we may not do that.
    #[error(
        "Redis refuses: {0}; give a user and a password in the address, or that user the rights of docs/leases.md"
    )]
    Denied(String),
    /// It is full.
    #[error("Redis has no memory left (maxmemory): {0}")]
    Full(String),
    /// A key holds what is not ours.
    #[error("{0}; another program uses this prefix, or a key of it was written by hand")]
    WrongType(String),
    /// It is loading or busy, a replica that cannot be written to, or somebody called us out of a line.
    #[error("Redis cannot serve now: {0}")]
    NotNow(String),
    /// Something else.
    #[error("Redis answered what is not understood: {0}")]
    Strange(String),
    /// Nobody has begun a pool in the directory.
    #[error("no GPUs are handed out in {0}: `bailiff lease init` begins that, or name a Redis with --redis")]
    Absent(String),
    /// A file of the pool cannot be used.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be done here.
    #[error("{0}")]
    NotLocalHost(String),
    /// Who has it cannot be asked to give it back.
    #[error("{0}")]
    Kept(String),
}

impl LeaseError {
    /// Asking again later may help.
    #[must_use]
    pub const fn passes(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Silent(_) | Self::NotNow(_))
    }

    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        let why = error.to_string();
        let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
        Self::File { path: path.display().to_string(), why }
    }

    /// An address that makes no sense; what may be a password in it is not repeated.
    pub(crate) fn address(text: &str) -> Self {
        let shown = match (text.split_once("://"), text.rsplit_once('@')) {
            (Some((scheme, rest)), _) if rest.contains("pass=") => format!("{scheme}://…"),
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{place}"),
            (None, Some((_, place))) => format!("…@{place}"),
            _ => text.to_owned(),
        };
        Self::Address(shown)
    }

    pub(crate) fn of(error: &RedisError, address: &str) -> Self {
        let told = without_script(error.detail().unwrap_or_default()).to_owned();
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Denied(error.to_string()),
            _ if error.is_timeout() => Self::Silent(address.to_owned()),
            ErrorKind::Io => Self::Unreachable { address: address.to_owned(), why: error.to_string() },
            ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => Self::NotNow(told),
            _ => match error.code() {
                Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Self::Denied(told),
                // It says so of a long command to whoever has not told who he is.
                _ if error.to_string().contains("Protocol error: unauthenticated") => {
                    Self::Denied("Authentication required.".to_owned())
                }
                Some("OOM") => Self::Full(told),
                Some("WRONGTYPE") => Self::WrongType(told),
                Some("MISCONF" | "MASTERDOWN" | "NOREPLICAS" | "BUSY" | "UNBLOCKED") => Self::NotNow(told),
                _ => Self::Strange(error.to_string()),
            },
        }
    }
}

/// Redis adds to an error in a script which script it was, and at which line: that says nothing to a user.
fn without_script(detail: &str) -> &str {
    detail.split_once(" script: ").map_or(detail, |(error, _)| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_in_a_script_does_not_name_the_script() {
        let detail =
            "Operation against a key holding the wrong kind of value script: 774ea770, on @user_script:1.";
        assert_eq!(without_script(detail), "Operation against a key holding the wrong kind of value");
        assert_eq!(without_script("GPU_IDLE is a string"), "GPU_IDLE is a string");
    }

    #[test]
    fn no_password_is_repeated() {
        for (text, shown) in [
            ("redsi://bob:secret@host:1/0", "redsi://…@host:1/0"),
            ("bob:s@cret@host", "…@host"),
            ("redsi://host", "redsi://host"),
            ("redis+unix:///x?db=y&pass=p@ss", "redis+unix://…"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(LeaseError::address(text), LeaseError::Address(shown.to_owned()));
        }
    }
}
