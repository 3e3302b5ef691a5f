//! The layer: its settings, and the services it makes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use distlock_api::{LeaseOptions, Wait};
use http::request::Parts;
use http::{HeaderName, Method, Response, StatusCode};
use tower_layer::Layer;

use super::config::Config;
use super::policy::AfterAnswer;
use super::refusal::{Reason, Refusal};
use super::service::IdempotencyService;
use super::shared::Shared;
use super::tally::{IdempotencyMonitor, Tally};
use crate::once::OnceProvider;

/// Processes each request with an `Idempotency-Key` once, across all replicas, and sends its answer
/// to every retry. See the [module](crate::idempotency) for what happens to a request.
///
/// All services that one layer and its clones make share their counters.
#[derive(Clone)]
pub struct IdempotencyLayer {
    provider: Arc<dyn OnceProvider>,
    config: Config,
    tally: Arc<Tally>,
}

impl IdempotencyLayer {
    /// Remembers outcomes with this provider. The closure returns who sent a request, such as the
    /// id of the authenticated user: equal keys of different users are different requests.
    ///
    /// Put authentication outside of this layer, and return what it has established, never a text
    /// that the client can choose. If that is missing, return [`Reason::Misconfigured`].
    pub fn new<F>(provider: impl OnceProvider, who: F) -> Self
    where
        F: Fn(&Parts) -> Result<String, Refusal> + Send + Sync + 'static,
    {
        Self { provider: Arc::new(provider), config: Config::new(Some(Arc::new(who))), tally: Arc::default() }
    }

    /// Remembers outcomes with this provider, for all clients together: a client that sends the
    /// request of another one gets that one's answer. For services with one client, and for those
    /// whose answers are no secret.
    pub fn for_everyone(provider: impl OnceProvider) -> Self {
        Self { provider: Arc::new(provider), config: Config::new(None), tally: Arc::default() }
    }

