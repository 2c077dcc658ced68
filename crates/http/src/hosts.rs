//! The names under which the server can be requested. A web page of another site can let its own name resolve to
//! this server's address (DNS rebinding); a browser then lets that page read the responses. The `Host` header
//! contains the page's name, so requests with an unknown name are refused.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{ACCEPT_LANGUAGE, HOST};
use hyper::{Method, Request, Response, StatusCode, Version};

use crate::{Body, reply};

/// Flag with further names of the server.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct HostFlags {
    /// Name under which browsers can open the pages, besides addresses, localhost and the node's name; may be
    /// repeated. Scrapes and health checks work under any name.
    #[arg(long = "web.allowed-host", value_name = "NAME")]
    allowed: Vec<String>,
}

/// Names that are accepted in addition to addresses and `localhost`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(BTreeSet<String>);

impl HostFlags {
    /// Returns the given names with the name of the node.
    ///
    /// # Errors
    /// If a name contains a port or other characters that are not part of a name.
    pub fn hosts(self, node: &str) -> Result<Hosts, String> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let names = self.allowed.into_iter().map(|name| {
            if name.is_empty() || !name.bytes().all(valid) {
                return Err(format!(
                    "--web.allowed-host={name} is not a name such as node-7.example.org, without a port"
                ));
            }
            Ok(normal(&name))
        });
        Ok(Hosts(names.chain([Ok(normal(node))]).collect::<Result<_, _>>()?))
    }
}

impl Hosts {
    /// Returns the response with which a request is refused because of its host, or `None` if it is accepted.
    /// Pages `for_programs` are served under any name, because scrapes and health checks use names that the server
    /// does not know; but not to browsers, which always send `Accept-Language`.
    pub(crate) fn refusal(&self, request: &Request<()>, for_programs: bool) -> Option<Response<Body>> {
        let host = match host(request) {
            Ok(host) => host,
            Err(why) => return Some(reply::text(StatusCode::BAD_REQUEST, why)),
        };
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let is_program = for_programs && reads && !request.headers().contains_key(ACCEPT_LANGUAGE);
        if is_program || host.is_none_or(|host| self.know(host)) {
            return None;
        }
        let why = "this server is not known under this name; \
                   use its address or the name of the node, or start it with --web.allowed-host=NAME";
        Some(reply::text(StatusCode::MISDIRECTED_REQUEST, why))
    }

    fn know(&self, host: &str) -> bool {
        let name = normal(host);
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // Some programs send the zone of a link-local address, too, as in `fe80::1%25eth0`.
        let address = bracketed.and_then(|bracketed| bracketed.split('%').next());
        address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
            || name == "localhost"
            || self.0.contains(&name)
    }
}

/// Returns the requested host without its port, or `None` if an HTTP/1.0 client has sent none, which no browser does.
/// Returns an error for an invalid request (RFC 9112, 3.2).
fn host(request: &Request<()>) -> Result<Option<&str>, &'static str> {
    let invalid = "the request must have one valid Host header";
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next(), request.uri().host()) {
        // The host of an absolute URI takes precedence over the header.
        (_, None, Some(host)) => Ok(Some(host)),
        (Some(host), None, None) => {
            let host = host.to_str().map_err(|_| invalid)?;
            let port = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
            Ok(Some(port.map_or(host, |(name, _)| name)))
        }
        (None, None, None) if request.version() == Version::HTTP_10 => Ok(None),
        _ => Err(invalid),
    }
}

/// Returns a name in lower case, without the dot of a fully qualified name.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status of a refusal, or 200.
    fn status(method: &str, (host, headers): (&str, &[(&str, &str)]), for_programs: bool) -> u16 {
        let flags = HostFlags { allowed: vec!["gpu.example.org".to_owned()] };
        let hosts = flags.hosts("Node-7").unwrap();
        let mut request = Request::builder().method(method).uri("/").header(HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let refusal = hosts.refusal(&request.body(()).unwrap(), for_programs);
        refusal.map_or(200, |refusal| refusal.status().as_u16())
    }

    #[test]
    fn page_is_served_under_addresses_and_known_names_only() {
        for known in [
            "127.0.0.1",
            "127.0.0.1:9836",
            "10.1.2.3:80",
            "[::1]",
            "[2001:db8::1]:9836",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]:9836",
            "localhost:9836",
            "LOCALHOST",
            "node-7:9836",
            "NODE-7.",
            "gpu.example.org:9836",
            "GPU.example.org.:9836",
        ] {
            assert_eq!(status("GET", (known, &[]), false), 200, "{known}");
        }
        for unknown in [
            "evil.example",
            "evil.example:9836",
            "node-7.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0x7f000001",
            "2130706433",
            "::1",
            "[evil]",
            "[127.0.0.1]",
            "[evil%25::1]",
            "[%25::1]",
            "fe80::1%25eth0",
            "",
            ":9836",
        ] {
            assert_eq!(status("GET", (unknown, &[]), false), 421, "{unknown}");
            assert_eq!(status("POST", (unknown, &[]), true), 421, "{unknown}");
        }
    }

    #[test]
    fn page_for_programs_is_served_under_any_name_but_not_to_browsers() {
        assert_eq!(status("GET", ("node7.prometheus.svc:9836", &[]), true), 200);
        // A page can set any value, but cannot omit the header.
        for language in ["de", "*", ""] {
            let headers: &[_] = &[("Accept-Language", language)];
            assert_eq!(status("GET", ("evil.example", headers), true), 421, "{language:?}");
            assert_eq!(status("GET", ("localhost", headers), true), 200, "{language:?}");
        }
    }

    #[test]
    fn absolute_uri_takes_precedence_over_the_header() {
        for (uri, host, refused) in
            [("http://evil.example/", "localhost", true), ("http://localhost/", "evil.example", false)]
        {
            let request = Request::builder().uri(uri).header(HOST, host).body(()).unwrap();
            assert_eq!(Hosts::default().refusal(&request, false).is_some(), refused, "{uri}");
        }
    }

    #[test]
    fn request_without_host_is_accepted_only_with_http_1_0() {
        for (version, expected) in [(Version::HTTP_10, None), (Version::HTTP_11, Some(400))] {
            let request = Request::builder().version(version).uri("/").body(()).unwrap();
            let refusal = Hosts::default().refusal(&request, false);
            assert_eq!(refusal.map(|refusal| refusal.status().as_u16()), expected, "{version:?}");
        }
    }

    #[test]
    fn two_hosts_are_refused() {
        assert_eq!(status("GET", ("localhost", &[("Host", "evil.example")]), true), 400);
    }

    #[test]
    fn invalid_name_is_refused() {
        for name in ["", "a:1", "http://a", "a/b"] {
            let flags = HostFlags { allowed: vec![name.to_owned()] };
            let error = flags.hosts("n").unwrap_err();
            assert!(error.starts_with(&format!("--web.allowed-host={name} is not a name")), "{error}");
        }
    }
}
