//! Calls the kubelet's pod-resources API: gRPC over HTTP/2 on a Unix socket. The sampling worker calls it in a thread of its
//! own, because only root may connect.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use bailiff_sampler::{KubeletError, KubeletMethod};
use bailiff_snapshot::Fault;
use bytes::Bytes;
use h2::RecvStream;
use h2::client;
use http::{HeaderMap, Request, StatusCode};
use tokio::net::UnixStream;
use tokio::runtime;

/// Deadline of a call, including the connection.
const DEADLINE: Duration = Duration::from_secs(2);
/// Maximum length of a response, in bytes. gRPC's own limit is 4 MiB; the kubelet permits 16 MiB.
const LONGEST: usize = 16 << 20;
/// Length of the head of a message: whether it is compressed, and its length.
const HEAD: usize = 5;
/// Maximum length of the headers of a response, in bytes.
const MOST_HEADERS: u32 = 16 << 10;
/// Number of bytes that the kubelet may send before they are read.
const WINDOW: u32 = 1 << 20;

/// Calls a method without arguments, and returns the message of the response.
///
/// # Errors
/// If there is no valid response within the deadline.
pub fn query(socket: &Path, method: KubeletMethod) -> Result<Vec<u8>, KubeletError> {
    let about = |error: &dyn Display| format!("{}: {error}", socket.display());
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(Fault::Error, about(&error)))?;
    let call = async { tokio::time::timeout(DEADLINE, call(socket, method)).await };
    match runtime.block_on(call) {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(KubeletError { fault, text })) => Err(failed(fault, about(&text))),
        Err(_) => Err(failed(Fault::Timeout, about(&"the kubelet did not respond in time"))),
    }
}

fn failed(fault: Fault, text: impl Into<String>) -> KubeletError {
    KubeletError { fault, text: text.into() }
}

async fn call(socket: &Path, method: KubeletMethod) -> Result<Vec<u8>, KubeletError> {
    let stream = connect(socket).await?;
    let broken = |error: h2::Error| failed(Fault::Error, format!("no valid HTTP/2: {error}"));
    let (sender, connection) = client::Builder::new()
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(MOST_HEADERS)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(broken)?;
    // It ends with the runtime. An error of the connection is also one of the response.
    tokio::spawn(connection);
    let mut sender = sender.ready().await.map_err(broken)?;
    let request = request(method).map_err(|error| failed(Fault::Error, error.to_string()))?;
    let (response, mut body) = sender.send_request(request, false).map_err(broken)?;
    body.send_data(Bytes::from_static(&[0; HEAD]), true).map_err(broken)?;
    let (head, mut body) = response.await.map_err(broken)?.into_parts();
    if head.status != StatusCode::OK {
        return Err(failed(Fault::Error, format!("HTTP status {}", head.status.as_u16())));
    }
    // If the call fails at once, there is no body.
    if head.headers.contains_key(STATUS) {
        check_status(&head.headers)?;
    }
    let message = read(&mut body).await?;
    let trailers = body.trailers().await.map_err(broken)?;
    check_status(&trailers.unwrap_or_default())?;
    unframed(message)
}

async fn connect(socket: &Path) -> Result<UnixStream, KubeletError> {
    let fault = |error: &io::Error| match error.kind() {
        ErrorKind::PermissionDenied => Fault::NotPermitted,
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Fault::Unreachable,
        // The queue of connections is full.
        ErrorKind::WouldBlock => Fault::Timeout,
        _ => Fault::Error,
    };
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| failed(fault(&error), format!("cannot connect: {error}")))?;
    let owner = stream.peer_cred().map_err(|error| failed(Fault::Error, error.to_string()))?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(failed(Fault::NotPermitted, format!("user {owner} listens there, not root")));
    }
    Ok(stream)
}

fn request(method: KubeletMethod) -> Result<Request<()>, http::Error> {
    let name = match method {
        KubeletMethod::List => "List",
        KubeletMethod::GetAllocatableResources => "GetAllocatableResources",
    };
    Request::post(format!("http://localhost/v1.PodResourcesLister/{name}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
}

async fn read(body: &mut RecvStream) -> Result<Vec<u8>, KubeletError> {
    let broken = |error: h2::Error| failed(Fault::Error, format!("the response broke off: {error}"));
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(broken)?;
        if message.len() + data.len() > LONGEST + HEAD {
            return Err(failed(Fault::Error, format!("the response is longer than {} MiB", LONGEST >> 20)));
        }
        message.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).map_err(broken)?;
    }
    Ok(message)
}

const STATUS: &str = "grpc-status";

/// Checks the status of a call. The message beside it is not used, because any text can be in it.
fn check_status(headers: &HeaderMap) -> Result<(), KubeletError> {
    let status = headers.get(STATUS).and_then(|status| status.to_str().ok()?.parse::<u32>().ok());
    let fault = match status {
        Some(0) => return Ok(()),
        // DEADLINE_EXCEEDED, PERMISSION_DENIED, UNAVAILABLE, UNAUTHENTICATED.
        Some(4) => Fault::Timeout,
        Some(7 | 16) => Fault::NotPermitted,
        Some(14) => Fault::Unreachable,
        Some(_) => Fault::Error,
        None => return Err(failed(Fault::Error, "the response has no gRPC status")),
    };
    Err(failed(fault, format!("gRPC status {}", status.unwrap_or_default())))
}

/// Returns the only message of a response.
fn unframed(mut message: Vec<u8>) -> Result<Vec<u8>, KubeletError> {
    let length = u32::try_from(message.len().saturating_sub(HEAD)).unwrap_or(u32::MAX);
    let [a, b, c, d] = length.to_be_bytes();
    if !message.starts_with(&[0, a, b, c, d]) {
        return Err(failed(Fault::Error, "the response is not one message without compression"));
    }
    message.drain(..HEAD);
    Ok(message)
}
