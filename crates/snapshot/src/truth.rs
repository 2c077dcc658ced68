//! Three-valued logic (Kleene). Comparisons with unobserved values are unknown, which never causes an action.

use serde::{Deserialize, Serialize};

/// True, false or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truth {
    /// Observed to be false.
    False,
    /// Unknown, because a value was not observed.
    #[default]
    Unknown,
    /// Observed to be true.
    True,
}

impl Truth {
    /// Returns whether both are true.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        // In the order false, unknown, true, the smaller value is the conjunction.
        if (self as u8) < other as u8 { self } else { other }
    }

    /// Returns whether at least one is true.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        if (self as u8) < other as u8 { other } else { self }
    }

    /// Returns the name in the audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Unknown => "unknown",
        }
    }
}

/// Negation. The negation of unknown is unknown.
impl std::ops::Not for Truth {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::True => Self::False,
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
        }
    }
}

impl From<bool> for Truth {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}
