//! A plain HTTP client: one request, one response.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, socket};

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines, unchanged.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends a GET request with additional header lines.
///
/// # Errors
/// If the server does not respond, or if the response is not HTTP.
pub fn get(address: SocketAddr, path: &str, headers: &[&str]) -> io::Result<Answer> {
    request(address, ("GET", path), headers)
}

/// Sends an empty POST request.
///
/// # Errors
/// If the server does not respond, or if the response is not HTTP.
pub fn post(address: SocketAddr, path: &str) -> io::Result<Answer> {
    request(address, ("POST", path), &["Content-Length: 0"])
}

fn request(address: SocketAddr, what: (&str, &str), headers: &[&str]) -> io::Result<Answer> {
    exchange(connect(address)?, what, headers)
}

/// Returns a connection with a timeout of ten seconds.
///
/// # Errors
/// If no server is listening.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// Returns a connection from another local address, such as 127.0.0.2. It has no timeout.
///
/// # Errors
/// If no server is listening, or if the address is not local.
pub fn connect_from(client: IpAddr, address: SocketAddr) -> io::Result<TcpStream> {
    let family = if client.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(client, 0))?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

/// Sends a request over any connection, and reads until the server closes it.
///
/// # Errors
/// If the server does not respond, or if the response is not HTTP.
pub fn exchange(
    mut stream: impl Read + Write,
    (method, path): (&str, &str),
    headers: &[&str],
) -> io::Result<Answer> {
    let host = (!headers.iter().any(|header| header.starts_with("Host:"))).then_some("Host: localhost");
    let headers: String = host.iter().chain(headers).flat_map(|header| [*header, "\r\n"]).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Answer { status, head, body: answer.split_off(end + 4) })
}
