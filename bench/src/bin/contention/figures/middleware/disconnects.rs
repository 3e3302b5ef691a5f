//! T4: clients of two replicas, a tenth of which go away in the middle of a request. Afterwards
//! nothing of them must be left.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use distlock_api::LockProvider;
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::key::ParamKey;
use distlock_tower::{LockLayer, Monitor};
use futures_util::stream::{self, StreamExt};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};

use super::Bench;
use crate::Outcome;
use crate::figures::Id;
use crate::locks::{Contender, PATIENCE, Settings, ours};
use crate::report::{Bound, Figure};
use crate::web::client::{self, Connection};
use crate::web::service;

const KEYS: usize = 16;
const CLIENTS: u64 = 64;
/// What is left after this time stays.
const SETTLE: Duration = Duration::from_secs(10);
const LEFT: [&str; 3] = ["leases left", "tickets left", "tasks left"];
const BROKEN: &str = "two holders at once";
const MISSING: &str = "requests without their answer";

/// Whose locks are used.
#[derive(Clone, Copy, PartialEq)]
enum Locks {
    Memory,
    Engine,
    MongoDb,
}

const ALL: [(&str, Locks); 3] =
    [("memory backend", Locks::Memory), ("lease engine over MemoryStore", Locks::Engine), ("MongoDB", Locks::MongoDb)];

pub(in crate::figures) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let requests = bench.choose(3_000, 100_000);
    let mut figure =
        Figure::new(Id::T(4), "2 replicas whose clients go away at random, one request in ten", bench.quick);
    for (who, locks) in ALL {
        bench.progress(format_args!("{who}: {requests} requests"));
        let uri = bench.deployment.uri().to_owned();
        // A runtime of its own, so that its tasks are those of the run.
        let outcome = spawn_blocking(move || {
            let runtime = Builder::new_multi_thread().enable_all().build()?;
            let outcome = runtime.block_on(one(locks, &uri, requests));
            runtime.shutdown_background();
            outcome
        });
        let outcome = outcome.await??;
        for (what, value) in outcome.counts() {
            figure.push(who, what, "", value as f64);
        }
        figure.push(who, "requests", "/s", requests as f64 / outcome.seconds);
        for what in LEFT.into_iter().chain([BROKEN, MISSING]) {
            figure.judge(format!("{who}: {what}"), figure.median(who, what), "", Bound::Most(0.0));
        }
    }
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    figure.note(format!(
        "{CLIENTS} clients, {KEYS} keys, two servers with a provider each – on MongoDB also a client each – in one process, so that the handlers see whether two of them hold one key. A client that goes away closes its \
         connection at a random moment between 0 and about 5 ms after it has sent its request: while it waits, in the handler, or in the body. Leases and tickets are counted in the store \
         when no request is served any longer, tasks when servers and providers are closed.",
    ));
    Ok(figure)
}

#[derive(Default)]
struct Outcomes {
    answered: u64,
    gone: u64,
    missing: u64,
    visits: u64,
    broken: u64,
    left: [u64; 3],
    seconds: f64,
}

impl Outcomes {
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = vec![
            ("requests answered", self.answered),
            ("clients that went away", self.gone),
            ("handlers begun", self.visits),
            (BROKEN, self.broken),
            (MISSING, self.missing),
        ];
        counts.extend(LEFT.into_iter().zip(self.left));
        counts
    }
}

/// What the keys stand for.
#[derive(Default)]
struct Rooms {
    busy: [AtomicBool; KEYS],
    visits: AtomicU64,
    broken: AtomicU64,
}

/// Leaves when dropped, wherever the request was then.
struct Visit(Arc<Rooms>, usize);

impl Visit {
    fn begin(rooms: Arc<Rooms>, key: usize) -> Self {
        rooms.visits.fetch_add(1, Ordering::Relaxed);
        if rooms.busy[key].swap(true, Ordering::SeqCst) {
            rooms.broken.fetch_add(1, Ordering::Relaxed);
        }
        Self(rooms, key)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.busy[self.1].store(false, Ordering::SeqCst);
    }
}

