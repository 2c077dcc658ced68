//! Types that describe a daemon's metrics. Each daemon lists its metric families in its own `metrics.rs`.

/// Type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Value that can rise and fall.
    Gauge,
    /// Value that only rises until this daemon, or the described process, restarts.
    Counter,
    /// Constant 1: the labels carry the information.
    Info,
    /// Distribution: a count for each bucket, and the sum of all values.
    Histogram,
}

/// Unit of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A count, or a flag that is 0 or 1.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Bytes multiplied by the seconds for which they were held.
    ByteSeconds,
    /// Ratio from 0 to 1.
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
    /// Returns the suffix of metric names in this unit, which precedes `_total`; empty for counts.
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

/// A metric family: all series with one metric name.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Metric name.
    pub name: &'static str,
    /// Metric type.
    pub kind: Kind,
    /// Unit of the values.
    pub unit: Unit,
    /// Label names, separated by spaces. A series omits a label if its value is unknown.
    pub labels: &'static str,
    /// HELP text: one sentence of at most 120 characters.
    pub help: &'static str,
    /// Further text for the documentation: label values, and when and why the metric is absent.
    pub detail: &'static str,
}

/// Declares a static for each metric family, and a static list of families in the order of the page. An entry
/// is `ID Kind Unit "name" ["labels"] "help"`, optionally followed by `"detail"`.
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
            /// Metric families in the order of the page.
            pub static $list: &[&$crate::Family] = &[$(&$id),*];
        )*
    };
}
