//! Content negotiation by `Accept` and `Accept-Encoding` (RFC 9110, 12.5).

use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName};

/// The text format of Prometheus.
const TEXT: Media<'_> = Media { name: "text/plain", version: "0.0.4" };
/// `OpenMetrics`.
const OPEN_METRICS: Media<'_> = Media { name: "application/openmetrics-text", version: "1.0.0" };

/// Content encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Not compressed.
    Identity,
    /// `gzip`.
    Gzip,
}

/// A media type that can be served.
#[derive(Debug, Clone, Copy)]
pub struct Media<'a> {
    /// Name of the type, such as `text/plain`.
    pub name: &'a str,
    /// Value of the `version` parameter.
    pub version: &'a str,
}

/// A client's preference for a media type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    /// Whether the client named the type itself, not only a wildcard that matches it.
    pub named: bool,
    /// Quality in thousandths; 0 means not acceptable.
    pub quality: u16,
}

/// Returns the preferred content encoding. Gzip is used only if the client names it.
pub fn encoding(headers: &HeaderMap) -> Encoding {
    let mut gzip = None;
    let mut any = None;
    let mut identity = None;
    for item in items(headers, &ACCEPT_ENCODING) {
        let (name, quality) = (item.name.to_ascii_lowercase(), Some(item.quality()));
        match name.as_str() {
            "gzip" | "x-gzip" => gzip = gzip.max(quality),
            "identity" => identity = quality,
            "*" => any = quality,
            _ => {}
        }
    }
    let wanted = gzip.or(any).unwrap_or_default();
    if wanted > 0 && wanted >= identity.unwrap_or_default() { Encoding::Gzip } else { Encoding::Identity }
}

/// Returns whether the client names `OpenMetrics` and prefers it at least as much as the text format. Other
/// clients get the text format, whatever they accept, because any page is better than none.
pub fn wants_open_metrics(headers: &HeaderMap) -> bool {
    let (open, plain) = (preference(headers, OPEN_METRICS), preference(headers, TEXT));
    open.named && open.quality > 0 && open.quality >= plain.quality
}

/// Returns the client's preference for a media type. Without an `Accept` header, all types are accepted.
pub fn preference(headers: &HeaderMap, media: Media<'_>) -> Preference {
    if !headers.contains_key(ACCEPT) {
        return Preference { named: false, quality: 1000 };
    }
    let preferences = items(headers, &ACCEPT).filter_map(|item| {
        let closeness = item.closeness(media)?;
        Some((closeness, item.quality()))
    });
    // The most specific match applies, as RFC 9110 requires.
    preferences
        .max()
        .map(|(closeness, quality)| Preference { named: closeness >= 2, quality })
        .unwrap_or_default()
}

/// One element of an `Accept` or `Accept-Encoding` header.
struct Item<'a> {
    name: &'a str,
    parameters: &'a str,
}

fn items<'a>(headers: &'a HeaderMap, header: &HeaderName) -> impl Iterator<Item = Item<'a>> {
    let values = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|element| {
        let (name, parameters) = element.split_once(';').unwrap_or((element, ""));
        Item { name: name.trim(), parameters }
    })
}

impl Item<'_> {
    fn parameter(&self, wanted: &str) -> Option<&str> {
        self.parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case(wanted).then(|| value.trim().trim_matches('"'))
        })
    }

    /// Returns the quality in thousandths. An invalid quality counts as 1, as if it were absent.
    fn quality(&self) -> u16 {
        let Some(text) = self.parameter("q") else { return 1000 };
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = part.bytes().chain(*b"000").take(3);
        let thousandths = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit.wrapping_sub(b'0').min(9)));
        if whole == "0" { thousandths } else { 1000 }
    }

    /// Returns how specific the match is: 3 with the version, 2 without the version, 1 for `text/*`, 0 for
    /// `*/*`.
    fn closeness(&self, media: Media<'_>) -> Option<u8> {
        if self.name == "*/*" {
            return Some(0);
        }
        if let Some(main) = self.name.strip_suffix("/*") {
            return media
                .name
                .split('/')
                .next()
                .is_some_and(|kind| kind.eq_ignore_ascii_case(main))
                .then_some(1);
        }
        match self.parameter("version") {
            _ if !self.name.eq_ignore_ascii_case(media.name) => None,
            None => Some(2),
            Some(version) => (version == media.version).then_some(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).expect("the case is a header");
        HeaderMap::from_iter([(name, value)])
    }

    #[test]
    fn packing() {
        let cases = [
            ("gzip", Encoding::Gzip),
            ("deflate, gzip;q=0.5, br", Encoding::Gzip),
            ("GZIP", Encoding::Gzip),
            ("*", Encoding::Gzip),
            ("gzip;q=0", Encoding::Identity),
            ("gzip;q=0.000, *", Encoding::Identity),
            ("identity, gzip;q=0.5", Encoding::Identity),
            ("identity;q=0.1, gzip;q=0.5", Encoding::Gzip),
            ("br", Encoding::Identity),
            ("", Encoding::Identity),
        ];
        for (value, expected) in cases {
            assert_eq!(encoding(&headers(ACCEPT_ENCODING, value)), expected, "{value}");
        }
        assert_eq!(encoding(&HeaderMap::new()), Encoding::Identity);
    }

    #[test]
    fn accept_header_is_parsed() {
        let named = |quality| Preference { named: true, quality };
        let meant = |quality| Preference { named: false, quality };
        let cases = [
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", named(1000)),
            ("application/openmetrics-text; version=0.0.1; q=0.75, */*;q=0.1", meant(100)),
            ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6", named(600)),
            ("application/openmetrics-text;version=\"1.0.0\"", named(1000)),
            ("application/openmetrics-text;version=1.0.0;q=0, */*", named(0)),
            ("application/*;q=0.25", meant(250)),
            ("text/plain", meant(0)),
            ("", meant(0)),
        ];
        for (value, expected) in cases {
            assert_eq!(preference(&headers(ACCEPT, value), OPEN_METRICS), expected, "{value}");
        }
        assert_eq!(preference(&HeaderMap::new(), OPEN_METRICS), meant(1000));
    }

    proptest! {
        #[test]
        fn nothing_panics(value in "[ -~]{0,80}") {
            let _ = preference(&headers(ACCEPT, &value), OPEN_METRICS);
            let _ = encoding(&headers(ACCEPT_ENCODING, &value));
        }
    }
}
