//! One connection of a client.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::Outcome;

/// A connection that is kept alive. Dropped, it is closed, whatever is under way.
pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driving: JoinHandle<()>,
}

impl Connection {
    /// Opens one.
    pub async fn open(address: SocketAddr) -> Outcome<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        let driving = tokio::spawn(async {
            let _ = connection.await;
        });
        Ok(Self { sender, driving })
    }

    /// Sends a request without a body, and returns when the head of the answer is there.
    pub async fn send(&mut self, path: &str) -> Outcome<Response<Incoming>> {
        self.sender.ready().await?;
        let request = Request::post(path).header("host", "localhost").body(Empty::new())?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Sends a request and reads the answer to its end.
    pub async fn post(&mut self, path: &str) -> Outcome<StatusCode> {
        let response = self.send(path).await?;
        let status = response.status();
        read(response).await?;
        Ok(status)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

/// Reads an answer to its end.
pub async fn read(response: Response<Incoming>) -> Outcome<()> {
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}
