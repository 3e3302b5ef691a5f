//! What a check works with.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use distlock_api::{LockAdmin, LockKey};
use distlock_recipes::once::OnceProvider;
use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::arena::{Arena, Fault, Hook};
use crate::bare::BareStore;
use crate::bounded::{GRAIN, SOON, throughout};
use crate::child::{Child, Clock};
use crate::client::Client;
use crate::disturbed::SeenRenewal;
use crate::failure::{Failure, FailureKind, Verdict, ensure, located_at_caller};
use crate::findings::Findings;
use crate::history::Expected;
use crate::level::{Level, Plan};
use crate::need::Need;
use crate::profile::Profile;
use crate::recorder::{RENEWAL, Recorder};
use crate::stage::{Stage, Turn};

/// How long clients may take to close after a check.
const CLOSING: Duration = Duration::from_secs(10);

/// What a check works with: fresh clients, random keys, child processes, and the history of what
/// they do.
#[derive(Clone)]
pub(crate) struct Context {
    stage: Arc<Stage>,
    level: Level,
    time: Duration,
    rng: Arc<Mutex<Rng>>,
    recorder: Recorder,
    clients: Arc<Mutex<Vec<Client>>>,
    once_clients: Arc<Mutex<Vec<Arc<dyn OnceProvider>>>>,
    stores: Arc<Mutex<Vec<BareStore>>>,
    findings: Findings,
    /// The same for the whole check.
    short: Arc<OnceLock<Duration>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("fixture", &self.stage.name()).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(stage: Arc<Stage>, plan: Plan, check: &str) -> Self {
        let rng = Arc::new(Mutex::new(plan.seed.of(stage.name(), check)));
        Self {
            stage,
            level: plan.level,
            time: plan.time,
            rng,
            recorder: Recorder::default(),
            clients: Arc::default(),
            once_clients: Arc::default(),
            stores: Arc::default(),
            findings: Findings::default(),
            short: Arc::default(),
        }
    }

    /// Returns a random number generator for a task, derived from the check's seed. Call this
    /// before the task is spawned, so that the result does not depend on the order of tasks.
    pub(crate) fn rng(&self) -> Rng {
        self.rng.lock().expect("not poisoned").fork()
    }

    /// Returns a random key.
    pub(crate) fn key(&self) -> LockKey {
        LockKey::new(format!("check-{:016x}", self.rng().u64(..))).expect("a valid key")
    }

    /// Returns `standard` rounds, or below that level a fifth of them, but at least two.
    pub(crate) fn rounds(&self, standard: usize) -> usize {
        if self.level < Level::Standard { (standard / 5).max(2) } else { standard }
    }

    /// Returns the record of what the clients and the child processes did.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Judges the recorded calls of these keys. `expected` is what is needed to prove anything at
    /// the standard level.
    #[track_caller]
    pub(crate) fn verdict(&self, keys: &[LockKey], expected: Expected) -> Verdict {
        self.recorder.verdict(keys, expected)
    }

