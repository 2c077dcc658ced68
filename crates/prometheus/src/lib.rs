//! Client of Prometheus' HTTP API. Raw samples are fetched by instant queries with a range selector, because
//! `query_range` looks back for a sample at every step, which hides gaps.

#![expect(clippy::disallowed_methods, reason = "reads the file of a bearer token")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bailiff_exposition::terminal::line;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// Deadline of a query; a query of one hour takes seconds.
const DEADLINE: Duration = Duration::from_mins(2);
/// Maximum size of a response; a longer one is requested in smaller parts.
const LONGEST_ANSWER: u64 = 256 << 20;

/// Returns the TLS settings of all HTTP clients: the certificate authorities of the system (`SSL_CERT_FILE`), with
/// rustls.
pub fn tls() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build()
}

/// Reads the first line of a file with a secret, such as a bearer token.
///
/// # Errors
/// If the file cannot be read.
pub fn secret(path: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.lines().next().unwrap_or_default().trim().to_owned())
}

/// Parses a time such as `2026-03-01T00:00:00Z`, or an age such as `7d`; times are since the Unix epoch. Returns `None` if
/// it is neither, or before the epoch.
pub fn moment(text: &str, now: Duration) -> Option<Duration> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return now.checked_sub(ago);
    }
    humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

/// Quotes a text for a query.
pub fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The URL of Prometheus is not supported.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the URL of Prometheus {0}")]
pub struct InvalidUrl(&'static str);

/// A Prometheus server.
#[derive(Debug)]
pub struct Api {
    agent: Agent,
    base: String,
    token: Option<String>,
    /// Warnings of the server.
    pub warnings: BTreeSet<String>,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The response is too large.
    #[error("{0}")]
    TooMuch(String),
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

impl Api {
    /// Creates a client for an address such as `http://prometheus:9090`, with an optional bearer token.
    ///
    /// # Errors
    /// If the URL is not supported.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, InvalidUrl> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let Some(rest) = rest else { return Err(InvalidUrl("must begin with http:// or https://")) };
        if rest.split('/').next().is_some_and(|host| host.contains('@')) {
            return Err(InvalidUrl("must not contain a password; use --token-file"));
        }
        if rest.contains(['?', '#']) {
            return Err(InvalidUrl("must not include /api/v1"));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(DEADLINE))
            .http_status_as_error(false)
            .tls_config(tls())
            .user_agent("bailiff");
        Ok(Self {
            agent: config.build().into(),
            base: url.trim_end_matches('/').to_owned(),
            token,
            warnings: BTreeSet::new(),
        })
    }

    /// Returns the raw samples of a selector in the time before `end`; times in milliseconds.
    ///
    /// # Errors
    /// If the query fails.
    pub fn samples(&mut self, selector: &str, (end, long): (i64, i64)) -> Result<Vec<Series>, Refused> {
        let query = format!("{selector}[{long}ms]");
        self.series_of("matrix", "/api/v1/query", &[("query", &query), ("time", &seconds(end))])
    }

    /// Returns the values of an expression from `from` to `to`, `step` apart; times in milliseconds.
    ///
    /// # Errors
    /// If the query fails.
    pub fn range(
        &mut self,
        expression: &str,
        (from, to): (i64, i64),
        step: i64,
    ) -> Result<Vec<Series>, Refused> {
        let (from, to, step) = (seconds(from), seconds(to), seconds(step));
        let wants = [("query", expression), ("start", &from), ("end", &to), ("step", &step)];
        self.series_of("matrix", "/api/v1/query_range", &wants)
    }

    /// Returns the values of an expression now, by the clock of the server, with one sample per series.
    ///
    /// # Errors
    /// If the query fails.
    pub fn instant(&mut self, expression: &str) -> Result<Vec<Series>, Refused> {
        self.series_of("vector", "/api/v1/query", &[("query", expression)])
    }

    fn series_of(&mut self, kind: &str, path: &str, wants: &[(&str, &str)]) -> Result<Vec<Series>, Refused> {
        let result: Matrix = self.query(path, wants)?;
        if result.result_type != kind {
            let found = line(&result.result_type);
            return Err(Refused::Other(self.describe(&format!("returned a {found} instead of a {kind}"))));
        }
        Ok(result.result)
    }

    /// Returns the label sets of a selector's series between two times in milliseconds.
    ///
    /// # Errors
    /// If the query fails.
    pub fn series(&mut self, selector: &str, (from, to): (i64, i64)) -> Result<Vec<Labels>, Refused> {
        let (from, to) = (seconds(from), seconds(to));
        self.query("/api/v1/series", &[("match[]", selector), ("start", &from), ("end", &to)])
    }

    fn query<T: DeserializeOwned>(&mut self, path: &str, wants: &[(&str, &str)]) -> Result<T, Refused> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.get(url).query_pairs(wants.iter().copied());
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().map_err(|error| Refused::Other(self.silent(&error)))?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        let mut reader =
            answer.body_mut().with_config().limit(LONGEST_ANSWER + 1).reader().take(LONGEST_ANSWER);
        reader.read_to_end(&mut body).map_err(|error| {
            Refused::Other(self.describe(&format!("aborted its response: {}", line(&error.to_string()))))
        })?;
        if reader.limit() == 0 {
            return Err(Refused::TooMuch(self.describe("returned more than 256 MiB in one response")));
        }
        self.understand(status, &body)
    }

    fn understand<T: DeserializeOwned>(&mut self, status: u16, body: &[u8]) -> Result<T, Refused> {
        let answer: Answer<T> = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(error) => {
                // Long enough to recognize a login page or a proxy.
                let start = String::from_utf8_lossy(&body[..body.len().min(400)]);
                let words: Vec<&str> = start.split_whitespace().collect();
                let text: String = words.join(" ").chars().take(100).collect();
                let describe = format!("{status}, which is not a Prometheus API response ({error}): {text}");
                return Err(Refused::Other(self.describe(&format!("returned {}", line(&describe)))));
            }
        };
        for warning in answer.warnings.iter().chain(&answer.infos) {
            self.warnings.insert(warning.chars().take(300).collect());
        }
        match answer.data {
            Some(data) if answer.status == "success" => Ok(data),
            _ => {
                let kind = answer.error_type.unwrap_or_else(|| status.to_string());
                let text: String = answer.error.unwrap_or_default().chars().take(300).collect();
                let text = self.describe(&format!("refused: {}", line(&format!("{kind}: {text}"))));
                let too_much = text.contains("too many samples") || kind == "timeout";
                Err(if too_much { Refused::TooMuch(text) } else { Refused::Other(text) })
            }
        }
    }

    fn describe(&self, what: &str) -> String {
        format!("Prometheus at {} {what}", line(&self.base))
    }

    fn silent(&self, error: &ureq::Error) -> String {
        let why = match error {
            ureq::Error::Timeout(_) => format!("did not respond within {}s", DEADLINE.as_secs()),
            ureq::Error::HostNotFound => "cannot be resolved (unknown host name)".to_owned(),
            error => format!("does not respond: {}", line(&error.to_string())),
        };
        self.describe(&why)
    }
}

