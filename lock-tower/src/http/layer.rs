//! The layer for HTTP: its settings, and the services it makes.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use distlock_api::{LockProvider, Mode};
use http::request::Parts;
use http::{HeaderName, Response, StatusCode};
use tower_layer::Layer;

use super::answer::Answers;
use super::deadline::DeadlineUnit;
use super::rules::{Applies, HoldUntil, Modes, NameClient, Rules, Shared};
use super::run::{Attached, Detached};
use super::service::LockService;
use crate::gate::{Config, Gate, MAX_HOLD, Tally, common_setters};
use crate::key::ExtractKey;
use crate::refusal::{Reason, Refusal};

/// The bound on the holds of a layer with detached handlers, unless it says otherwise.
const MAX_DETACHED: usize = 1024;

/// Takes a lock around each request to an HTTP service. See the [crate](crate) for what happens to
/// a request, and the [module](crate::http) for bodies.
///
/// All services that one layer and its clones make share their limits, averages and counters.
///
/// A handler gets the lock as a [`HeldLock`](crate::HeldLock). If it acquires the same key from the
/// provider again, it [waits for itself](crate#a-request-that-waits-for-itself).
///
/// ```
/// use std::time::Duration;
///
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, key::HeaderKey};
/// use http::HeaderName;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenant = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant"))?;
/// let layer = LockLayer::new(MemoryProvider::new(), tenant)
///     .wait_up_to(Duration::from_secs(2))
///     .max_hold(Duration::from_secs(10))
///     .shared_for_safe_methods();
/// # Ok(())
/// # }
/// ```
///
/// A layer for previews of reports, which do no harm if they are made twice:
///
/// ```
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, OnLoss, key::FixedKey};
///
/// # fn main() -> Result<(), distlock_api::LockError> {
/// let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("previews")?)
///     .on_loss(OnLoss::Continue) // serves a request to its end although its lock is lost
///     .fail_open() // serves without a lock while the lock service cannot be reached
///     .max_waiters_per_key(8); // refuses a ninth waiter of a key, with `Reason::Full`
/// # Ok(())
/// # }
/// ```
pub struct LockLayer<K, M = Attached> {
    provider: Arc<dyn LockProvider>,
    key: Arc<K>,
    class: Arc<str>,
    config: Config,
    tally: Arc<Tally>,
    hold_until: HoldUntil,
    answers: Answers,
    deadlines: Vec<(HeaderName, DeadlineUnit)>,
    applies: Option<Arc<Applies>>,
    client: Option<Arc<NameClient>>,
    modes: Modes,
    run: PhantomData<fn() -> M>,
}

impl<K: ExtractKey> LockLayer<K> {
    /// Takes locks from this provider, with keys from this extractor: a closure, or one of
    /// [`key`](crate::key).
    pub fn new(provider: impl LockProvider, key: K) -> Self {
        Self {
            provider: Arc::new(provider),
            class: key.class().into(),
            key: Arc::new(key),
            config: Config { max_hold: Some(MAX_HOLD), ..Config::default() },
            tally: Arc::default(),
            hold_until: HoldUntil::default(),
            answers: Answers::default(),
            deadlines: Vec::new(),
            applies: None,
            client: None,
            modes: Modes::default(),
            run: PhantomData,
        }
    }
}

impl<K> LockLayer<K, Attached> {
    /// Lets a handler that has begun finish under the lock although its client has disconnected.
    /// Defaults to dropping the handler and then releasing the lock.
    ///
    /// The handler runs in a task of its own, so it must be `Send + 'static`, and needs a tokio
    /// runtime. A client that disconnects while it *waits* still leaves the queue. When the handler
    /// has answered and the client is gone, the response is dropped and the lock released.
    ///
    /// A client can begin requests and go away as fast as it can send, so handlers could pile up. A
    /// limit outside, such as tower's `ConcurrencyLimit`, does not see those whose clients have
    /// gone: at most 1024 requests of this layer hold their locks ([`max_held`](Self::max_held)),
    /// and each client has [a share](Self::max_requests_per_client).
    ///
    /// A graceful shutdown of the server does not wait for detached handlers:
    /// [`Monitor::idle`](crate::Monitor::idle) does.
    ///
    /// ```
    /// use distlock_api::LockProvider;
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, key::FixedKey};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), distlock_api::LockError> {
    /// let locks = MemoryProvider::new();
    /// let layer = LockLayer::new(locks.clone(), FixedKey::new("reports/daily")?).detach();
    /// let monitor = layer.monitor();
    /// // Serve requests, shut the server down gracefully, and then:
    /// monitor.idle().await;
    /// locks.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn detach(mut self) -> LockLayer<K, Detached> {
        self.config.limits.held.get_or_insert(MAX_DETACHED);
        self.with_run()
    }
}

