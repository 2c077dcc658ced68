//! A plain HTTP client: one request, one answer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, socket};

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines, as they came.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Asks for a path, with header lines to add.
///
/// # Errors
/// Where the server does not answer, or not in HTTP.
pub fn get(address: SocketAddr, path: &str, headers: &[&str]) -> io::Result<Answer> {
    request(address, ("GET", path), headers)
}

/// Posts nothing to a path.
///
/// # Errors
/// Where the server does not answer, or not in HTTP.
pub fn post(address: SocketAddr, path: &str) -> io::Result<Answer> {
    request(address, ("POST", path), &["Content-Length: 0"])
}

fn request(address: SocketAddr, what: (&str, &str), headers: &[&str]) -> io::Result<Answer> {
    exchange(connect(address)?, what, headers)
}

/// A connection that gives up after ten seconds of silence.
///
/// # Errors
/// Where nobody listens.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// The same from another address of this machine, such as 127.0.0.2.
///
/// # Errors
/// Where nobody listens, or the address is not ours.
pub fn connect_from(client: IpAddr, address: SocketAddr) -> io::Result<TcpStream> {
    let family = if client.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(client, 0))?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

/// Asks by a method for a path, over any connection, and reads until the other side closes it.
///
/// # Errors
/// Where the server does not answer, or not in HTTP.
pub fn exchange(
    mut stream: impl Read + Write,
    (method, path): (&str, &str),
    headers: &[&str],
) -> io::Result<Answer> {
    let headers: String = headers.iter().flat_map(|header| [*header, "\r\n"]).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Answer { status, head, body: answer.split_off(end + 4) })
}
