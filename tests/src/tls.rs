//! A TLS client: one request and response, or a raw connection.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned, crypto::ring};

use crate::certificates::{Authority, Pair};
use crate::http::{self, Answer};

/// Returns the settings of a server with this certificate.
///
/// # Panics
/// If the certificate is invalid.
pub fn server(pair: &Pair) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    let chain = vec![certificate(&pair.certificate)];
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions that there are")
        .with_no_client_auth();
    Arc::new(builder.with_single_cert(chain, key).expect("a certificate and its key"))
}

/// A connection.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// The trusted authority and the client's own certificate.
pub struct Client(Arc<ClientConfig>);

impl Client {
    /// Returns a client that trusts an authority and presents a certificate, if it has one.
    ///
    /// # Panics
    /// If the authority or the certificate is invalid.
    pub fn new(authority: &Authority, shows: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&authority.pem())).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions that there are")
            .with_root_certificates(roots);
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
                let chain = vec![certificate(&pair.certificate)];
                builder.with_client_auth_cert(chain, key).expect("a certificate and its key")
            }
        };
        Self(Arc::new(config))
    }

    /// Returns a connection after its handshake.
    ///
    /// # Errors
    /// If the connection or the handshake fails.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let name = ServerName::from(address.ip());
        let connection = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, http::connect(address)?);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// If the server does not respond.
    pub fn get(&self, address: SocketAddr, path: &str, headers: &[&str]) -> io::Result<Answer> {
        http::exchange(self.connect(address)?, ("GET", path), headers)
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate in PEM")
}