impl<K, M> LockLayer<K, M> {
    common_setters!();

    /// Sets until when a request holds its lock. Defaults to [`HoldUntil::Body`].
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use distlock_api::LockProviderExt;
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{HoldUntil, LockLayer, key::FixedKey};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let export = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("rows"))) });
    /// let locks = MemoryProvider::new();
    /// let layer = LockLayer::new(locks.clone(), FixedKey::new("exports")?).hold_until(HoldUntil::Head);
    ///
    /// let response = layer.layer(export).oneshot(Request::post("/exports").body(())?).await?;
    /// // The body is still to be sent, and the next export can begin.
    /// assert!(locks.try_acquire("exports").await?.is_some());
    /// # drop(response);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn hold_until(mut self, until: HoldUntil) -> Self {
        self.hold_until = until;
        self
    }

    /// Lets requests with a safe method (GET, HEAD, OPTIONS, TRACE) share the lock, and keeps it
    /// exclusive for the others: readers are served together, and none while a writer is. Defaults
    /// to safe methods passing without the lock.
    ///
    /// # Panics
    /// If the provider has no [shared locks](distlock_api::Capabilities::shared): no such request
    /// could be served.
    #[must_use]
    pub fn shared_for_safe_methods(mut self) -> Self {
        self.ensure_supported(Mode::Shared);
        self.modes = Modes::SharedIfSafe;
        self
    }

    /// Sets the [mode](Mode) in which a request acquires its keys. Then requests with safe methods
    /// need the lock as well, unless [`only_if`](Self::only_if) is set. Defaults to
    /// [`Mode::Exclusive`]. A request whose mode the provider does not have is refused with
    /// [`Reason::Misconfigured`].
    ///
    /// ```
    /// use distlock_api::Mode;
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, key::FixedKey};
    ///
    /// # fn main() -> Result<(), distlock_api::LockError> {
    /// // A search is a POST, too, but changes nothing.
    /// let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("orders")?)
    ///     .mode(|request| if request.uri.path() == "/orders/search" { Mode::Shared } else { Mode::Exclusive });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(mut self, mode: impl Fn(&Parts) -> Mode + Send + Sync + 'static) -> Self {
        self.modes = Modes::Chosen(Arc::new(mode));
        self
    }

    /// Acquires all keys in this mode.
    pub(super) fn always(mut self, mode: Mode) -> Self {
        self.ensure_supported(mode);
        self.modes = Modes::Always(mode);
        self
    }

    /// Panics where every request would be refused: the service must not start.
    fn ensure_supported(&self, mode: Mode) {
        if let Err(error) = mode.ensure_supported(&self.provider.to_string(), &self.provider.capabilities()) {
            panic!("{error}");
        }
    }

    /// Sets which requests need the lock; others pass, and OPTIONS always does. Defaults to unsafe
    /// methods: all but GET, HEAD, OPTIONS and TRACE. If a mode is set, defaults to all requests.
    ///
    /// ```
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, key::FixedKey};
    /// use http::Method;
    ///
    /// # fn main() -> Result<(), distlock_api::LockError> {
    /// // Changes of orders need the lock, changes of their comments do not.
    /// let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("orders")?)
    ///     .only_if(|request| request.method == Method::PUT && !request.uri.path().ends_with("/comments"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn only_if(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.applies = Some(Arc::new(applies));
        self
    }

    /// Names the client of a request, such as its authenticated user. A client has at most
    /// [`max_requests_per_client`](Self::max_requests_per_client) requests at once. A request
    /// without a name counts in no share.
    ///
    /// Defaults to the address of the connection's peer, with the feature `axum` and if the server
    /// provides it (`into_make_service_with_connect_info::<SocketAddr>()`). The addresses of an
    /// IPv6 network of 64 bits are one client. Behind a proxy all requests come from one peer:
    /// return what identifies their clients there, in a form that the clients cannot choose.
    ///
    /// ```
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, key::FixedKey};
    ///
    /// #[derive(Clone)]
    /// struct User(String); // what the authentication outside has established
    ///
    /// # fn main() -> Result<(), distlock_api::LockError> {
    /// let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("orders")?)
    ///     .client(|request| request.extensions.get::<User>().map(|user| user.0.clone()))
    ///     .max_requests_per_client(8);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn client(mut self, name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.client = Some(Arc::new(name));
        self
    }

    /// Limits how many requests of one [client](Self::client) wait or hold at the same time, at
    /// least one. More are refused with [`Reason::ClientLimit`]. Defaults to 256, a quarter of
    /// [`max_waiters`](Self::max_waiters).
    #[must_use]
    pub fn max_requests_per_client(mut self, requests: usize) -> Self {
        self.config.limits.per_client = requests.max(1);
        self
    }

    /// Also reads the caller's deadline from this header. The nearest deadline shortens the wait.
    /// `grpc-timeout` is always read. Defaults to no other header.
    ///
    /// ```
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, http::DeadlineUnit, key::FixedKey};
    /// use http::HeaderName;
    ///
    /// # fn main() -> Result<(), distlock_api::LockError> {
    /// // Envoy sets this header.
    /// let deadline = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
    /// let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("orders")?)
    ///     .deadline_header(deadline, DeadlineUnit::Milliseconds);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn deadline_header(mut self, name: HeaderName, unit: DeadlineUnit) -> Self {
        self.deadlines.push((name, unit));
        self
    }

    /// Answers refusals for this reason with this status. The [table](crate#refusals) has the
    /// defaults. For [`Busy`](Reason::Busy), 423 is the other usual status.
    #[must_use]
    pub fn status(mut self, reason: Reason, status: StatusCode) -> Self {
        self.answers.set_status(reason, status);
        self
    }

    /// Answers refusals with the responses of this function. Defaults to [`Refusal::to_response`],
    /// with the statuses of [`status`](Self::status).
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use distlock_api::LockProviderExt;
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::{LockLayer, key::FixedKey};
    /// use http::HeaderValue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = MemoryProvider::new();
    /// let layer = LockLayer::new(locks.clone(), FixedKey::new("orders")?).fail_fast().refuse_with(|refusal| {
    ///     let mut response = refusal.to_response();
    ///     response.headers_mut().insert("x-refused-by", HeaderValue::from_static("orders"));
    ///     response
    /// });
    /// # let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done"))) });
    /// # let _elsewhere = locks.acquire("orders").await?;
    /// # let response = layer.layer(service).oneshot(Request::post("/orders").body(())?).await?;
    /// # assert!(response.status() == 409 && response.headers().contains_key("x-refused-by"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For gRPC, `refuse_with(Refusal::to_grpc_response)`.
    #[must_use]
    pub fn refuse_with(mut self, answer: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.answers.replace(answer);
        self
    }

    fn with_run<N>(self) -> LockLayer<K, N> {
        LockLayer {
            provider: self.provider,
            key: self.key,
            class: self.class,
            config: self.config,
            tally: self.tally,
            hold_until: self.hold_until,
            answers: self.answers,
            deadlines: self.deadlines,
            applies: self.applies,
            client: self.client,
            modes: self.modes,
            run: PhantomData,
        }
    }
}

