//! The fields of a web config as written in the file. [`super::config`] and its sibling modules
//! interpret them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// A text with its position in the file.
pub(super) type Text = Spanned<String>;

/// The whole file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    #[serde(deserialize_with = "present")]
    pub(super) tls_server_config: Option<Spanned<Tls>>,
    #[serde(deserialize_with = "present")]
    pub(super) http_server_config: Option<Http>,
    #[serde(deserialize_with = "present")]
    pub(super) basic_auth_users: Option<Spanned<BTreeMap<String, Text>>>,
    #[serde(deserialize_with = "present")]
    pub(super) rate_limit: Option<Spanned<Rate>>,
}

/// `tls_server_config`
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    #[serde(deserialize_with = "present")]
    pub(super) cert: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) cert_file: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) key: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) key_file: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) client_ca: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) client_ca_file: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) client_auth_type: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) client_allowed_sans: Option<Spanned<Vec<Text>>>,
    #[serde(deserialize_with = "present")]
    pub(super) min_version: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) max_version: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) cipher_suites: Option<Spanned<Vec<Text>>>,
    #[serde(deserialize_with = "present")]
    pub(super) prefer_server_cipher_suites: Option<bool>,
    #[serde(deserialize_with = "present")]
    pub(super) curve_preferences: Option<Spanned<Vec<Text>>>,
}

/// `http_server_config`
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    #[serde(deserialize_with = "present")]
    pub(super) http2: Option<Spanned<bool>>,
    pub(super) headers: BTreeMap<String, Text>,
}

/// `rate_limit`
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rate {
    #[serde(deserialize_with = "present")]
    pub(super) interval: Option<Text>,
    #[serde(deserialize_with = "present")]
    pub(super) burst: Option<Spanned<u32>>,
}

/// Rejects a key without a value, which is a mistake and differs from an absent key.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(written: D) -> Result<Option<T>, D::Error> {
    T::deserialize(written).map(Some)
}
