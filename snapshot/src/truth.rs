//! Three truth values (Kleene). A comparison with what was not observed is unknown, and unknown acts on nobody.

use serde::{Deserialize, Serialize};

/// True, false, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truth {
    /// Observed to hold.
    True,
    /// Observed not to hold.
    False,
    /// What it rests on was not observed.
    Unknown,
}

impl Truth {
    /// Both hold.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    /// One of them holds.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::True, _) | (_, Self::True) => Self::True,
            (Self::False, Self::False) => Self::False,
            _ => Self::Unknown,
        }
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
