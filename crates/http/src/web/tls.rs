//! `tls_server_config`: the server's certificate, requirements on clients, and cryptographic
//! settings.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use serde_saphyr::Spanned;
use tokio_rustls::TlsAcceptor;

use super::clients::{self, Clients};
use super::fault::ConfigError;
use super::files::Files;
use super::pem::{KEY, Pem};
use super::written;
use super::{choice, written::Tls as Written};

/// TLS for accepted connections.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(super) clients: Clients,
}

pub(super) fn understood(section: &Spanned<Written>, files: &mut Files) -> Result<Tls, ConfigError> {
    let written = &section.value;
    let certificate = Pem::of((&written.cert, &written.cert_file), "cert", files)?;
    let certificate = certificate.ok_or_else(|| missing(section, "cert_file"))?;
    let key = Pem::of((&written.key, &written.key_file), "key", files)?;
    let key = key.ok_or_else(|| missing(section, "key_file"))?;
    let provider = Arc::new(choice::provider(written)?);
    let (clients, verifier) = clients::understood(written, &provider, files)?;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&choice::versions(written)?)
        .map_err(|error| ConfigError::at(section, KEY, error.to_string()))?
        .with_client_cert_verifier(verifier);
    let mut config = builder
        .with_single_cert(certificate.certificates()?, key.private_key()?)
        .map_err(|error| certificate.wrong(&unfit(&error)))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ignore_client_order = written.prefer_server_cipher_suites.unwrap_or(true);
    // Session resumption is disabled, because the client would not present its certificate again, which
    // may have expired or been revoked.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), clients })
}

fn missing(section: &Spanned<written::Tls>, key: &str) -> ConfigError {
    ConfigError::at(section, KEY, format!("{key} is missing; TLS requires cert_file and key_file"))
}

fn unfit(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key does not match this certificate".to_owned(),
        error => format!("the certificate cannot be used: {error}"),
    }
}
