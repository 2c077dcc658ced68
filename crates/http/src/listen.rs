//! Opens listening sockets, with errors that name the fix.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};

use bailiff_lifecycle::exit::plain;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process is listening on the address.
    #[error(
        "cannot listen on {0}: address already in use; check whether another instance is running, or choose another address with --web.listen-address"
    )]
    InUse(String),
    /// The address does not belong to this machine, permission was denied, or another error
    /// occurred.
    #[error("cannot listen on {0}: {why}", why = plain(.1))]
    Other(String, io::Error),
}

/// Returns whether a text looks like `HOST:PORT`. An empty host means all addresses.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'))
    })
}

/// Opens a socket for each address.
///
/// # Errors
/// If a socket cannot be opened. The remaining addresses are then not tried.
pub fn open(addresses: &[String]) -> Result<Vec<TcpListener>, ListenError> {
    addresses.iter().map(|address| open_one(address)).collect()
}

fn open_one(address: &str) -> Result<TcpListener, ListenError> {
    let every = format!("[::]{address}");
    let wanted = if address.starts_with(':') { every.as_str() } else { address };
    let opened = wanted.to_socket_addrs().and_then(|found| {
        let found: Vec<_> = found.collect();
        let listener = TcpListener::bind(found.as_slice())?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address.to_owned()),
        _ => ListenError::Other(address.to_owned(), error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:9836", ":9836", "localhost:0", "[::1]:9836"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["9836", "localhost", "::1:9836", "localhost:http", "localhost:70000", ""] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn port_in_use_is_reported_with_its_address() {
        let first = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = first.local_addr().expect("the listener is bound").to_string();
        let error = open(std::slice::from_ref(&address)).expect_err("the address is in use");
        assert!(
            error.to_string().starts_with(&format!("cannot listen on {address}: address already in use"))
        );
    }
}
