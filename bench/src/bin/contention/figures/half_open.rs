//! B20: one connection becomes half open in the middle of an acquisition or a release. Everything
//! else works.

use std::time::Duration;

use distlock_api::LockProviderExt;
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
use distlock_mongo::MongoProvider;
use mongodb::Client;
use tokio::time::{sleep, timeout};

use super::{Bench, isolated};
use crate::Outcome;
use crate::clock::{self, Nanos, millis};
use crate::deployment;
use crate::locks::{Contender, Settings, ours};
use crate::report::{Bound, Figure};

/// When the program stops waiting for an answer.
const LIMIT: Duration = Duration::from_secs(90);
/// When, after the fault, the others request the key.
const LATER: Duration = Duration::from_millis(500);
/// Twice the default request timeout of 5 s.
const MOST: f64 = 10.0;
const WARM_UP: u64 = 16;

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Acquire,
    Release,
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    call: Call,
    lost: Way,
}

const CASES: [Case; 3] = [
    Case { name: "reply of the acquisition lost", call: Call::Acquire, lost: Way::ToClient },
    Case { name: "request of the acquisition lost", call: Call::Acquire, lost: Way::ToServer },
    Case { name: "request of the release lost", call: Call::Release, lost: Way::ToServer },
];

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(20, "a half-open connection");
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    let rounds = bench.choose(1, 3);
    for case in CASES {
        for round in 0..rounds {
            bench.progress(format_args!("{}, round {} of {rounds}", case.name, round + 1));
            let uri = bench.deployment.uri().to_owned();
            let seen = isolated(async move { one(&uri, case, round).await }).await?;
            seen.describe(&mut figure, case);
        }
        for what in seen_of(case.call) {
            let what = format!("{}: {what}", case.name);
            let seconds = figure.median(Contender::Ours, &what);
            figure.judge(what, seconds, "s", Bound::Most(MOST));
        }
    }
    figure.note(format!(
        "A proxy in front of the primary swallows the request or the reply of one `findAndModify` and passes nothing on \
         that connection from then on, without closing it. All other connections work. Default terms, no timeout of the \
         caller; the program stops waiting after {} s. Times count from the call that is hit; another task of the \
         process and another provider, with a client of its own, want the key {} ms later.",
        LIMIT.as_secs(),
        LATER.as_millis()
    ));
    figure.note("The raw driver, without a timeout of the caller, waits for the reply for ever.");
    Ok(figure)
}

/// What is measured if a call of this kind is hit.
fn seen_of(call: Call) -> [&'static str; 3] {
    let back = match call {
        Call::Acquire => "the acquisition is back",
        Call::Release => "the release is back",
    };
    [back, "another task has the key", "another provider has the key"]
}

async fn one(uri: &str, case: Case, round: usize) -> Outcome<Seen> {
    let primary = deployment::primary(uri).await?;
    let proxy = FaultProxy::start(primary.address.parse()?).await?;
    let through_proxy = format!("mongodb://{}/?directConnection=true", proxy.address());
    let (database, settings) = (Contender::Ours.database(), Settings::new(true));
    let provider = ours::provider(&Client::with_uri_str(&through_proxy).await?, database, settings).await?;
    let other = ours::provider(&Client::with_uri_str(uri).await?, database, settings).await?;
    warm_up(&provider).await?;
    warm_up(&other).await?;

    let key = format!("half-open-{}-{round}", case.name.replace(' ', "-"));
    let held = if case.call == Call::Release { Some(provider.acquire(&*key).await?) } else { None };
    // No other request has the key: it is the `findAndModify` of the call.
    proxy.strike(NetworkFault::half_open(case.lost, &*key));
    let start = clock::now();
    let hit = async {
        match held {
            Some(guard) => timeout(LIMIT, guard.release()).await.map(|released| released.map(|_| clock::now())),
            None => acquire(&provider, &key).await,
        }
    };
    let later = |provider| {
        let key = &key;
        async move {
            sleep(LATER).await;
            acquire(provider, key).await
        }
    };
    let (hit, task, provider_of_another) = tokio::join!(hit, later(&provider), later(&other));
    let hits = proxy.heal();
    if hits != 1 {
        return Err(format!("{}: {hits} connections were hit, not one", case.name).into());
    }
    Ok(Seen { start, ends: [hit, task, provider_of_another].map(|end| end.map_err(|_| ())) })
}

/// Opens more than one connection of the pool.
async fn warm_up(provider: &MongoProvider) -> Outcome<()> {
    let cycles = (0..WARM_UP).map(|number| async move {
        let guard = provider.acquire(format!("warm-up-{number}-{}", fastrand::u64(..))).await?;
        guard.release().await.map(|_| ())
    });
    futures_util::future::try_join_all(cycles).await?;
    Ok(())
}

/// An answer of the provider and its time; the outer error is that there is none.
type Answer<E> = Result<distlock_api::Result<Nanos>, E>;

async fn acquire(provider: &MongoProvider, key: &str) -> Answer<tokio::time::error::Elapsed> {
    let answer = timeout(LIMIT, async { provider.acquire(key).await }).await?;
    Ok(match answer {
        Ok(guard) => {
            let at = clock::now();
            // In the background, because only the time of the acquisition counts.
            drop(guard.release());
            Ok(at)
        }
        Err(error) => Err(error),
    })
}

/// What was observed in one round.
struct Seen {
    start: Nanos,
    ends: [Answer<()>; 3],
}

impl Seen {
    fn describe(&self, figure: &mut Figure, case: Case) {
        for (what, end) in seen_of(case.call).into_iter().zip(&self.ends) {
            let seconds = match end {
                Ok(Ok(at)) => millis(at - self.start) / 1_000.0,
                Ok(Err(error)) => {
                    figure.note(format!("{}: {what}: the answer was an error: {error}.", case.name));
                    LIMIT.as_secs_f64()
                }
                Err(()) => {
                    figure.note(format!("{}: {what}: not within {} s.", case.name, LIMIT.as_secs()));
                    LIMIT.as_secs_f64()
                }
            };
            figure.push(Contender::Ours, format!("{}: {what}", case.name), "s", seconds);
        }
    }
}