async fn one(locks: Locks, uri: &str, requests: u64) -> Outcome<Outcomes> {
    let store = MemoryStore::new();
    let (mut providers, mut clients): (Vec<Arc<dyn LockProvider>>, _) = (Vec::new(), Vec::new());
    let shared = MemoryProvider::new();
    for _ in 0..2 {
        providers.push(match locks {
            Locks::Memory => Arc::new(shared.clone()),
            Locks::Engine => Arc::new(store.provider()),
            Locks::MongoDb => {
                let client = Client::with_uri_str(uri).await?;
                clients.push(client.clone());
                Arc::new(ours::provider(&client, Contender::Ours.database(), Settings::new(true)).await?)
            }
        });
    }
    let rooms = Arc::new(Rooms::default());
    let (mut addresses, mut servers, mut monitors) = (Vec::new(), Vec::new(), Vec::new());
    for provider in &providers {
        let (router, monitor) = guarded(Arc::clone(provider), Arc::clone(&rooms))?;
        let (address, server) = service::serve(router).await?;
        addresses.push(address);
        servers.push(server);
        monitors.push(monitor);
    }

    let started = Instant::now();
    let mut crowd = JoinSet::new();
    for seed in 0..CLIENTS {
        let share = requests / CLIENTS + u64::from(seed < requests % CLIENTS);
        crowd.spawn(customer(addresses.clone(), seed, share));
    }
    let mut outcomes = Outcomes::default();
    while let Some(customer) = crowd.join_next().await {
        let customer = customer?;
        outcomes.answered += customer.answered;
        outcomes.gone += customer.gone;
        outcomes.missing += customer.missing;
    }
    outcomes.seconds = started.elapsed().as_secs_f64();
    outcomes.visits = rooms.visits.load(Ordering::Relaxed);
    outcomes.broken = rooms.broken.load(Ordering::Relaxed);

    for monitor in &monitors {
        // What does not become idle shows below.
        let _ = timeout(SETTLE, monitor.idle()).await;
    }
    let left = || async {
        let accounts = providers.iter().map(|provider| provider.accounting());
        let (leases, tickets) = accounts.fold((0, 0), |(held, waiting), one| (held + one.held, waiting + one.waiting));
        let (stored, queued) = match locks {
            Locks::Memory => (shared.keys_in_use() as u64, 0),
            Locks::Engine => in_store(&store),
            Locks::MongoDb => in_collection(&clients[0]).await?,
        };
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>([leases + stored, tickets + queued])
    };
    let end = Instant::now() + SETTLE;
    let [leases, tickets] = loop {
        let left = left().await?;
        if left == [0, 0] || Instant::now() > end {
            break left;
        }
        sleep(Duration::from_millis(20)).await;
    };

    for server in servers {
        server.abort();
    }
    for provider in providers {
        provider.close().await?;
    }
    for client in clients {
        client.shutdown().await;
    }
    let end = Instant::now() + SETTLE;
    while tasks() > 0 && Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
    }
    outcomes.left = [leases, tickets, tasks()];
    Ok(outcomes)
}

fn tasks() -> u64 {
    Handle::current().metrics().num_alive_tasks() as u64
}

/// A request takes up to a millisecond, and answers in pieces.
fn guarded(provider: Arc<dyn LockProvider>, rooms: Arc<Rooms>) -> Outcome<(Router, Monitor)> {
    let layer = LockLayer::new(provider, ParamKey::typed::<usize>("room", "key")?).wait_up_to(PATIENCE);
    let monitor = layer.monitor();
    let handler = move |Path(key): Path<usize>| async move {
        let visit = Visit::begin(rooms, key);
        pause(fastrand::u32(0..40)).await;
        let pieces = stream::iter(0..3).then(move |_| {
            let _ = &visit;
            async {
                pause(fastrand::u32(0..20)).await;
                Ok::<_, Infallible>("piece")
            }
        });
        Body::from_stream(pieces)
    };
    Ok((Router::new().route("/{key}", post(handler)).route_layer(layer), monitor))
}

/// Yields `times` times; now and then it sleeps, too.
async fn pause(times: u32) {
    for _ in 0..times {
        yield_now().await;
    }
    if times.is_multiple_of(16) {
        sleep(Duration::from_micros(500)).await;
    }
}

#[derive(Default)]
struct Customer {
    answered: u64,
    gone: u64,
    missing: u64,
}

async fn customer(addresses: Vec<SocketAddr>, seed: u64, requests: u64) -> Customer {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut told = Customer::default();
    let mut connection = None;
    for request in 0..requests {
        let path = format!("/{}", random.usize(0..KEYS));
        let leaves = random.u32(0..10) == 0;
        let mut here = match connection.take() {
            Some(connection) => connection,
            None => match Connection::open(addresses[(seed + request) as usize % addresses.len()]).await {
                Ok(connection) => connection,
                Err(_) => {
                    told.missing += 1;
                    continue;
                }
            },
        };
        if leaves {
            let patience = Duration::from_micros(random.u64(0..5_000));
            // Dropped in the middle, unless it was quicker.
            let _ = timeout(patience, async { client::read(here.send(&path).await?).await }).await;
            told.gone += 1;
        } else {
            match here.post(&path).await {
                Ok(status) if status.is_success() => {
                    told.answered += 1;
                    connection = Some(here);
                }
                _ => told.missing += 1,
            }
        }
    }
    told
}

fn in_store(store: &MemoryStore) -> (u64, u64) {
    let keys = || (0..KEYS).map(|key| format!("room/{key}"));
    let held = keys().filter(|key| store.peek(key).is_some()).count();
    (held as u64, keys().map(|key| store.waiting(key).len() as u64).sum())
}

/// Records that have a holder, and entries in their queues.
async fn in_collection(client: &Client) -> Outcome<(u64, u64)> {
    let records = client.database(Contender::Ours.database()).collection::<Document>("locks");
    let room = doc! { "_id": { "$regex": "^room/" } };
    if records.count_documents(room.clone()).await? != KEYS as u64 {
        return Err("the records are not where they are looked for".into());
    }
    let with = |field: &str| {
        let mut filter = room.clone();
        filter.insert(field, doc! { "$exists": true });
        records.count_documents(filter)
    };
    Ok((with("lockId").await?, with("queue.0").await?))
}
