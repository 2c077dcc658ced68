//! Verification of client certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::fault::ConfigError;
use super::files::Files;
use super::names::Named;
use super::pem::Pem;
use super::written::Tls;

const KEY: &str = "tls_server_config.client_auth_type";
const SANS: &str = "tls_server_config.client_allowed_sans";

/// Requirements on client certificates, in increasing order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Clients {
    /// No client certificate is required.
    #[default]
    Any,
    /// A client certificate is optional, but must be valid.
    VerifiedIfGiven,
    /// A valid certificate is required.
    Verified,
    /// A valid certificate with an allowed name is required.
    Named,
}

type Verifier = Arc<dyn ClientCertVerifier>;

pub(super) fn understood(
    written: &Tls,
    provider: &Arc<CryptoProvider>,
    files: &mut Files,
) -> Result<(Clients, Verifier), ConfigError> {
    let authorities = Pem::of((&written.client_ca, &written.client_ca_file), "client_ca", files)?;
    let wanted = wanted(written)?;
    let Some(authorities) = authorities else {
        return match &written.client_auth_type {
            Some(text) if wanted != Clients::Any => Err(ConfigError::at(
                text,
                KEY,
                "client_ca_file is missing, so client certificates cannot be verified",
            )),
            _ => Ok((wanted, WebPkiClientVerifier::no_client_auth())),
        };
    };
    if wanted == Clients::Any {
        let why = "client certificates are not requested; set client_auth_type: RequireAndVerifyClientCert";
        return Err(authorities.wrong(why));
    }
    let mut roots = RootCertStore::empty();
    for certificate in authorities.certificates()? {
        roots.add(certificate).map_err(|error| authorities.wrong(&error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = if wanted == Clients::VerifiedIfGiven { builder.allow_unauthenticated() } else { builder };
    let verifier = builder.build().map_err(|error| authorities.wrong(&error.to_string()))?;
    match &written.client_allowed_sans {
        None => Ok((wanted, verifier)),
        Some(names) => Ok((Clients::Named, Arc::new(Named::new(verifier, &names.value)?))),
    }
}

fn wanted(written: &Tls) -> Result<Clients, ConfigError> {
    let Some(text) = &written.client_auth_type else { return named(written, Clients::Any) };
    let kind = match text.value.as_str() {
        "NoClientCert" => Clients::Any,
        "VerifyClientCertIfGiven" => Clients::VerifiedIfGiven,
        "RequireAndVerifyClientCert" => Clients::Verified,
        "RequestClientCert" | "RequireAnyClientCert" | "RequireClientCert" => {
            let why = format!(
                "{} does not verify certificates, so it would admit every client; use RequireAndVerifyClientCert or NoClientCert",
                text.value
            );
            return Err(ConfigError::at(text, KEY, why));
        }
        other => {
            let why = format!(
                "{other:?} is not a valid value; use NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert"
            );
            return Err(ConfigError::at(text, KEY, why));
        }
    };
    named(written, kind)
}

/// Returns the requirement with the allowed names, which apply only if a certificate is required.
fn named(written: &Tls, kind: Clients) -> Result<Clients, ConfigError> {
    match &written.client_allowed_sans {
        Some(names) if names.value.is_empty() => {
            Err(ConfigError::at(names, SANS, "the list is empty; to allow every name, remove the key"))
        }
        Some(names) if kind != Clients::Verified => Err(ConfigError::at(
            names,
            SANS,
            "this key requires client_auth_type: RequireAndVerifyClientCert",
        )),
        _ => Ok(kind),
    }
}
