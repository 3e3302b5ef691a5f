//! gRPC: a tonic service behind both layers, over real HTTP/2 – on axum, and on tonic's own server.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::put;
use bytes::{Buf, BufMut};
use distlock_api::{LockKey, LockProvider, LockProviderExt};
use distlock_memory::MemoryProvider;
use distlock_tower::http::grpc_timeout;
use distlock_tower::key::{HeaderKey, ParamKey};
use distlock_tower::keyed::KeyOf;
use distlock_tower::{
    HeldLock, KeyRejection, KeySet, KeyedLockError, KeyedLockLayer, LockLayer, Monitor, Reason, Refusal,
};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{HeaderName, Method, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server as TonicServer};
use tonic::{Code, Request, Response, Status};
use tower::{Service, ServiceBuilder, service_fn};

use crate::common::{Events, Protocol, Server, Stage, request, soon, until};

const DEPOSIT: &str = "/bank.Accounts/Deposit";
const STATEMENT: &str = "/bank.Accounts/Statement";
const ACCOUNT: &str = "x-account";

/// Messages are text. A generated service would use `prost` here.
#[derive(Clone, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        String::from_utf8(bytes.into()).map(Some).map_err(|_| Status::invalid_argument("not a text"))
    }
}

/// `Deposit` waits on the stage before it answers; `Statement` sends a message and waits before it
/// sends the last one.
#[derive(Clone)]
struct Accounts {
    stage: Stage,
    /// Locks deposits by the account in the *message*, which no layer around HTTP can see.
    by_message: Option<KeyedLockLayer<ByMessage>>,
}

impl NamedService for Accounts {
    const NAME: &'static str = "bank.Accounts";
}

impl Service<http::Request<Body>> for Accounts {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (stage, by_message) = (self.stage.clone(), self.by_message.clone());
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Text);
            Ok(match request.uri().path() {
                DEPOSIT => {
                    let deposit = service_fn(move |request: Request<String>| deposit(stage.clone(), request));
                    match by_message {
                        None => grpc.unary(deposit, request).await,
                        Some(layer) => {
                            let locked = ServiceBuilder::new().map_err(status).layer(layer).service(deposit);
                            grpc.unary(locked, request).await
                        }
                    }
                }
                STATEMENT => {
                    let statement = service_fn(move |_: Request<String>| {
                        let stage = stage.clone();
                        async move { Ok(Response::new(statement(stage))) }
                    });
                    grpc.server_streaming(statement, request).await
                }
                other => Status::unimplemented(other).into_http(),
            })
        })
    }
}

async fn deposit(stage: Stage, request: Request<String>) -> Result<Response<String>, Status> {
    stage.visit("deposit").await;
    // In HTTP's extensions, where `LockLayer` puts it, or in the message's, where `ByMessage` does.
    let held = request.extensions().get::<HeldLock>().ok_or_else(|| Status::internal("no lock"))?;
    Ok(Response::new(held.key().as_str().to_owned()))
}

fn statement(stage: Stage) -> BoxStream<'static, Result<String, Status>> {
    let rest = stream::once(async move {
        stage.visit("statement").await;
        Ok("last".to_owned())
    });
    stream::iter([Ok("first".to_owned())]).chain(rest).boxed()
}

#[derive(Clone)]
struct ByMessage;

impl KeyOf<Request<String>> for ByMessage {
    fn keys(&self, request: &Request<String>) -> Result<Option<KeySet>, KeyRejection> {
        Ok(Some(LockKey::new(request.get_ref().as_str())?.into()))
    }

    fn deadline(&self, request: &Request<String>) -> Option<Duration> {
        grpc_timeout(request.metadata().as_ref())
    }

    fn granted(&self, request: &mut Request<String>, held: HeldLock) {
        request.extensions_mut().insert(held);
    }
}

fn status(error: KeyedLockError<Status>) -> Status {
    match error {
        KeyedLockError::Refused(refusal) => Status::new(Code::from_i32(refusal.grpc_code()), refusal.to_string()),
        KeyedLockError::Inner(status) => status,
    }
}

/// Keys from an entry of the call's metadata. No wait ends by itself within a test.
fn by_metadata(locks: &MemoryProvider) -> LockLayer<HeaderKey> {
    LockLayer::new(locks.clone(), HeaderKey::text("account", HeaderName::from_static(ACCOUNT)).unwrap())
        .wait_up_to(Duration::from_secs(3600))
        .refuse_with(Refusal::to_grpc_response)
}

struct Bank {
    server: Server,
    locks: MemoryProvider,
    monitor: Monitor,
    stage: Stage,
    events: Events,
}

/// On axum, behind a `LockLayer`.
async fn bank() -> Bank {
    let (locks, (stage, events)) = (MemoryProvider::new(), Stage::new());
    let layer = by_metadata(&locks);
    let monitor = layer.monitor();
    let routes = Routes::new(Accounts { stage: stage.clone(), by_message: None });
    let server = Server::start(routes.into_axum_router().layer(layer)).await;
    Bank { server, locks, monitor, stage, events }
}

