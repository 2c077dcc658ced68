//! The response headers that a web config can set.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS, X_XSS_PROTECTION,
};

use super::fault::ConfigError;
use super::written::Text;

/// Headers with their allowed values; an empty list allows any.
const KNOWN: [(&str, HeaderName, &[&str]); 5] = [
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY, &[]),
    ("X-Frame-Options", X_FRAME_OPTIONS, &["deny", "sameorigin"]),
    ("X-Content-Type-Options", X_CONTENT_TYPE_OPTIONS, &["nosniff"]),
    ("X-XSS-Protection", X_XSS_PROTECTION, &[]),
    ("Strict-Transport-Security", STRICT_TRANSPORT_SECURITY, &[]),
];

pub(super) fn understood(written: &BTreeMap<String, Text>) -> Result<HeaderMap, ConfigError> {
    written.iter().map(|(name, value)| one(name, value)).collect()
}

fn one(name: &str, text: &Text) -> Result<(HeaderName, HeaderValue), ConfigError> {
    let wrong = |why: String| ConfigError::at(text, &format!("http_server_config.headers.{name}"), why);
    let Some((_, header, values)) = KNOWN.iter().find(|(known, ..)| *known == name) else {
        let known = KNOWN.map(|(known, ..)| known).join(", ");
        return Err(wrong(format!("this header cannot be set; supported headers: {known}")));
    };
    if text.value.is_empty() {
        return Err(wrong("the value is empty; remove the key".to_owned()));
    }
    if !values.is_empty() && !values.contains(&text.value.as_str()) {
        return Err(wrong(format!("{:?} is not a valid value; use {}", text.value, values.join(" or "))));
    }
    match HeaderValue::from_str(&text.value) {
        Ok(value) => Ok((header.clone(), value)),
        Err(_) => Err(wrong("the value contains characters that are not allowed in headers".to_owned())),
    }
}