/// Formats a time in milliseconds for a query.
fn seconds(time: i64) -> String {
    format!("{}.{:03}", time.div_euclid(1000), time.rem_euclid(1000))
}

/// Label names and values.
pub type Labels = BTreeMap<String, String>;

/// A response of the API.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct Answer<T> {
    status: String,
    data: Option<T>,
    #[serde(rename = "errorType")]
    error_type: Option<String>,
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    infos: Vec<String>,
}

/// Response to a query: a matrix or a vector.
#[derive(Debug, Deserialize)]
struct Matrix {
    #[serde(rename = "resultType")]
    result_type: String,
    result: Vec<Series>,
}

/// One series with its samples.
#[derive(Debug, Deserialize)]
pub struct Series {
    /// Labels.
    pub metric: Labels,
    /// Samples of a matrix; empty for histograms.
    #[serde(default)]
    pub values: Vec<Sample>,
    /// The sample of a vector; `None` for histograms.
    pub value: Option<Sample>,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Milliseconds since the Unix epoch.
    pub at: i64,
    /// NaN if there is none.
    pub value: f64,
}

/// Reads `[1767225600.123, "0.5"]`: Prometheus writes values as text.
impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (at, value) = <(f64, &str)>::deserialize(from)?;
        let value = value.parse().map_err(|_| D::Error::custom("a value is not a number"))?;
        if !at.is_finite() {
            return Err(D::Error::custom("a time is not a number"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "milliseconds of our times fit")]
        Ok(Self { at: (at * 1000.0).round() as i64, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_samples() {
        let text = r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"up","instance":"a"},"values":[[1767225600.123,"0.5"],[1767225601,"NaN"],[1767225602,"+Inf"]]},
            {"metric":{},"histograms":[]}]},"warnings":["slow"]}"#;
        let answer: Answer<Matrix> = serde_json::from_str(text).unwrap();
        let data = answer.data.unwrap();
        assert_eq!(answer.warnings, ["slow"]);
        assert_eq!(data.result[0].values[0], Sample { at: 1_767_225_600_123, value: 0.5 });
        assert!(data.result[0].values[1].value.is_nan() && data.result[0].values[2].value.is_infinite());
        assert!(data.result[1].values.is_empty());
    }

    #[test]
    fn url_without_scheme_or_with_password_is_refused() {
        for (url, expected) in [
            ("localhost:9090", Some("http:// or https://")),
            ("http://user:secret@localhost", Some("--token-file")),
            ("http://localhost/api/v1/query?query=up", Some("/api/v1")),
            ("https://prometheus.example/prefix/", None),
        ] {
            let error = Api::new(url, None).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }

    #[test]
    fn moments_are_times_or_ages() {
        let now = Duration::from_hours(490_896);
        let day = Duration::from_hours(24);
        let cases = [
            ("2026-01-01T00:00:00Z", Some(now)),
            ("1d", Some(now.saturating_sub(day))),
            ("0s", Some(now)),
            ("2025-12-31T00:00:00Z", Some(now.saturating_sub(day))),
            ("yesterday", None),
            ("1960-01-01T00:00:00Z", None),
            ("900000d", None),
        ];
        for (text, expected) in cases {
            assert_eq!(moment(text, now), expected, "{text}");
        }
    }
}
