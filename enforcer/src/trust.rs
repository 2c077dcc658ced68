//! TLS verification of servers: certificate authorities of the system (`SSL_CERT_FILE`), with rustls.

use std::sync::Arc;

use ureq::tls::{RootCerts, TlsConfig};

/// Returns the TLS settings of all HTTP clients.
pub(crate) fn tls() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build()
}
