//! The fields of a web config as written in the file. [`super::config`] and its sibling modules
//! interpret them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use serde_with_macros::apply;

/// A text with its position in the file.
pub(super) type Text = Spanned<String>;

/// The whole file.
#[apply(crate = "serde_with_macros", Option => #[serde(deserialize_with = "present")])]
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) tls_server_config: Option<Spanned<Tls>>,
    pub(super) http_server_config: Option<Http>,
    pub(super) basic_auth_users: Option<Spanned<BTreeMap<String, Text>>>,
    pub(super) rate_limit: Option<Spanned<Rate>>,
}

/// `tls_server_config`
#[apply(crate = "serde_with_macros", Option => #[serde(deserialize_with = "present")])]
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    pub(super) cert: Option<Text>,
    pub(super) cert_file: Option<Text>,
    pub(super) key: Option<Text>,
    pub(super) key_file: Option<Text>,
    pub(super) client_ca: Option<Text>,
    pub(super) client_ca_file: Option<Text>,
    pub(super) client_auth_type: Option<Text>,
    pub(super) client_allowed_sans: Option<Spanned<Vec<Text>>>,
    pub(super) min_version: Option<Text>,
    pub(super) max_version: Option<Text>,
    pub(super) cipher_suites: Option<Spanned<Vec<Text>>>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
    pub(super) curve_preferences: Option<Spanned<Vec<Text>>>,
}

/// `http_server_config`
#[apply(crate = "serde_with_macros", Option => #[serde(deserialize_with = "present")])]
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    pub(super) http2: Option<Spanned<bool>>,
    pub(super) headers: BTreeMap<String, Text>,
}

/// `rate_limit`
#[apply(crate = "serde_with_macros", Option => #[serde(deserialize_with = "present")])]
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rate {
    pub(super) interval: Option<Text>,
    pub(super) burst: Option<Spanned<u32>>,
}

/// Rejects a key without a value, which is a mistake and differs from an absent key.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(written: D) -> Result<Option<T>, D::Error> {
    T::deserialize(written).map(Some)
}