/// Calls without a timeout of the client, so that only the server ends a wait.
async fn connect(address: std::net::SocketAddr) -> Caller {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(async {
        let _ = connection.await;
    });
    Caller { sender, connection }
}

trait Connection:
    Service<http::Request<Body>, Response = http::Response<Incoming>, Error = hyper::Error, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Connection for S where
    S: Service<http::Request<Body>, Response = http::Response<Incoming>, Error = hyper::Error, Future: Send>
        + Clone
        + Send
        + 'static
{
}

struct Caller {
    sender: hyper::client::conn::http2::SendRequest<Body>,
    connection: JoinHandle<()>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Caller {
    fn client(&self) -> tonic::client::Grpc<impl Connection + use<>> {
        let sender = self.sender.clone();
        let service = service_fn(move |request: http::Request<Body>| sender.clone().send_request(request));
        tonic::client::Grpc::with_origin(service, Uri::from_static("http://localhost"))
    }

    fn deposit(&self, request: Request<String>) -> JoinHandle<Result<Response<String>, Status>> {
        let mut client = self.client();
        tokio::spawn(async move {
            client.ready().await.map_err(|_| Status::unavailable("not ready"))?;
            client.unary(request, DEPOSIT.parse().unwrap(), Text).await
        })
    }
}

fn to(account: &'static str) -> Request<String> {
    let mut request = Request::new(account.to_owned());
    request.metadata_mut().insert(ACCOUNT, account.parse().unwrap());
    request
}

async fn answer(call: JoinHandle<Result<Response<String>, Status>>) -> Result<String, Status> {
    soon("an answer", call).await.unwrap().map(Response::into_inner)
}

#[tokio::test]
async fn calls_for_one_account_are_served_one_after_the_other() {
    let mut bank = bank().await;
    let caller = connect(bank.server.address()).await;
    let first = caller.deposit(to("4711"));
    bank.events.entered("deposit").await;
    // Another stream of the same connection.
    let second = caller.deposit(to("4711"));
    until("it waits", || bank.monitor.waiting() == 1).await;
    let third = caller.deposit(to("4712"));
    bank.events.entered("deposit").await;
    assert_eq!((bank.stage.inside(), bank.monitor.waiting()), (2, 1));
    bank.stage.let_go(3);
    for (call, key) in [(first, "account/4711"), (second, "account/4711"), (third, "account/4712")] {
        assert_eq!(answer(call).await.unwrap(), key);
    }
    soon("idle", bank.monitor.idle()).await;
    assert_eq!(bank.locks.keys_in_use(), 0);
}

#[tokio::test]
async fn grpc_timeout_shortens_the_wait() {
    let mut bank = bank().await;
    let caller = connect(bank.server.address()).await;
    let holding = caller.deposit(to("4711"));
    bank.events.entered("deposit").await;
    let mut hurried = to("4711");
    hurried.set_timeout(Duration::from_millis(50));
    let refused = answer(caller.deposit(hurried)).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused:?}");
    assert!(!refused.message().contains("4711"));
    assert_eq!((bank.monitor.refused(Reason::Timeout), bank.monitor.waiting()), (1, 0));
    bank.events.nothing();
    bank.stage.let_go(1);
    answer(holding).await.unwrap();
}

#[tokio::test]
async fn a_stream_holds_the_lock_until_its_trailers() {
    let mut bank = bank().await;
    let caller = connect(bank.server.address()).await;
    let mut client = caller.client();
    client.ready().await.map_err(|_| "not ready").unwrap();
    let streaming = client.server_streaming(to("4711"), STATEMENT.parse().unwrap(), Text);
    let mut stream = soon("the head", streaming).await.unwrap().into_inner();
    assert_eq!(soon("a message", stream.message()).await.unwrap().as_deref(), Some("first"));
    bank.events.entered("statement").await;
    let waiting = caller.deposit(to("4711"));
    until("it waits", || bank.monitor.waiting() == 1).await;
    bank.stage.let_go(2);
    assert_eq!(soon("a message", stream.message()).await.unwrap().as_deref(), Some("last"));
    bank.events.finished("statement").await;
    assert_eq!(soon("the end", stream.message()).await.unwrap(), None);
    bank.events.entered("deposit").await;
    answer(waiting).await.unwrap();
}

#[tokio::test]
async fn a_loss_ends_the_stream_with_an_error() {
    let mut bank = bank().await;
    let caller = connect(bank.server.address()).await;
    let mut client = caller.client();
    client.ready().await.map_err(|_| "not ready").unwrap();
    let streaming = client.server_streaming(to("4711"), STATEMENT.parse().unwrap(), Text);
    let mut stream = soon("the head", streaming).await.unwrap().into_inner();
    bank.events.entered("statement").await;
    let key = LockKey::new("account/4711").unwrap();
    assert_eq!(soon("a message", stream.message()).await.unwrap().as_deref(), Some("first"));
    assert!(bank.locks.admin().unwrap().force_release(&key, "a test").await.unwrap().is_some());
    bank.events.dropped("statement").await;
    assert!(soon("the end", stream.message()).await.is_err(), "a part is not taken for the whole");
}

