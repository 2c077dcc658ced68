//! What a table of metrics is made of. The tables themselves are each daemon's own, in its `metrics.rs`.

/// What a family's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up, until its process or this one restarts.
    Counter,
    /// Always 1: its labels are what it tells.
    Info,
    /// Counts by size: in buckets, with their sum.
    Histogram,
}

/// What a family's numbers are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things, or yes and no.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Bytes held for so many seconds.
    ByteSeconds,
    /// 0 to 1.
    Ratio,
    /// Watts.
    Watts,
    /// Joules.
    Joules,
    /// Degrees Celsius.
    Celsius,
    /// Hertz.
    Hertz,
}

impl Unit {
    /// What a name ends with, before `_total`; empty for things.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::ByteSeconds => "byte_seconds",
            Self::Ratio => "ratio",
            Self::Watts => "watts",
            Self::Joules => "joules",
            Self::Celsius => "celsius",
            Self::Hertz => "hertz",
        }
    }
}

/// One family: a name and all the series that bear it.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// As its samples are called.
    pub name: &'static str,
    /// What its numbers are.
    pub kind: Kind,
    /// What they are counted in.
    pub unit: Unit,
    /// The labels that its series may have, separated by spaces; one whose value is not known is left out.
    pub labels: &'static str,
    /// What it means, and what its absence means.
    pub help: &'static str,
}

/// Writes tables of families: each family a static of its own, and each list of them in the order of the page.
#[macro_export]
macro_rules! families {
    ($($list:ident { $($id:ident $kind:ident $unit:ident $name:literal [$labels:literal] $help:literal;)* })*) => {
        $($(
            #[doc = concat!("`", $name, "`")]
            pub static $id: $crate::Family = $crate::Family {
                name: $name,
                kind: $crate::Kind::$kind,
                unit: $crate::Unit::$unit,
                labels: $labels,
                help: $help,
            };
        )*)*
        $(
            /// Families in the order of the page.
            pub static $list: &[&$crate::Family] = &[$(&$id),*];
        )*
    };
}
