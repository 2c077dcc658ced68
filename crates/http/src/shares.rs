//! Shares of the connections: one client uses at most half of them, so that others are still served.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of connections of each client.
type Counts = BTreeMap<IpAddr, usize>;

/// Connections by client.
pub(crate) struct Shares {
    /// Maximum number of connections of one client.
    most: usize,
    counts: Arc<Mutex<Counts>>,
}

/// One connection of a client. It counts until this value is dropped.
pub(crate) struct Share {
    client: IpAddr,
    counts: Arc<Mutex<Counts>>,
}

impl Shares {
    /// Creates the shares of this number of connections.
    pub(crate) fn new(connections: usize) -> Self {
        Self { most: connections.div_ceil(2), counts: Arc::default() }
    }

    /// Counts a connection to this address of the server. Returns `None` if the client already has half of all connections.
    pub(crate) fn take(&self, address: IpAddr, server: Option<IpAddr>) -> Option<Share> {
        let client = connection_client(address, server);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share { client, counts: Arc::clone(&self.counts) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Loopback counts as one client, because each local user can use all of its addresses. So does a client with the
/// server's own address.
fn connection_client(address: IpAddr, server: Option<IpAddr>) -> IpAddr {
    let is_local = address.to_canonical().is_loopback() || server == Some(address);
    if is_local { Ipv4Addr::LOCALHOST.into() } else { client(address) }
}

/// Returns the client of an address. An IPv6 /64 counts as one client, because a client with one address in it can use
/// all of them (RFC 4291, 2.5.4).
pub(crate) fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_network_is_one_client() {
        let of = |text: &str| client(address(text));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn client_with_half_of_the_connections_gets_no_more_and_others_do() {
        for (own, same, other) in [
            ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"),
            ("127.0.0.1", "127.0.0.2", "10.0.0.1"),
            ("127.0.0.1", "::1", "10.0.0.1"),
        ] {
            let shares = Shares::new(4);
            let mut taken = vec![shares.take(address(own), None), shares.take(address(same), None)];
            assert!(taken.iter().all(Option::is_some), "{own}");
            assert!(
                shares.take(address(own), None).is_none() && shares.take(address(same), None).is_none(),
                "{own}"
            );
            assert!(shares.take(address(other), None).is_some(), "{other}");
            taken.pop();
            assert!(shares.take(address(own), None).is_some(), "{own}: a connection was closed");
            taken.clear();
            assert!(shares.counts.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn client_with_the_address_of_the_server_is_local() {
        let own = address("10.0.0.1");
        assert_eq!(connection_client(own, Some(own)), address("127.0.0.1"));
        assert_eq!(connection_client(address("10.0.0.2"), Some(own)), address("10.0.0.2"));
    }

    #[test]
    fn only_connection_can_be_used() {
        assert!(Shares::new(1).take(address("127.0.0.1"), None).is_some());
    }
}
