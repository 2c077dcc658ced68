//! Three-valued logic (Kleene). Comparisons with unobserved values are unknown, which never causes an action.

crate::label_values! {
/// True, false or unknown.
pub enum Truth (default Unknown) {
    /// Observed to be false.
    False = "false",
    /// Unknown, because a value was not observed.
    Unknown = "unknown",
    /// Observed to be true.
    True = "true",
}
}

impl Truth {
    /// Returns whether it is true; `None` if that is unknown.
    pub const fn known(self) -> Option<bool> {
        match self {
            Self::False => Some(false),
            Self::Unknown => None,
            Self::True => Some(true),
        }
    }

    /// Returns whether both are true.
    pub const fn and(self, other: Self) -> Self {
        // In the order false, unknown, true, the smaller value is the conjunction.
        if (self as u8) < other as u8 { self } else { other }
    }

    /// Returns whether at least one is true.
    pub const fn or(self, other: Self) -> Self {
        if (self as u8) < other as u8 { other } else { self }
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

impl From<Option<bool>> for Truth {
    fn from(known: Option<bool>) -> Self {
        known.map_or(Self::Unknown, Self::from)
    }
}

impl From<bool> for Truth {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}