    /// Refuses requests without a key (400). Defaults to passing them on without protection.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.config.required = true;
        self
    }

    /// Sets the methods that are covered; requests with others pass. Defaults to POST and PATCH.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.config.methods = methods.into_iter().collect();
        self
    }

    /// Sets how long an outcome is kept, in whole milliseconds. Defaults to one day. At most
    /// [`OnceOptions::MAX_KEEP`](crate::once::OnceOptions::MAX_KEEP). Clients are told in whole
    /// seconds, by the header `Idempotency-Keep` of each answer that is kept.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.config.keep = keep;
        self
    }

    /// Sets how long a duplicate waits for the first request, which is then answered with
    /// [`Reason::UnderWay`]. Also bounds how long an outage of the store is ridden out. Defaults to
    /// 5 s.
    #[must_use]
    pub fn wait_up_to(mut self, wait: Duration) -> Self {
        self.config.acquire = self.config.acquire.with_wait(Wait::UpTo(wait));
        self
    }

    /// Limits how many requests with one key wait at this replica, at least one. A further one is
    /// refused with [`Reason::UnderWay`] at once. A request that the store has not yet answered
    /// counts as waiting. Defaults to 100.
    #[must_use]
    pub fn max_waiters_per_key(mut self, waiters: usize) -> Self {
        self.config.max_waiters = waiters.max(1);
        self
    }

    /// Limits how many requests with a key this layer has at the same time, at least one: those
    /// whose body is being read, those that wait, and those that are processed. A further one is
    /// refused with [`Reason::Full`]. Defaults to 256.
    ///
    /// A handler counts until it has ended, also after its client has gone. A limit outside, such
    /// as tower's `ConcurrencyLimit`, does not see such handlers: set this limit in its place.
    /// Memory for bodies is bounded by this number times
    /// [`max_request_body`](Self::max_request_body).
    #[must_use]
    pub fn max_requests(mut self, requests: usize) -> Self {
        self.config.limits.total = requests.max(1);
        self
    }

    /// Limits how many of these requests are of one client, at least one. A further one is refused
    /// with [`Reason::ClientLimit`]. Defaults to 64, a quarter of
    /// [`max_requests`](Self::max_requests).
    ///
    /// The client is the one that the closure of [`new`](Self::new) returns. With
    /// [`for_everyone`](Self::for_everyone) it is the address of the connection's peer, with the
    /// feature `axum` and if the server provides it
    /// (`into_make_service_with_connect_info::<SocketAddr>()`); otherwise only the limit for all
    /// counts. The addresses of an IPv6 network of 64 bits are one client.
    #[must_use]
    pub fn max_requests_per_client(mut self, requests: usize) -> Self {
        self.config.limits.per_client = requests.max(1);
        self
    }

    /// Sets how long the body of a request may take to arrive. A slower one is refused with
    /// [`Reason::BodyTooSlow`] (408). Defaults to 30 s.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.config.read_timeout = timeout;
        self
    }

    /// Sets what of a request, besides its path and its query, tells it from others with the same
    /// key. A duplicate for which the function returns other bytes is refused with
    /// [`Reason::KeyReused`]. The store has a digest of them.
    ///
    /// Defaults to the host without its port, the content type, and the body byte by byte. The
    /// boundary of a multipart form does not count, because clients choose another one for each
    /// try; its parts do.
    ///
    /// ```
    /// use distlock_memory::MemoryOnce;
    /// use distlock_recipes::idempotency::IdempotencyLayer;
    ///
    /// // One service under several names: a retry may go to another one of them.
    /// let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).fingerprint(|_, body| body.clone());
    /// ```
    #[must_use]
    pub fn fingerprint(mut self, content: impl Fn(&Parts, &Bytes) -> Bytes + Send + Sync + 'static) -> Self {
        self.config.content = Some(Arc::new(content));
        self
    }

    /// Sets the lease terms that differ from the provider's, such as the ttl: how soon the work of
    /// a process that died counts as interrupted. Defaults to none.
    #[must_use]
    pub fn lease(mut self, lease: LeaseOptions) -> Self {
        self.config.acquire = self.config.acquire.with_lease(lease);
        self
    }

    /// Processes a request again whose earlier run was interrupted, that is: its process died, its
    /// handler panicked, or its lease was lost. The handler sees it in
    /// [`IdempotentRun::interrupted`](super::IdempotentRun::interrupted).
    ///
    /// Defaults to refusing it with [`Reason::Interrupted`], because the layer cannot know how far
    /// the run came. Choose this if the handler can be repeated. For example, all of its effects
    /// are in one transaction, or it looks up what the interrupted run has done. Or it passes
    /// [`IdempotentRun::key`](super::IdempotentRun::key) to a service that is idempotent itself.
    #[must_use]
    pub fn run_interrupted_again(mut self) -> Self {
        self.config.run_interrupted_again = true;
        self
    }

    /// Drops a handler whose client has disconnected, which interrupts its run. Defaults to letting
    /// it finish in its task, so that the retry gets its answer.
    #[must_use]
    pub fn cancel_on_disconnect(mut self) -> Self {
        self.config.cancel_on_disconnect = true;
        self
    }

    /// Processes requests **without any protection** when the store cannot be reached; a retry is
    /// then processed again. Each is logged as a warning, counted, and answered with
    /// `Idempotency-Status: not-covered`. Defaults to refusing them.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.config.fail_open = true;
        self
    }

    /// Sets how many bytes the body of a request may have; it is read into memory. Longer ones are
    /// refused (413). Defaults to 1 MiB.
    #[must_use]
    pub fn max_request_body(mut self, bytes: usize) -> Self {
        self.config.max_request_body = bytes;
        self
    }

    /// Passes a request on **without any protection** whose head declares a body longer than
    /// [`max_request_body`](Self::max_request_body). It is answered with
    /// `Idempotency-Status: not-covered`. A longer body that is not declared is still refused.
    /// Defaults to refusing both.
    #[must_use]
    pub fn pass_long_requests(mut self) -> Self {
        self.config.pass_long_requests = true;
        self
    }

    /// Sets how many bytes the body of an answer may have in order to be kept. Defaults to 64 KiB.
    /// Whatever is set, an answer with its headers must fit into
    /// [`OnceOptions::MAX_VALUE_LEN`](crate::once::OnceOptions::MAX_VALUE_LEN), 1 MiB.
    #[must_use]
    pub fn max_answer_body(mut self, bytes: usize) -> Self {
        self.config.max_answer_body = bytes;
        self
    }

    /// Sets which headers of an answer are kept. Defaults to those that describe it (`Allow`,
    /// `Cache-Control`, `Content-Disposition`, `Content-Encoding`, `Content-Language`,
    /// `Content-Location`, `Content-Type`, `ETag`, `Last-Modified`, `Link`, `Location`, `Vary`,
    /// `WWW-Authenticate`) and those that a browser needs to handle it safely
    /// (`Content-Security-Policy`, also with `-Report-Only`; `Cross-Origin-Embedder-Policy`,
    /// `Cross-Origin-Opener-Policy`, `Cross-Origin-Resource-Policy`, `Permissions-Policy`,
    /// `Referrer-Policy`, `Strict-Transport-Security`, `X-Content-Type-Options`,
    /// `X-Frame-Options`).
    #[must_use]
    pub fn kept_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.config.kept_headers = names.into_iter().collect();
        self
    }

    /// Sets what an answer with a status says about the work. Defaults to
    /// [`AfterAnswer::usual`].
    #[must_use]
    pub fn after_answer(mut self, after: impl Fn(StatusCode) -> AfterAnswer + Send + Sync + 'static) -> Self {
        self.config.after = Arc::new(after);
        self
    }

    /// Answers refusals for this reason with this status. The
    /// [table](crate::idempotency#refusals) has the defaults.
    #[must_use]
    pub fn status(mut self, reason: Reason, status: StatusCode) -> Self {
        self.config.answers.set_status(reason, status);
        self
    }

    /// Answers refusals with the responses of this function. Defaults to [`Refusal::to_response`],
    /// with the statuses of [`status`](Self::status).
    #[must_use]
    pub fn refuse_with(mut self, answer: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.config.answers.replace(answer);
        self
    }

    /// Sets the name of the layer in spans and metrics, such as `payments`. Defaults to
    /// `idempotency`.
    #[must_use]
    pub fn class(mut self, class: impl AsRef<str>) -> Self {
        self.config.class = class.as_ref().into();
        self
    }

    /// Returns a view of what the layer has done and is doing. Get it before the layer is moved
    /// into a router.
    #[must_use]
    pub fn monitor(&self) -> IdempotencyMonitor {
        IdempotencyMonitor::new(self.tally.clone())
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        let shared = Shared::new(self.provider.clone(), self.config.clone(), self.tally.clone());
        IdempotencyService::new(inner, Arc::new(shared))
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("provider", &self.provider)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
