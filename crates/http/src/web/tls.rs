//! `tls_server_config`: which certificate is shown, which clients are believed, and by which cryptography.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use serde_saphyr::Spanned;
use tokio_rustls::TlsAcceptor;

use super::clients::{self, Clients};
use super::fault::ConfigError;
use super::files::Files;
use super::written::{self, Text};
use super::{choice, written::Tls as Written};

const KEY: &str = "tls_server_config";

/// How connections are opened.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(super) clients: Clients,
}

/// PEM text of a file or of the config itself, and its origin.
pub(super) struct Pem {
    bytes: Vec<u8>,
    line: u64,
    key: String,
    /// The file's path and a colon, where it is in one.
    of: String,
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
    // A session that is taken up again shows no certificate: it may have expired, or been withdrawn.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), clients })
}

fn missing(section: &Spanned<written::Tls>, key: &str) -> ConfigError {
    ConfigError::at(section, KEY, format!("it has no {key}; TLS needs cert_file and key_file"))
}

fn unfit(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key does not belong to this certificate".to_owned(),
        error => format!("it cannot be shown to clients: {error}"),
    }
}

/// Our own message: the error's text quotes a line of the file, which may be the key.
const fn malformed(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } => "it is no PEM: a BEGIN line is torn",
        pem::Error::MissingSectionEnd { .. } => {
            "it is no PEM: a section has no END line; each of both is a line of its own"
        }
        pem::Error::Base64Decode(_) => "it is no PEM: between BEGIN and END is no base64",
        _ => "it is no PEM",
    }
}

impl Pem {
    /// Of the key itself, or of the key with `_file`; never of both.
    pub(super) fn of(
        (inline, file): (&Option<Text>, &Option<Text>),
        key: &str,
        files: &mut Files,
    ) -> Result<Option<Self>, ConfigError> {
        let key = format!("{KEY}.{key}");
        match (inline, file) {
            (None, None) => Ok(None),
            (Some(_), Some(file)) => Err(ConfigError::at(
                file,
                &format!("{key}_file"),
                format!("{key} is there too; write one of the two"),
            )),
            (Some(inline), None) => Ok(Some(Self {
                bytes: inline.value.clone().into_bytes(),
                line: inline.referenced.line(),
                key,
                of: String::new(),
            })),
            (None, Some(file)) => {
                let key = format!("{key}_file");
                let of = format!("{}: ", files.place(&file.value).display());
                let bytes = files.read(file.value.as_ref());
                let bytes = bytes.map_err(|why| ConfigError::at(file, &key, format!("{of}{why}")))?;
                Ok(Some(Self { bytes, line: file.referenced.line(), key, of }))
            }
        }
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(self.wrong("there is no certificate in it, in PEM")),
            Err(error) => Err(self.wrong(malformed(&error))),
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, ConfigError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                self.wrong("there is no private key in it, in PEM and without a passphrase")
            }
            error => self.wrong(malformed(&error)),
        })
    }

    pub(super) fn wrong(&self, why: &str) -> ConfigError {
        ConfigError::new(self.line, &self.key, format!("{}{why}", self.of))
    }
}

/// The cryptography that there is, before the admin chose.
pub(super) fn all() -> CryptoProvider {
    ring::default_provider()
}