/// The usual set-up: the layer on tonic's server, and calls through tonic's channel. Both of them
/// also read `grpc-timeout`.
#[tokio::test]
async fn on_the_server_of_tonic() {
    let (locks, (stage, mut events)) = (MemoryProvider::new(), Stage::new());
    let layer = by_metadata(&locks);
    let monitor = layer.monitor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accounts = Accounts { stage: stage.clone(), by_message: None };
    let serving = TonicServer::builder().layer(layer).add_service(accounts);
    let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let call = |request: Request<String>| {
        let mut client = tonic::client::Grpc::new(channel.clone());
        tokio::spawn(async move {
            client.ready().await.map_err(|_| Status::unavailable("not ready"))?;
            client.unary(request, DEPOSIT.parse().unwrap(), Text).await
        })
    };
    let first = call(to("4711"));
    events.entered("deposit").await;
    let second = call(to("4711"));
    until("it waits", || monitor.waiting() == 1).await;

    let leaver = call(to("4711"));
    until("it waits", || monitor.waiting() == 2).await;
    leaver.abort();
    until("the waiter is gone", || monitor.waiting() == 1).await;

    let mut hurried = to("4711");
    hurried.set_timeout(Duration::from_millis(50));
    // Layer, server and channel see the same deadline. Any of them may be the first to end the
    // call.
    let code = answer(call(hurried)).await.unwrap_err().code();
    assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code:?}");
    until("the waiter is gone", || monitor.waiting() == 1).await;
    events.nothing();

    stage.let_go(2);
    assert_eq!(answer(first).await.unwrap(), "account/4711");
    assert_eq!(answer(second).await.unwrap(), "account/4711");
    soon("idle", monitor.idle()).await;
    assert_eq!(locks.keys_in_use(), 0);
    serving.abort();
}

/// One server has both. They name an account by the same key, so a call and an HTTP request take
/// turns.
#[tokio::test]
async fn a_tonic_service_beside_routes_of_axum() {
    let (locks, (stage, mut events)) = (MemoryProvider::new(), Stage::new());
    let (http, grpc) = (LockLayer::new(locks.clone(), ParamKey::text("account", "id").unwrap()), by_metadata(&locks));
    let (http, monitor) = (http.wait_up_to(Duration::from_secs(3600)), grpc.monitor());
    let http_monitor = http.monitor();
    let visiting = stage.clone();
    let change = put(move |Path(id): Path<String>| async move { visiting.visit(id).await });
    let calls = Routes::new(Accounts { stage: stage.clone(), by_message: None }).into_axum_router();
    let app = Router::new().route("/accounts/{id}", change).route_layer(http);
    let server = Server::start(app.merge(calls.reset_fallback().route_layer(grpc))).await;
    let (caller, client) = (connect(server.address()).await, server.client(Protocol::Http1).await);

    let first = caller.deposit(to("4711"));
    events.entered("deposit").await;
    let second = client.spawn(request(Method::PUT, "/accounts/4711"));
    until("the request waits", || http_monitor.waiting() == 1).await;
    stage.let_go(1);
    assert_eq!(answer(first).await.unwrap(), "account/4711");
    events.finished("deposit").await;
    events.entered("4711").await;
    let third = caller.deposit(to("4711"));
    until("the call waits", || monitor.waiting() == 1).await;
    stage.let_go(2);
    assert_eq!(soon("an answer", second).await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(answer(third).await.unwrap(), "account/4711");

    assert_eq!(client.post("/elsewhere").await.status, StatusCode::NOT_FOUND);
    let no_account = answer(caller.deposit(Request::new(String::new()))).await.unwrap_err();
    assert_eq!(no_account.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn methods_are_locked_by_the_content_of_their_messages() {
    let (locks, (stage, mut events)) = (MemoryProvider::new(), Stage::new());
    let layer = KeyedLockLayer::new::<Request<String>>(locks.clone(), ByMessage).wait_up_to(Duration::from_secs(3600));
    let monitor = layer.monitor();
    let accounts = Accounts { stage: stage.clone(), by_message: Some(layer) };
    let server = Server::start(Routes::new(accounts).into_axum_router()).await;
    let caller = connect(server.address()).await;
    let holding = caller.deposit(to("4711"));
    events.entered("deposit").await;
    let other = caller.deposit(to("4712"));
    events.entered("deposit").await;
    let waiting = caller.deposit(to("4711"));
    until("it waits", || monitor.waiting() == 1).await;
    let mut hurried = to("4711");
    hurried.set_timeout(Duration::from_millis(50));
    assert_eq!(answer(caller.deposit(hurried)).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!((stage.inside(), monitor.waiting(), monitor.refused(Reason::Timeout)), (2, 1, 1));
    stage.let_go(3);
    for (call, key) in [(holding, "4711"), (other, "4712"), (waiting, "4711")] {
        assert_eq!(answer(call).await.unwrap(), key);
    }
    assert_eq!(answer(caller.deposit(to(""))).await.unwrap_err().code(), Code::InvalidArgument, "an empty key");
    soon("idle", monitor.idle()).await;
    assert_eq!(locks.keys_in_use(), 0);
    drop(locks.acquire("4711").await.unwrap());
}
