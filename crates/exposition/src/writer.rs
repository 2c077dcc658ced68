//! Writer of metric pages: Prometheus text format 0.0.4 or `OpenMetrics` 1.0, from the same metric table.

use std::borrow::Borrow;
use std::io::{self, Write};

use crate::labels::is_plain;
use crate::{Family, Kind, Labels, Unit};

/// Buffer size in bytes. A page is never held in memory as a whole.
const CHUNK: usize = 32 * 1024;

/// Format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format: `text/plain; version=0.0.4`.
    Text,
    /// `OpenMetrics` format: `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

impl Format {
    /// Returns the value of the `Content-Type` header.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Value of a sample. Integers are written exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Unsigned integer.
    Whole(u64),
    /// Signed integer.
    Signed(i64),
    /// Floating-point number. A value that is not finite is not written.
    Real(f64),
    /// Percentage, written as a ratio: 50 becomes 0.5.
    Percent(u32),
}

macro_rules! from {
    ($($number:ty => $variant:ident),+) => {$(
        impl From<$number> for Number {
            fn from(number: $number) -> Self {
                Self::$variant(number.into())
            }
        }
    )+};
}
from!(u64 => Whole, u32 => Whole, bool => Whole, i64 => Signed, f64 => Real);

/// Data of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Upper bounds in rising order, each with the number of values above the previous bound.
    pub buckets: Vec<(f64, u64)>,
    /// Number of values above all bounds.
    pub larger: u64,
    /// Sum of all values.
    pub sum: f64,
}

/// A metric family and its value for a row; a row without a value has no sample.
pub type Column<R> = (&'static Family, fn(&R) -> Option<Number>);

/// Value of every info metric.
pub const PRESENT: Number = Number::Whole(1);

/// Writer of one page. It keeps the first error until the end, because an incomplete page must not be used.
pub struct Writer<'a> {
    format: Format,
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    /// The family whose HELP and TYPE lines were written last.
    headed: Option<&'static Family>,
    outcome: io::Result<()>,
}

impl<'a> Writer<'a> {
    /// Creates a writer; nothing is written yet.
    pub fn new(format: Format, out: &'a mut dyn Write) -> Self {
        Self { format, out, buffer: Vec::new(), headed: None, outcome: Ok(()) }
    }

    /// Writes one sample, after the HELP and TYPE lines if it is the first of its family.
    pub fn put(&mut self, family: &'static Family, labels: &Labels, number: impl Into<Number>) {
        self.line((family, ""), (labels.open(), None), number.into());
    }

