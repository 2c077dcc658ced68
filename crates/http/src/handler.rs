//! What answers the requests of a server.

use hyper::{Request, Response, StatusCode};

use crate::Body;

/// What answers requests. Pages are in memory already; an answer that waits for something bounds its wait.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request; a request body is ignored.
    fn answer(&self, request: &Request<()>) -> impl Future<Output = Response<Body>> + Send;

    /// Called for each connection that was refused because there were too many.
    fn refused(&self) {}

    /// Called for each request that the web config refused, with the status that was sent.
    fn turned_away(&self, _request: &Request<()>, _status: StatusCode) {}
}
