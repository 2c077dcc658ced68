//! Client of Prometheus' HTTP API. Raw samples are fetched by instant queries with a range selector, because
//! `query_range` looks back for a sample at every step, which hides gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use ureq::Agent;

use crate::commands::Failure;
use crate::commands::layout::safe;
use crate::trust;

/// Deadline of a query; a query of one hour takes seconds.
const DEADLINE: Duration = Duration::from_mins(2);
/// Maximum size of a response; a longer one is requested in smaller parts.
const LONGEST_ANSWER: u64 = 512 << 20;

/// A Prometheus server.
#[derive(Debug)]
pub(super) struct Api {
    agent: Agent,
    base: String,
    token: Option<String>,
    /// Warnings of the server.
    pub(super) warnings: BTreeSet<String>,
}

/// Why a query failed.
#[derive(Debug)]
pub(super) enum Refused {
    /// The response is too large.
    TooMuch(String),
    /// Another reason.
    Other(String),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::TooMuch(why) | Refused::Other(why) => Self::Data(why),
        }
    }
}

impl Api {
    /// Creates a client for an address such as `http://prometheus:9090`, with an optional bearer token.
    pub(super) fn new(url: &str, token: Option<String>) -> Result<Self, Failure> {
        let refused = |why: &str| Err(Failure::Settings(why.to_owned()));
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let Some(rest) = rest else {
            return refused("the URL of Prometheus must begin with http:// or https://");
        };
        if rest.split('/').next().is_some_and(|host| host.contains('@')) {
            return refused("the URL of Prometheus must not contain a password; use --token-file");
        }
        if rest.contains(['?', '#']) {
            return refused("the URL of Prometheus must not include /api/v1");
        }
        let config = Agent::config_builder()
            .timeout_global(Some(DEADLINE))
            .http_status_as_error(false)
            .tls_config(trust::tls())
            .user_agent("bailiff-enforcer");
        Ok(Self {
            agent: config.build().into(),
            base: url.trim_end_matches('/').to_owned(),
            token,
            warnings: BTreeSet::new(),
        })
    }

    /// Returns the raw samples of a selector in the time before `end`; times in milliseconds.
    pub(super) fn samples(
        &mut self,
        selector: &str,
        (end, long): (i64, i64),
    ) -> Result<Vec<Series>, Refused> {
        let query = format!("{selector}[{long}ms]");
        let time = format!("{}.{:03}", end.div_euclid(1000), end.rem_euclid(1000));
        let matrix: Matrix = self.query("/api/v1/query", &[("query", &query), ("time", &time)])?;
        if matrix.result_type != "matrix" {
            return Err(Refused::Other(
                self.describe(&format!("returned a {} for a range query", matrix.result_type)),
            ));
        }
        Ok(matrix.result)
    }

    /// Returns the label sets of a selector's series between two times in milliseconds.
    pub(super) fn series(&mut self, selector: &str, (from, to): (i64, i64)) -> Result<Vec<Labels>, Refused> {
        let seconds = |time: i64| format!("{}.{:03}", time.div_euclid(1000), time.rem_euclid(1000));
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
            Refused::Other(self.describe(&format!("aborted its response: {}", safe(&error.to_string()))))
        })?;
        if reader.limit() == 0 {
            return Err(Refused::TooMuch(self.describe("returned more than 512 MiB in one response")));
        }
        self.understand(status, &body)
    }

    fn understand<T: DeserializeOwned>(&mut self, status: u16, body: &[u8]) -> Result<T, Refused> {
        let answer: Answer<T> = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(error) => {
                // Long enough to recognize a login page or a proxy.
                let text: String = String::from_utf8_lossy(body).chars().take(100).collect();
                let describe = format!("{status}, which is not a Prometheus API response ({error}): {text}");
                return Err(Refused::Other(self.describe(&format!("returned {}", safe(&describe)))));
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
                let text = self.describe(&format!("refused: {}", safe(&format!("{kind}: {text}"))));
                let too_much = text.contains("too many samples") || kind == "timeout";
                Err(if too_much { Refused::TooMuch(text) } else { Refused::Other(text) })
            }
        }
    }

    fn describe(&self, what: &str) -> String {
        format!("Prometheus at {} {what}", safe(&self.base))
    }

    fn silent(&self, error: &ureq::Error) -> String {
        let why = match error {
            ureq::Error::Timeout(_) => format!("did not respond within {}s", DEADLINE.as_secs()),
            ureq::Error::HostNotFound => "cannot be resolved (unknown host name)".to_owned(),
            error => format!("does not respond: {}", safe(&error.to_string())),
        };
        self.describe(&why)
    }
}

/// Label names and values.
pub(super) type Labels = BTreeMap<String, String>;

/// A response of the API.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct Answer<T> {
    pub(super) status: String,
    pub(super) data: Option<T>,
    #[serde(rename = "errorType")]
    pub(super) error_type: Option<String>,
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) warnings: Vec<String>,
    #[serde(default)]
    pub(super) infos: Vec<String>,
}

/// Response to a query with a range selector.
#[derive(Debug, Deserialize)]
pub(super) struct Matrix {
    #[serde(rename = "resultType")]
    pub(super) result_type: String,
    pub(super) result: Vec<Series>,
}

/// One series with its raw samples.
#[derive(Debug, Deserialize)]
pub(super) struct Series {
    pub(super) metric: Labels,
    /// `None` for histograms.
    #[serde(default)]
    pub(super) values: Vec<Sample>,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// Milliseconds since the Unix epoch.
    pub(super) at: i64,
    /// NaN if there is none.
    pub(super) value: f64,
}

/// Reads `[1767225600.123, "0.5"]`: Prometheus writes values as text.
impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (at, value) = <(f64, &str)>::deserialize(from)?;
        let value = value.parse().map_err(|_| D::Error::custom("a value is not a number"))?;
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
}
