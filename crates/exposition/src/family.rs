//! Types of a metric table. Each daemon has its own table in its `metrics.rs`.

/// Type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up, until its process or this one restarts.
    Counter,
    /// Always 1: the labels carry the information.
    Info,
    /// Counts by size: in buckets, with their sum.
    Histogram,
}

/// Unit of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A count, or 0 and 1.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Bytes held, integrated over seconds.
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
    /// Suffix of the name, before `_total`; empty for counts.
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

/// A metric family: a name and its series.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of its samples.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Label names, separated by spaces. A label of unknown value is left out of the series.
    pub labels: &'static str,
    /// HELP text: one sentence of at most [`table::HELP_CHARS`](crate::table::HELP_CHARS) characters.
    pub help: &'static str,
    /// Label values, and when and why the family is absent; for the documentation.
    pub detail: &'static str,
}

/// Declares metric families: a static for each family, and each list of them in the order of the page. An entry is
/// `ID Kind Unit "name" ["labels"] "help"`, optionally followed by `"detail"`.
#[macro_export]
macro_rules! families {
    ($($list:ident { $($id:ident $kind:ident $unit:ident $name:literal [$labels:literal] $help:literal $($detail:literal)?;)* })*) => {
        $($(
            #[doc = concat!("`", $name, "`")]
            pub static $id: $crate::Family = $crate::Family {
                name: $name,
                kind: $crate::Kind::$kind,
                unit: $crate::Unit::$unit,
                labels: $labels,
                help: $help,
                detail: concat!($($detail)?),
            };
        )*)*
        $(
            /// Families in the order of the page.
            pub static $list: &[&$crate::Family] = &[$(&$id),*];
        )*
    };
}