    /// Returns how long a check of the level torture runs.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn findings(&self) -> &Findings {
        &self.findings
    }

    pub(crate) fn profile(&self) -> &Profile {
        self.stage.profile()
    }

    /// Makes clients of one shared state, which are closed after the check.
    #[track_caller]
    pub(crate) fn clients<const N: usize>(&self) -> impl Future<Output = Result<[Client; N], Failure>> {
        located_at_caller(async move {
            let clients = self.stage.fixture().clients(N).await?;
            let clients: Vec<Client> = clients.into_iter().map(|client| client.recorded(&self.recorder)).collect();
            self.clients.lock().expect("not poisoned").extend(clients.iter().cloned());
            as_many(clients)
        })
    }

    /// Makes clients that do work once, which are closed after the check.
    #[track_caller]
    pub(crate) fn once_clients<const N: usize>(
        &self,
    ) -> impl Future<Output = Result<[Arc<dyn OnceProvider>; N], Failure>> {
        located_at_caller(async move {
            let clients = self.stage.fixture().once_clients(N).await?;
            self.once_clients.lock().expect("not poisoned").extend(clients.iter().cloned());
            as_many(clients)
        })
    }

    /// Opens bare stores of the fixture's own state, or of the state at an address.
    async fn opened<const N: usize>(&self, address: Option<&str>) -> Result<[BareStore; N], Failure> {
        let fixture = self.stage.fixture();
        let mut stores = Vec::new();
        for _ in 0..N {
            let store = match address {
                Some(address) => fixture.store_at(address).await?,
                None => fixture.store().await?,
            };
            stores.push(BareStore::connected(store, &self.recorder).await?);
        }
        self.stores.lock().expect("not poisoned").extend(stores.iter().cloned());
        Ok(stores.try_into().unwrap_or_else(|_| unreachable!("as many as were opened")))
    }

    /// Opens bare stores of one shared state. Their claims are given up after the check.
    #[track_caller]
    pub(crate) fn stores<const N: usize>(&self) -> impl Future<Output = Result<[BareStore; N], Failure>> {
        located_at_caller(self.opened(None))
    }

    /// Opens bare stores of the deployment for fault injection, and its hooks.
    #[track_caller]
    pub(crate) fn hooked<const N: usize>(&self) -> impl Future<Output = Result<(Hooks, [BareStore; N]), Failure>> {
        located_at_caller(async move {
            let arena = self.stage.arena().await?;
            let stores = self.opened(Some(&arena.address())).await?;
            Ok((Hooks(arena), stores))
        })
    }

    /// Makes clients that do work once in the deployment for fault injection, and its hooks. The
    /// clients are closed after the check.
    #[track_caller]
    pub(crate) fn hooked_once<const N: usize>(
        &self,
    ) -> impl Future<Output = Result<(Hooks, [Arc<dyn OnceProvider>; N]), Failure>> {
        located_at_caller(async move {
            let arena = self.stage.arena().await?;
            let address = arena.address();
            let mut clients = Vec::new();
            for _ in 0..N {
                clients.push(self.stage.fixture().once_at(&address).await?);
            }
            self.once_clients.lock().expect("not poisoned").extend(clients.iter().cloned());
            Ok((Hooks(arena), as_many(clients)?))
        })
    }

    /// Starts a child process that is a client.
    #[track_caller]
    pub(crate) fn child(&self, clock: Clock) -> impl Future<Output = Result<Child, Failure>> {
        located_at_caller(async move {
            let Some(address) = self.stage.fixture().address() else {
                let message = "the profile declares processes, but the fixture has no address";
                return Err(Failure::of(FailureKind::Fixture, message));
            };
            Child::start(self.stage.name(), &address, clock, &self.recorder).await
        })
    }

    /// Returns the slowest request of a check that ended at `end` and is finished, as far as it is
    /// known how long requests took.
    pub(crate) fn slowest(&self, end: Instant) -> Duration {
        let clients = self.clients.lock().expect("not poisoned");
        let renewals = clients.iter().flat_map(Client::renewals);
        let took = |SeenRenewal { sent, answer, .. }: SeenRenewal| {
            answer.map_or(end, |(at, _)| at).saturating_duration_since(sent)
        };
        renewals.map(took).max().unwrap_or_default().max(self.recorder.slowest())
    }

    /// Adds the renewals of the clients' leases to the history.
    pub(crate) fn note_renewals(&self) {
        for client in &*self.clients.lock().expect("not poisoned") {
            for SeenRenewal { key, sent, answer } in client.renewals() {
                self.recorder.sent(client.number(), &key, RENEWAL, sent, answer);
            }
        }
    }

    /// Closes the clients in bounded time, and ignores their errors.
    pub(crate) async fn finish(&self) {
        let clients = self.clients.lock().expect("not poisoned").clone();
        let closing = clients.iter().map(|client| client.close());
        let _ = tokio::time::timeout(CLOSING, futures_util::future::join_all(closing)).await;
        let clients = std::mem::take(&mut *self.once_clients.lock().expect("not poisoned"));
        let closing = clients.iter().map(|client| client.close());
        let _ = tokio::time::timeout(CLOSING, futures_util::future::join_all(closing)).await;
        let stores = std::mem::take(&mut *self.stores.lock().expect("not poisoned"));
        let leaving = stores.iter().map(BareStore::leave);
        let _ = tokio::time::timeout(CLOSING, futures_util::future::join_all(leaving)).await;
    }

    /// Returns the administration that the profile promises.
    pub(crate) fn admin<'a>(&self, client: &'a Client) -> Result<&'a dyn LockAdmin, Failure> {
        client.admin().ok_or_else(|| Failure::of(FailureKind::Fixture, Need::Admin.missing()))
    }

    /// Returns a ttl that ends during the check.
    pub(crate) fn short(&self) -> Duration {
        *self.short.get_or_init(|| self.stage.short_ttl())
    }
}

