//! How servers that are asked over TLS are believed: by the system's authorities (`SSL_CERT_FILE`), and rustls.

use std::sync::Arc;

use ureq::tls::{RootCerts, TlsConfig};

/// TLS settings of all our clients.
pub(crate) fn tls() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build()
}
