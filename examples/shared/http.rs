//! Real requests over real connections.

use std::fmt::Write as _;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Failure;

/// The longest body: more than the examples send.
const LONGEST: usize = 64 * 1024;

/// Why there was no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// There was no connection, so the server has not seen the request.
    Unconnected,
    /// The connection ended before the answer did. It is unknown what the server has done.
    Broken,
}

/// An HTTP client with a pool of connections. Clones share it.
#[derive(Clone, Debug)]
pub struct HttpClient(legacy::Client<HttpConnector, Body>);

impl HttpClient {
    /// A client without connections.
    #[must_use]
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(legacy::Client::builder(TokioExecutor::new()).build(connector))
    }

    /// Sends a request and reads all of the answer.
    ///
    /// # Errors
    /// If there is no whole answer.
    pub async fn send(&self, parts: Parts, body: Bytes) -> Result<Response<Bytes>, NoAnswer> {
        let request = Request::from_parts(parts, Body::from(body));
        let response = self.0.request(request).await.map_err(|error| match error.is_connect() {
            true => NoAnswer::Unconnected,
            false => NoAnswer::Broken,
        })?;
        let (parts, body) = response.into_parts();
        let body = to_bytes(Body::new(body), LONGEST).await.map_err(|_| NoAnswer::Broken)?;
        Ok(Response::from_parts(parts, body))
    }

    /// Sends a request without special headers.
    ///
    /// # Errors
    /// If there is no whole answer.
    pub async fn call(&self, method: Method, uri: &str, body: String) -> Result<Response<Bytes>, NoAnswer> {
        let request = Request::builder().method(method).uri(uri).body(()).map_err(|_| NoAnswer::Unconnected)?;
        self.send(request.into_parts().0, body.into()).await
    }
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a text as one segment of a path: all but letters, digits and `-._~` is escaped. A client
/// that may choose the text cannot change the rest of the path, or the query, by it.
#[must_use]
pub fn segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => segment.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => segment.push(char::from(byte)),
            byte => drop(write!(segment, "%{byte:02X}")),
        }
    }
    segment
}

/// Serves a router in a task, on this port of this machine; 0 means any free port. Returns the
/// address.
///
/// # Errors
/// If it cannot listen on the port.
pub async fn serve(router: Router, port: u16) -> Result<(String, JoinHandle<()>), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = format!("http://{}", listener.local_addr()?);
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            eprintln!("a server stopped: {error}");
        }
    });
    Ok((address, task))
}
