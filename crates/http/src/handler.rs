//! Handler of requests.

use hyper::{Request, Response, StatusCode};

use crate::Body;

/// Handles requests. Pages are in memory; a handler that waits for something must limit the wait.
pub trait Handler: Send + Sync + 'static {
    /// Returns the response. Request bodies are ignored.
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send;

    /// Called for each connection that was refused because there were too many connections.
    fn refused(&self) {}

    /// Called for each request that the web config refused, with the status of the response.
    fn turned_away(&self, _request: &Request<()>, _status: StatusCode) {}
}
