//! Certificates and keys in PEM format, from a file or from the web config itself.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::fault::ConfigError;
use super::files::Files;
use super::written::Text;

/// Section of the web config that contains certificates and keys.
pub(super) const KEY: &str = "tls_server_config";

/// PEM text with its origin.
pub(super) struct Pem {
    bytes: Vec<u8>,
    line: u64,
    key: String,
    /// Path of the file followed by a colon, or empty for text in the config.
    of: String,
}

impl Pem {
    /// Reads the value of a key, or of the key with the suffix `_file`. Having both is an error.
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
                format!("{key} is also given; use only one of the two"),
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
            Ok(_) => Err(self.wrong("the file contains no PEM certificate")),
            Err(error) => Err(self.wrong(malformed(&error))),
        }
    }

    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, ConfigError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => self.wrong("the file contains no unencrypted PEM private key"),
            error => self.wrong(malformed(&error)),
        })
    }

    pub(super) fn wrong(&self, why: &str) -> ConfigError {
        ConfigError::new(self.line, &self.key, format!("{}{why}", self.of))
    }
}

/// Returns the error without the parser's text, which quotes a line of the file and may contain the key.
const fn malformed(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } => "invalid PEM: incomplete BEGIN line",
        pem::Error::MissingSectionEnd { .. } => {
            "invalid PEM: a section has no END line; BEGIN and END must be on separate lines"
        }
        pem::Error::Base64Decode(_) => "invalid PEM: invalid base64 between BEGIN and END",
        _ => "invalid PEM",
    }
}