impl<S, K, M> Layer<S> for LockLayer<K, M> {
    type Service = LockService<S, K, M>;

    fn layer(&self, inner: S) -> Self::Service {
        let gate = Gate::new(self.provider.clone(), self.config.clone(), &self.class, self.tally.clone());
        let rules = Rules {
            gate: Arc::new(gate),
            hold_until: self.hold_until,
            answers: self.answers.clone(),
            deadlines: self.deadlines.clone().into(),
            applies: self.applies.clone(),
            client: self.client.clone(),
            modes: self.modes.clone(),
        };
        LockService::new(inner, Arc::new(Shared { key: self.key.clone(), rules: Arc::new(rules) }))
    }
}

impl<K, M> Clone for LockLayer<K, M> {
    fn clone(&self) -> Self {
        Self {
            provider: self.provider.clone(),
            key: self.key.clone(),
            class: self.class.clone(),
            config: self.config.clone(),
            tally: self.tally.clone(),
            hold_until: self.hold_until,
            answers: self.answers.clone(),
            deadlines: self.deadlines.clone(),
            applies: self.applies.clone(),
            client: self.client.clone(),
            modes: self.modes.clone(),
            run: PhantomData,
        }
    }
}

impl<K, M> fmt::Debug for LockLayer<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("provider", &self.provider)
            .field("config", &self.config)
            .field("hold_until", &self.hold_until)
            .finish_non_exhaustive()
    }
}
