//! Certificates that are signed by the test's own authorities.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd,
};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, both in PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// Creates an authority with this name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns the authority's own certificate in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate with these names that is valid for a long time.
    pub fn signs(&self, names: &[&str]) -> Pair {
        self.signs_until(2100, names)
    }

    /// Returns a certificate with these names that is valid until the start of this year.
    pub fn signs_until(&self, year: i32, names: &[&str]) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test");
        params.subject_alt_names = names.iter().map(|name| san(name)).collect();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn san(name: &str) -> SanType {
    let text = name.try_into().expect("the name is ASCII");
    match name.parse() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) if name.contains("://") => SanType::URI(text),
        Err(_) => SanType::DnsName(text),
    }
}
