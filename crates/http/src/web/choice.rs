//! TLS versions, cipher suites and curves in the web config, under the names that Go uses.

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, kx_group};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::fault::ConfigError;
use super::written::{Text, Tls};

const SUITES: &str = "tls_server_config.cipher_suites";
const CURVES: &str = "tls_server_config.curve_preferences";

/// Returns the configured cipher suites and curves, in order of preference.
pub(super) fn provider(written: &Tls) -> Result<CryptoProvider, ConfigError> {
    let mut provider = ring::default_provider();
    if let Some(names) = written.cipher_suites.as_ref().filter(|names| !names.value.is_empty()) {
        let versions = versions(written)?;
        let chosen = names.value.iter().map(|name| suite(name, &provider.cipher_suites, &versions));
        let mut chosen: Vec<SupportedCipherSuite> = chosen.collect::<Result<_, _>>()?;
        // As in Go, the list applies to TLS 1.2. If it contains no TLS 1.3 suite, all TLS 1.3 suites are enabled.
        if versions.contains(&&TLS13) && !chosen.iter().any(|suite| suite.version() == &TLS13) {
            chosen.extend(provider.cipher_suites.iter().filter(|suite| suite.version() == &TLS13));
        }
        if versions.contains(&&TLS12) && !chosen.iter().any(|suite| suite.version() == &TLS12) {
            let why = "the list contains no cipher suite for TLS12; add one, or set min_version: TLS13";
            return Err(ConfigError::at(names, SUITES, why));
        }
        provider.cipher_suites = chosen;
    }
    if let Some(names) = written.curve_preferences.as_ref().filter(|names| !names.value.is_empty()) {
        provider.kx_groups = names.value.iter().map(curve).collect::<Result<_, _>>()?;
    }
    Ok(provider)
}

/// Returns the enabled versions.
pub(super) fn versions(written: &Tls) -> Result<Vec<&'static SupportedProtocolVersion>, ConfigError> {
    let low = version(written.min_version.as_ref(), "min_version", 12)?;
    let high = version(written.max_version.as_ref(), "max_version", 13)?;
    if let Some(text) = written.max_version.as_ref().filter(|_| low > high) {
        return Err(ConfigError::at(
            text,
            "tls_server_config.max_version",
            "max_version is below min_version",
        ));
    }
    let all = [(12, &TLS12), (13, &TLS13)];
    Ok(all
        .into_iter()
        .filter(|(number, _)| (low..=high).contains(number))
        .map(|(_, version)| version)
        .collect())
}

fn version(text: Option<&Text>, key: &str, default: u8) -> Result<u8, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    let key = format!("tls_server_config.{key}");
    match text.value.as_str() {
        "TLS12" => Ok(12),
        "TLS13" => Ok(13),
        old @ ("TLS10" | "TLS11") => Err(ConfigError::at(
            text,
            &key,
            format!("{old} is insecure and not supported; use TLS12 or TLS13"),
        )),
        other => Err(ConfigError::at(
            text,
            &key,
            format!("{other:?} is not a supported version; use TLS12 or TLS13"),
        )),
    }
}

fn suite(
    name: &Text,
    all: &[SupportedCipherSuite],
    versions: &[&SupportedProtocolVersion],
) -> Result<SupportedCipherSuite, ConfigError> {
    let Some(suite) = all.iter().find(|suite| go_name(suite) == name.value) else {
        let known = all.iter().map(go_name).collect::<Vec<_>>().join(", ");
        let why = format!(
            "{} is not supported; only suites with AEAD and forward secrecy are supported: {known}",
            name.value
        );
        return Err(ConfigError::at(name, SUITES, why));
    };
    if !versions.contains(&suite.version()) {
        let why = format!(
            "{} belongs to a TLS version that min_version or max_version excludes; remove it",
            name.value
        );
        return Err(ConfigError::at(name, SUITES, why));
    }
    Ok(*suite)
}

fn go_name(suite: &SupportedCipherSuite) -> String {
    suite.suite().as_str().unwrap_or_default().replace("TLS13_", "TLS_")
}

fn curve(name: &Text) -> Result<&'static dyn rustls::crypto::SupportedKxGroup, ConfigError> {
    match name.value.as_str() {
        "X25519" => Ok(kx_group::X25519),
        "CurveP256" => Ok(kx_group::SECP256R1),
        "CurveP384" => Ok(kx_group::SECP384R1),
        other => Err(ConfigError::at(
            name,
            CURVES,
            format!("{other} is not supported; choose from X25519, CurveP256, CurveP384"),
        )),
    }
}
