//! Verifies that a valid client certificate contains one of the allowed names.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use webpki::EndEntityCert;

use super::fault::ConfigError;
use super::written::Text;

/// A subject alternative name, which must match exactly.
#[derive(Debug)]
enum Name {
    Dns(String),
    Ip(IpAddr),
    Uri(String),
}

/// Requires a valid certificate with one of these names.
#[derive(Debug)]
pub(super) struct Named {
    inner: Arc<dyn ClientCertVerifier>,
    allowed: Vec<Name>,
}

impl Named {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, names: &[Text]) -> Result<Self, ConfigError> {
        let allowed = names.iter().map(understood).collect::<Result<_, _>>()?;
        Ok(Self { inner, allowed })
    }

    fn allows(&self, certificate: &EndEntityCert<'_>) -> bool {
        self.allowed.iter().any(|name| match name {
            Name::Dns(wanted) => certificate.valid_dns_names().any(|dns| dns == wanted),
            Name::Uri(wanted) => certificate.valid_uri_names().any(|uri| uri == wanted),
            Name::Ip(ip) => {
                let name = ServerName::IpAddress((*ip).into());
                certificate.verify_is_valid_for_subject_name(&name).is_ok()
            }
        })
    }
}

fn understood(text: &Text) -> Result<Name, ConfigError> {
    let name = &text.value;
    if let Ok(ip) = name.parse() {
        return Ok(Name::Ip(ip));
    }
    if name.contains(':') {
        return Ok(Name::Uri(name.clone()));
    }
    if name.is_empty() || name.contains('@') {
        let why = format!("{name:?} is not a DNS name, IP address or URI; other names are not supported");
        return Err(ConfigError::at(text, "tls_server_config.client_allowed_sans", why));
    }
    Ok(Name::Dns(name.clone()))
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        let understood = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
        if self.allows(&understood) { Ok(verified) } else { Err(CertificateError::NotValidForName.into()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