    /// Writes one sample with one more label, whose value is not escaped.
    pub fn put_as(
        &mut self,
        (family, label, value): (&'static Family, &str, &str),
        labels: &Labels,
        number: impl Into<Number>,
    ) {
        self.line((family, ""), (labels.open(), Some((label, value))), number.into());
    }

    /// Writes one sample for each row that has a value.
    pub fn rows<'r, R, N: Into<Number>>(
        &mut self,
        family: &'static Family,
        rows: &[(impl Borrow<Labels>, &'r R)],
        value: impl Fn(&'r R) -> Option<N>,
    ) {
        for (labels, row) in rows {
            if let Some(number) = value(row) {
                self.put(family, labels.borrow(), number);
            }
        }
    }

    /// Writes any number of samples for each row, with one more label.
    pub fn rows_as<'r, R, S: IntoIterator<Item = (V, N)>, V: AsRef<str>, N: Into<Number>>(
        &mut self,
        (family, label): (&'static Family, &str),
        rows: &[(impl Borrow<Labels>, &'r R)],
        samples: impl Fn(&'r R) -> S,
    ) {
        for (labels, row) in rows {
            for (value, number) in samples(row) {
                // Nearly all values need no escapes, and are written without a copy of the labels.
                match value.as_ref() {
                    value if is_plain(value) && !value.is_empty() => {
                        self.put_as((family, label, value), labels.borrow(), number);
                    }
                    value => self.put(family, &labels.borrow().clone().with(label, value), number),
                }
            }
        }
    }

    /// Writes the families of a table, each for all rows.
    pub fn columns<'r, R>(
        &mut self,
        columns: &[(&'static Family, impl Fn(&'r R) -> Option<Number>)],
        rows: &[(impl Borrow<Labels>, &'r R)],
    ) {
        for (family, value) in columns {
            self.rows(family, rows, value);
        }
    }

    /// Writes the samples of a histogram: cumulative buckets, sum and count.
    pub fn put_histogram(&mut self, family: &'static Family, labels: &Labels, histogram: &Histogram) {
        // Other programs may have written the counts, so their sum is limited.
        let mut count = 0_u64;
        for (bound, more) in &histogram.buckets {
            count = count.saturating_add(*more);
            // `{:?}` writes the decimal point that `OpenMetrics` requires. Both formats write the same
            // series.
            let bound = format!("{bound:?}");
            self.line((family, "_bucket"), (labels.open(), Some(("le", &bound))), count.into());
        }
        count = count.saturating_add(histogram.larger);
        self.line((family, "_bucket"), (labels.open(), Some(("le", "+Inf"))), count.into());
        self.line((family, "_sum"), (labels.open(), None), histogram.sum.into());
        self.line((family, "_count"), (labels.open(), None), count.into());
    }

    /// Writes the buffered text without ending the page, so that more can be appended to it.
    ///
    /// # Errors
    /// If a write failed.
    pub fn finish(mut self) -> io::Result<()> {
        self.hand_on();
        self.outcome
    }

    /// Ends the page.
    ///
    /// # Errors
    /// If a write failed.
    pub fn end(mut self) -> io::Result<()> {
        if self.format == Format::OpenMetrics {
            self.buffer.extend_from_slice(b"# EOF\n");
        }
        self.finish()
    }

    fn line(
        &mut self,
        (family, part): (&'static Family, &str),
        (open, last): (&str, Option<(&str, &str)>),
        number: Number,
    ) {
        if matches!(number, Number::Real(real) if !real.is_finite()) {
            return;
        }
        if !self.headed.is_some_and(|headed| std::ptr::eq(headed, family)) {
            self.head(family);
        }
        self.text(family.name);
        self.text(part);
        self.text(open);
        if let Some((label, value)) = last {
            self.text(if open.is_empty() { "{" } else { "," });
            self.text(label);
            self.text("=\"");
            self.text(value);
            self.text("\"");
        }
        self.text(if open.is_empty() && last.is_none() { " " } else { "} " });
        self.number(number);
        self.text("\n");
        if self.buffer.len() >= CHUNK {
            self.hand_on();
        }
    }

    fn head(&mut self, family: &'static Family) {
        let (name, kind) = match (self.format, family.kind) {
            (Format::Text, Kind::Counter) => (family.name, "counter"),
            (Format::OpenMetrics, Kind::Counter) => (family.name.trim_end_matches("_total"), "counter"),
            (Format::OpenMetrics, Kind::Info) => (family.name.trim_end_matches("_info"), "info"),
            // The text format has no info type.
            (_, Kind::Gauge) | (Format::Text, Kind::Info) => (family.name, "gauge"),
            (_, Kind::Histogram) => (family.name, "histogram"),
        };
        self.comment(["HELP", name, family.help]);
        self.comment(["TYPE", name, kind]);
        if self.format == Format::OpenMetrics && family.unit != Unit::One {
            self.comment(["UNIT", name, family.unit.name()]);
        }
        self.headed = Some(family);
    }

    fn comment(&mut self, words: [&str; 3]) {
        self.text("#");
        for word in words {
            self.text(" ");
            self.text(word);
        }
        self.text("\n");
    }

    fn text(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: Number) {
        let written = match number {
            Number::Whole(number) => write!(self.buffer, "{number}"),
            Number::Signed(number) => write!(self.buffer, "{number}"),
            // Most real numbers are whole, and integers are written several times as fast.
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
            Number::Real(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                write!(self.buffer, "{}", number as i64)
            }
            Number::Real(number) => write!(self.buffer, "{number}"),
            Number::Percent(percent) if percent % 100 == 0 => write!(self.buffer, "{}", percent / 100),
            Number::Percent(percent) if percent % 10 == 0 => {
                write!(self.buffer, "{}.{}", percent / 100, percent / 10 % 10)
            }
            Number::Percent(percent) => write!(self.buffer, "{}.{:02}", percent / 100, percent % 100),
        };
        self.note(written);
    }

    fn hand_on(&mut self) {
        if self.outcome.is_ok() {
            self.outcome = self.out.write_all(&self.buffer);
        }
        self.buffer.clear();
    }

    fn note(&mut self, outcome: io::Result<()>) {
        if self.outcome.is_ok() {
            self.outcome = outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GPU_INFO: Family = family("bailiff_gpu_info", Kind::Info, Unit::One);
    static GPU_ENERGY: Family = family("bailiff_gpu_energy_joules_total", Kind::Counter, Unit::Joules);
    static GPU_POWER: Family = family("bailiff_gpu_power_watts", Kind::Gauge, Unit::Watts);
    static UNACCOUNTED: Family = family("bailiff_gpu_memory_unaccounted_bytes", Kind::Gauge, Unit::Bytes);
    static SNAPSHOTS: Family = family("bailiff_snapshots_total", Kind::Counter, Unit::One);
    static GAPS: Family = family("bailiff_gaps_total", Kind::Counter, Unit::One);
    static GPU_CLOCK: Family = family("bailiff_gpu_clock_hertz", Kind::Gauge, Unit::Hertz);

    const fn family(name: &'static str, kind: Kind, unit: Unit) -> Family {
        Family { name, kind, unit, labels: "gpu gap clock", help: "What it means.", detail: "" }
    }

    fn page(format: Format) -> String {
        let mut out = Vec::new();
        let mut writer = Writer::new(format, &mut out);
        let gpu = Labels::default().with("gpu", "0");
        writer.put(&GPU_INFO, &gpu, PRESENT);
        writer.put(&GPU_ENERGY, &gpu, 0.25);
        writer.put(&GPU_POWER, &gpu, f64::NAN);
        writer.put(&UNACCOUNTED, &gpu, -7_i64);
        writer.put(&SNAPSHOTS, &Labels::default(), u64::MAX);
        writer.put_as((&GAPS, "gap", "memory"), &Labels::default(), 0_u64);
        writer.put_as((&GPU_CLOCK, "clock", "sm"), &gpu, 1_980_000_000_u64);
        writer.end().expect("writing to a Vec cannot fail");
        String::from_utf8(out).expect("the text is UTF-8")
    }

    #[test]
    fn a_histogram_counts_upwards() {
        static WAITS: Family = family("bailiff_lease_wait_seconds", Kind::Histogram, Unit::Seconds);
        let mut out = Vec::new();
        let mut writer = Writer::new(Format::OpenMetrics, &mut out);
        let waits = Histogram { buckets: vec![(0.01, 2), (1.0, 0), (60.0, 3)], larger: 1, sum: 12.5 };
        writer.put_histogram(&WAITS, &Labels::default(), &waits);
        writer.end().expect("writing to a Vec cannot fail");
        let page = String::from_utf8(out).expect("the text is UTF-8");
        assert!(page.contains("# TYPE bailiff_lease_wait_seconds histogram\n"));
        let expected = [
            "bailiff_lease_wait_seconds_bucket{le=\"0.01\"} 2",
            "bailiff_lease_wait_seconds_bucket{le=\"1.0\"} 2",
            "bailiff_lease_wait_seconds_bucket{le=\"60.0\"} 5",
            "bailiff_lease_wait_seconds_bucket{le=\"+Inf\"} 6",
            "bailiff_lease_wait_seconds_sum 12.5",
            "bailiff_lease_wait_seconds_count 6",
        ];
        assert_eq!(samples(&page), expected);
    }

    #[test]
    fn a_histogram_of_huge_counts_does_not_overflow() {
        static WAITS: Family = family("bailiff_lease_wait_seconds", Kind::Histogram, Unit::Seconds);
        for waits in [
            Histogram { buckets: vec![(0.01, u64::MAX), (1.0, 1)], larger: 0, sum: 1.0 },
            Histogram { buckets: vec![(0.01, u64::MAX)], larger: u64::MAX, sum: 1.0 },
        ] {
            let mut out = Vec::new();
            let mut writer = Writer::new(Format::Text, &mut out);
            writer.put_histogram(&WAITS, &Labels::default(), &waits);
            writer.end().expect("writing to a Vec cannot fail");
            let page = String::from_utf8(out).expect("the text is UTF-8");
            assert!(page.ends_with("bailiff_lease_wait_seconds_count 18446744073709551615\n"), "{page}");
        }
    }

    fn samples(page: &str) -> Vec<&str> {
        page.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn samples_are_the_same_in_both_formats() {
        let expected = [
            "bailiff_gpu_info{gpu=\"0\"} 1",
            "bailiff_gpu_energy_joules_total{gpu=\"0\"} 0.25",
            "bailiff_gpu_memory_unaccounted_bytes{gpu=\"0\"} -7",
            "bailiff_snapshots_total 18446744073709551615",
            "bailiff_gaps_total{gap=\"memory\"} 0",
            "bailiff_gpu_clock_hertz{gpu=\"0\",clock=\"sm\"} 1980000000",
        ];
        assert_eq!(samples(&page(Format::Text)), expected);
        assert_eq!(samples(&page(Format::OpenMetrics)), expected);
    }

    #[test]
    fn heads_speak_their_format() {
        let text = page(Format::Text);
        assert!(text.contains("# TYPE bailiff_gpu_info gauge\n"));
        assert!(text.contains("# TYPE bailiff_gpu_energy_joules_total counter\n"));
        assert!(!text.contains("UNIT") && !text.contains("EOF") && !text.contains("watts"));
        let open = page(Format::OpenMetrics);
        assert!(open.contains("# TYPE bailiff_gpu info\n"));
        assert!(
            open.contains(
                "# TYPE bailiff_gpu_energy_joules counter\n# UNIT bailiff_gpu_energy_joules joules\n"
            )
        );
        assert!(open.ends_with("# EOF\n"));
    }

    #[test]
    fn a_page_that_could_not_be_written_is_no_page() {
        let mut full = [0; 8];
        let mut out = full.as_mut_slice();
        let mut writer = Writer::new(Format::Text, &mut out);
        writer.put(&SNAPSHOTS, &Labels::default(), 1_u64);
        assert!(writer.end().is_err());
    }
}
