//! What both daemons show themselves with: tables of metrics, the writer of their pages, and HTML that nobody's
//! name can break. It knows nothing of what is shown.

mod family;
pub mod html;
pub mod human;
mod labels;
mod odd;
pub mod own;
pub mod table;
pub mod terminal;
mod writer;

pub use family::{Family, Kind, Unit};
pub use labels::{Labels, bounded, bounded_prose};
pub use odd::is_odd;
pub use writer::{Format, Histogram, Number, PRESENT, Writer};
