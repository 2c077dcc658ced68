//! Three truth values (Kleene). A comparison with an unobserved value is unknown, and unknown never leads to an action.

use serde::{Deserialize, Serialize};

/// True, false, or not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truth {
    /// Observed not to hold.
    False,
    /// What it rests on was not observed.
    #[default]
    Unknown,
    /// Observed to hold.
    True,
}

impl Truth {
    /// Both hold.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        // Both are at least as true as the less true one.
        if (self as u8) < other as u8 { self } else { other }
    }

    /// One of them holds.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        if (self as u8) < other as u8 { other } else { self }
    }

    /// As its name in the audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Unknown => "unknown",
        }
    }
}

/// It does not hold; of the unknown nothing is known either.
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
