//! Metric tables, the writer of metric pages, and HTML with safe escaping, shared by both daemons. The
//! metrics and pages themselves are defined elsewhere.

mod family;
pub mod html;
pub mod human;
mod labels;
pub mod own;
pub mod terminal;
mod writer;

pub use bailiff_snapshot::is_unprintable;
pub use family::{Family, Kind, Unit};
pub use labels::{Labels, bounded, bounded_prose};
pub use writer::{Column, Format, Histogram, Number, PRESENT, Writer};
