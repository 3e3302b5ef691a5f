//! A real server, a real client, and a stage on which a test controls the handlers.

mod stage;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

pub(crate) use stage::{Events, Stage};

/// Longer than anything takes here. Only a failing test waits this long.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Awaits a future that must resolve soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("this did not happen: {what}"),
    }
}

/// Returns the message with which a call panics.
pub(crate) fn panic_of<T>(call: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).map(drop).expect_err("a panic");
    *panic.downcast::<String>().expect("a message with values")
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Makes a test of each async function, once for HTTP/1.1 and once for HTTP/2.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn over_http1() {
                $crate::common::soon("the end of the test", super::$name($crate::common::Protocol::Http1)).await;
            }

            #[tokio::test]
            async fn over_http2() {
                $crate::common::soon("the end of the test", super::$name($crate::common::Protocol::Http2)).await;
            }
        }
    )*};
}

pub(crate) struct Server {
    address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        Self::serve(|listener, stopped| async move {
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        })
        .await
    }

    /// Requests have the address of the connection's peer.
    #[cfg(feature = "axum")]
    pub(crate) async fn start_with_peers(app: Router) -> Self {
        let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
        Self::serve(|listener, stopped| async move {
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        })
        .await
    }

    async fn serve<F>(serve: impl FnOnce(TcpListener, BoxFuture<'static, ()>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = Box::pin(async {
            let _ = stopped.await;
        });
        Self { address, stop: Some(stop), task: tokio::spawn(serve(listener, stopped)) }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    pub(crate) async fn client(&self, protocol: Protocol) -> Client {
        Client::connect(self.address, protocol).await
    }

    pub(crate) fn begin_shutdown(&mut self) {
        let _ = self.stop.take().expect("only once").send(());
    }

    pub(crate) async fn stopped(&mut self) {
        soon("the server stops", &mut self.task).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
enum Sender {
    Http1(Arc<Mutex<conn::http1::SendRequest<Full<Bytes>>>>),
    Http2(conn::http2::SendRequest<Full<Bytes>>),
}

/// One connection. Dropped, it is closed.
pub(crate) struct Client {
    sender: Sender,
    connection: JoinHandle<()>,
    socket: std::net::TcpStream,
}

impl Client {
    pub(crate) async fn connect(address: std::net::SocketAddr, protocol: Protocol) -> Self {
        let socket = TcpStream::connect(address).await.unwrap().into_std().unwrap();
        let io = TokioIo::new(TcpStream::from_std(socket.try_clone().unwrap()).unwrap());
        let (sender, connection) = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = conn::http1::handshake(io).await.unwrap();
                let driving = tokio::spawn(async {
                    let _ = connection.with_upgrades().await;
                });
                (Sender::Http1(Arc::new(Mutex::new(sender))), driving)
            }
            Protocol::Http2 => {
                let (sender, connection) = conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
                let driving = tokio::spawn(async {
                    let _ = connection.await;
                });
                (Sender::Http2(sender), driving)
            }
        };
        Self { sender, connection, socket }
    }

    /// Sends a request now, and awaits the answer in a task.
    pub(crate) fn spawn(&self, request: Request<Full<Bytes>>) -> JoinHandle<hyper::Result<Response<Incoming>>> {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            // No sender is kept while the answer is awaited. A request that enters the queue of a
            // connection while that ends stays unanswered as long as there are senders.
            match sender {
                Sender::Http1(sender) => {
                    let sending = sender.lock().await.send_request(request);
                    drop(sender);
                    sending.await
                }
                Sender::Http2(mut sender) => {
                    let sending = sender.send_request(request);
                    drop(sender);
                    sending.await
                }
            }
        })
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        soon("a response", self.spawn(request)).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        Answer::read(self.send(request(Method::POST, path)).await.unwrap()).await
    }

    pub(crate) fn spawn_post(&self, path: &str) -> JoinHandle<hyper::Result<Response<Incoming>>> {
        self.spawn(request(Method::POST, path))
    }

    /// Disconnects, even if a request is under way.
    pub(crate) fn disconnect(self) {}
}

impl Drop for Client {
    fn drop(&mut self) {
        // Tasks of the client may outlive the future of its connection.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.connection.abort();
    }
}

pub(crate) fn request(method: Method, path: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(format!("http://localhost{path}")).body(Full::default()).unwrap()
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = soon("the end of a body", body.collect()).await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Checks that this is the expected problem document, and discloses nothing else.
    pub(crate) fn assert_problem(&self, status: u16, reason: &str, retry: bool) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["type"], format!("urn:distlock:problem:{reason}"));
        assert_eq!(problem["status"], status);
        let names: Vec<_> = problem.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(!problem["title"].as_str().unwrap().is_empty() && !problem["detail"].as_str().unwrap().is_empty());
        assert!(!self.text().contains("4711"), "the key is disclosed: {}", self.text());
        match self.header("retry-after") {
            Some(seconds) => assert!(retry && seconds.parse::<u64>().unwrap() >= 1, "{self:?}"),
            None => assert!(!retry, "{self:?}"),
        }
    }
}
