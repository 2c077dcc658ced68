//! Counts responses by page and status code. Both have a fixed set of values, because clients can request any
//! path.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bailiff_http::StatusCode;

/// Pages of the exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The metrics page, at any configured path.
    Telemetry,
    /// The status page.
    Landing,
    /// The health check, `/-/healthy`.
    Healthy,
    /// The readiness check, `/-/ready`.
    Ready,
    /// Any other path.
    Other,
}

impl Page {
    const ALL: [Self; 5] = [Self::Telemetry, Self::Landing, Self::Healthy, Self::Ready, Self::Other];

    /// Returns the page at a path.
    pub fn of(path: &str, telemetry: &str) -> Self {
        let mut known = Self::ALL.into_iter().filter(|page| *page != Self::Other);
        known.find(|page| page.path(telemetry) == path).unwrap_or(Self::Other)
    }

    fn path(self, telemetry: &str) -> &str {
        match self {
            Self::Telemetry => telemetry,
            Self::Landing => "/",
            Self::Healthy => "/-/healthy",
            Self::Ready => "/-/ready",
            Self::Other => "other",
        }
    }
}

/// Status codes of the exporter's responses.
const CODES: [StatusCode; 9] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// Number of responses of one page with one status code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Path of the page.
    pub path: String,
    /// Status code.
    pub code: u16,
    /// Number of responses.
    pub requests: u64,
}

/// Response counts of all pages.
#[derive(Debug, Default)]
pub struct Requests {
    answered: [[AtomicU64; CODES.len()]; Page::ALL.len()],
    refused: AtomicU64,
}

impl Requests {
    /// Counts one response.
    pub fn count(&self, page: Page, code: StatusCode) {
        if let Some(code) = CODES.iter().position(|known| *known == code) {
            self.answered[page as usize][code].fetch_add(1, Relaxed);
        }
    }

    /// Counts one refused connection.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Returns the number of refused connections.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Returns all counts above 0.
    pub fn counts(&self, telemetry: &str) -> Vec<Count> {
        let mut counts = Vec::new();
        for page in Page::ALL {
            for (code, answered) in CODES.iter().zip(&self.answered[page as usize]) {
                let requests = answered.load(Relaxed);
                if requests > 0 {
                    counts.push(Count {
                        path: page.path(telemetry).to_owned(),
                        code: code.as_u16(),
                        requests,
                    });
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_for_the_paths_are_few() {
        let requests = Requests::default();
        for path in ["/metrics", "/a", "/b", "/"] {
            let page = Page::of(path, "/metrics");
            requests.count(page, if page == Page::Other { StatusCode::NOT_FOUND } else { StatusCode::OK });
        }
        let counts = requests.counts("/metrics");
        let counts: Vec<_> =
            counts.iter().map(|count| (count.path.as_str(), count.code, count.requests)).collect();
        assert_eq!(counts, [("/metrics", 200, 1), ("/", 200, 1), ("other", 404, 2)]);
    }
}
