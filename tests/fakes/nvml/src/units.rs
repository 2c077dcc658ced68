//! Quantities in a scenario: a whole number with a unit. The unit is required.

use serde::Deserialize;

/// A whole number in the first unit, written with any of the listed units.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident: $($unit:literal = $factor:expr),*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
        #[serde(try_from = "String")]
        pub(crate) struct $name(pub(crate) u64);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                read(&text, &[$(($unit, $factor)),*]).map(Self)
            }
        }
    };
}

quantity!(
    /// Memory.
    Bytes: "B" = 1, "KiB" = 1 << 10, "MiB" = 1 << 20, "GiB" = 1 << 30
);
quantity!(
    /// A time in microseconds, which is the driver's unit.
    Micros: "us" = 1, "ms" = 1_000, "s" = 1_000_000, "m" = 60_000_000, "h" = 3_600_000_000
);
quantity!(
    /// Power in milliwatts.
    Milliwatts: "mW" = 1, "W" = 1_000
);
quantity!(
    /// Energy in millijoules.
    Millijoules: "mJ" = 1, "J" = 1_000, "kJ" = 1_000_000
);

fn read(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let factor = units.iter().find(|row| row.0 == unit.trim_start()).map(|row| row.1);
    let number = digits.parse::<u64>().ok();
    number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor)).ok_or_else(|| {
        let names: Vec<&str> = units.iter().map(|row| row.0).collect();
        format!("{text:?} is not a whole number with one of the units {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_needs_its_unit() {
        let cases = [
            ("512MiB", Ok(512 << 20)),
            ("0B", Ok(0)),
            ("2 GiB", Ok(2 << 30)),
            ("512", Err(())),
            ("8GB", Err(())),
            ("-1MiB", Err(())),
            ("MiB", Err(())),
            ("18446744073709551615GiB", Err(())),
        ];
        for (text, expected) in cases {
            assert_eq!(
                Bytes::try_from(text.to_owned()).map(|bytes| bytes.0).map_err(drop),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn times_are_microseconds_and_energy_is_millijoules() {
        assert_eq!(Micros::try_from("167ms".to_owned()), Ok(Micros(167_000)));
        assert_eq!(Micros::try_from("2m".to_owned()), Ok(Micros(120_000_000)));
        assert_eq!(Milliwatts::try_from("120W".to_owned()), Ok(Milliwatts(120_000)));
        assert_eq!(Millijoules::try_from("1kJ".to_owned()), Ok(Millijoules(1_000_000)));
    }
}
