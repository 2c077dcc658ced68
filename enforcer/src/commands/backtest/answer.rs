//! Responses of Prometheus.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

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