/// Returns the clients that a fixture has made, if they are as many as were requested.
fn as_many<T, const N: usize>(clients: Vec<T>) -> Result<[T; N], Failure> {
    let made = clients.len();
    let wrong = |_| Failure::of(FailureKind::Fixture, format!("the fixture made {made} clients instead of {N}"));
    clients.try_into().map_err(wrong)
}

/// The hooks of the server of [`Context::hooked`].
pub(crate) struct Hooks(Turn);

impl Hooks {
    /// Begins a hook that the profile declares.
    #[track_caller]
    pub(crate) fn begin(&self, hook: Hook, key: &LockKey) -> impl Future<Output = Result<Disturbance<'_>, Failure>> {
        located_at_caller(async move {
            let missing =
                || Failure::of(FailureKind::Fixture, format!("the profile declares a hook that is missing: {hook:?}"));
            let fault = self.0.hook(hook, key).ok_or_else(missing)?;
            fault.begin().await?;
            Ok(Disturbance { fault, arena: &**self.0 })
        })
    }
}

/// A fault that has begun.
#[must_use]
pub(crate) struct Disturbance<'a> {
    fault: Arc<dyn Fault>,
    arena: &'a dyn Arena,
}

impl Disturbance<'_> {
    /// Ends it, and waits until the deployment is healthy.
    #[track_caller]
    pub(crate) fn end(self) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            self.fault.end().await?;
            Ok(self.arena.healthy().await?)
        })
    }
}

/// Runs work on a separate runtime of one thread, which ends with it: to test what happens when a
/// runtime is blocked or dropped.
#[track_caller]
pub(crate) fn on_a_runtime_of_its_own<T: Send + 'static>(
    work: impl FnOnce(tokio::runtime::Runtime) -> Result<T, Failure> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> {
    located_at_caller(async move {
        let working = tokio::task::spawn_blocking(move || {
            work(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
        });
        working.await.map_err(|error| Failure::of_task("a runtime of the check", &error))?
    })
}

/// Fails if a lease without renewal lasts longer than when it was granted.
///
/// The loss of its guard cannot show this, because the holder then gives the lease back.
#[track_caller]
pub(crate) fn ensure_not_prolonged(
    admin: &dyn LockAdmin,
    key: &LockKey,
    latest: Instant,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        throughout(latest, async || {
            let asked = Instant::now();
            let Some(info) = admin.inspect(key).await? else { return Ok(()) };
            let (seen, left) = (info.remaining, latest.saturating_duration_since(asked));
            ensure!(
                seen <= left + GRAIN,
                "{seen:?} remain of a lease without renewal that should have {left:?} left: {info:?}"
            );
            Ok(())
        })
        .await
    })
}

/// Records what the store has left of a key that is no longer used, if the store has an
/// administration.
#[track_caller]
pub(crate) fn nothing_left(cx: &Context, client: &Client, key: &LockKey) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let Some(admin) = client.admin() else { return Ok(()) };
        let deadline = Instant::now() + SOON;
        loop {
            let asked = cx.recorder().now();
            let info = admin.inspect(key).await?;
            let waiting = info.as_ref().and_then(|info| info.waiting).unwrap_or(0);
            // The clean-up runs in the background. The verdict decides about what is left at the
            // deadline, because it has the record of who may still use the key.
            if info.is_none() || Instant::now() >= deadline {
                cx.recorder().left(client.number(), key, info.is_some(), waiting, asked);
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Waits for all tasks, and returns the first failure.
#[track_caller]
pub(crate) fn all_passed(mut tasks: JoinSet<Verdict>) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| Failure::of_task("a task of the check", &error))??;
        }
        Ok(())
    })
}
