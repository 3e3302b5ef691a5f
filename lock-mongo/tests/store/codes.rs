//! Each code of a server that the guide to errors lists: what the library derives from it, and that
//! its callers recover.

use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockProvider, LockProviderExt};
use distlock_engine::store::{Attempt, LeaseStore};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Bson, Document, doc};

use super::Checks;
use super::world::{LONG, World, claim, key, random_name};

/// A part of the ttl, so that a key that is free by then has not expired.
const SOON: Duration = Duration::from_secs(30);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, alone every_listed_code_has_its_verdict);
    check!(checks, alone every_listed_code_leaves_nothing_behind);
    check!(checks, alone a_write_that_was_done_has_an_unknown_outcome_whatever_its_code);
}

/// The server gives these with details that a fail point lacks. The checks of validators and of
/// lost races provoke them.
const WITH_DETAILS: [i32; 2] = [121, 11000];

struct Listed {
    code: i32,
    disposition: Disposition,
    kind: ErrorKind,
}

/// Returns the codes of the guide's table.
fn listed() -> Vec<Listed> {
    let rows = crate::guide::TEXT;
    let rows = rows.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    let codes: Vec<_> = rows.flat_map(codes).filter(|listed| !WITH_DETAILS.contains(&listed.code)).collect();
    assert!(codes.len() > 50, "the guide's table is not found");
    codes
}

fn codes(row: &str) -> Vec<Listed> {
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    let disposition = match cells[2] {
        "retryable" => Disposition::Retryable,
        "unknown" => Disposition::OutcomeUnknown,
        "permanent" => Disposition::Permanent,
        other => panic!("{other}"),
    };
    let kind = match cells[3] {
        "unavailable" => ErrorKind::Unavailable,
        "timeout" => ErrorKind::Timeout,
        "permission" => ErrorKind::PermissionDenied,
        "unsupported" => ErrorKind::Unsupported,
        "corrupt" => ErrorKind::Corrupt,
        "other" => ErrorKind::Other,
        other => panic!("{other}"),
    };
    cells[1].split(' ').map(|code| Listed { code: code.parse().unwrap(), disposition, kind }).collect()
}

/// A client that fails alone. After some errors the driver takes no server until its next
/// heartbeat, after ten seconds by default.
async fn fragile(world: &World) -> (Client, String) {
    let app = random_name("app");
    let often = Some(Duration::from_millis(500));
    let (client, _) =
        world.connect(|options| (options.app_name, options.heartbeat_freq) = (Some(app.clone()), often)).await;
    (client, app)
}

async fn fail(world: &World, app: &str, mode: impl Into<Bson>, how: Document) {
    let mut data = doc! { "failCommands": ["findAndModify"], "appName": app };
    data.extend(how);
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": data }).await;
}

async fn heal(world: &World) {
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
}

fn has_code(error: &distlock_api::LockError, code: i32) -> bool {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    code == 13 || cause.starts_with(&format!("error {code} "))
}

async fn every_listed_code_has_its_verdict(world: World) {
    let (client, app) = fragile(&world).await;
    let store = world.store_on(&client, &random_name("locks"));
    let mut wrong = Vec::new();
    for Listed { code, disposition, kind } in listed() {
        let attempt = || Attempt::new(claim(&key()), LONG).with_timeout(SOON);
        store.try_acquire(&attempt()).await.unwrap();
        // The driver repeats some.
        fail(&world, &app, "alwaysOn", doc! { "errorCode": code }).await;
        let error = store.try_acquire(&attempt()).await.unwrap_err();
        heal(&world).await;
        assert!(has_code(&error, code), "the server answered otherwise to {code}: {error:?}");
        crate::guide::lists(&error);
        if (error.disposition(), error.kind()) != (disposition, kind) {
            wrong.push(format!("{code}: {:?} {:?}", error.disposition(), error.kind()));
        }
    }
    assert!(wrong.is_empty(), "the guide says otherwise: {wrong:?}");
}

fn provider(client: &Client, collection: &str) -> MongoProvider {
    let lease = distlock_api::LeaseOptions::new().ttl(LONG);
    MongoProvider::builder(client.database("distlock_test")).collection(collection).lease(lease).build().unwrap()
}

/// A caller that waits gets its lock after an error that may pass, and no later one finds anything
/// of it. A permanent error ends the wait.
async fn every_listed_code_leaves_nothing_behind(world: World) {
    let (client, app) = fragile(&world).await;
    let collection = random_name("locks");
    let (meant, other) = (provider(&client, &collection), provider(&world.client, &collection));
    meant.prepare().await.unwrap();
    for Listed { code, disposition, kind } in listed() {
        let key = key();
        let ends_the_wait = disposition == Disposition::Permanent || kind == ErrorKind::Corrupt;
        // The driver repeats some of them once.
        fail(&world, &app, doc! { "times": 2 }, doc! { "errorCode": code }).await;
        let acquired = meant.acquire(&key).timeout(SOON).await;
        heal(&world).await;
        match acquired {
            Err(error) => assert!(ends_the_wait && has_code(&error, code), "{code}: {error:?}"),
            Ok(guard) => {
                assert!(!ends_the_wait, "{code}");
                assert!(other.try_acquire(&key).await.unwrap().is_none(), "{code}");
                assert!(guard.release().await.unwrap().is_released(), "{code}");
            }
        }
        let next = other.acquire(&key).timeout(SOON).await.unwrap_or_else(|error| panic!("{code}: {error:?}"));
        assert!(next.release().await.unwrap().is_released());
    }
    meant.close().await.unwrap();
    let accounting = meant.accounting();
    assert!(accounting.balances() && accounting.held + accounting.unsettled == 0, "{accounting:?}");
}

/// The answer is an error of the write concern: the primary has granted the lock.
async fn a_write_that_was_done_has_an_unknown_outcome_whatever_its_code(world: World) {
    let (client, app) = fragile(&world).await;
    let collection = random_name("locks");
    let (meant, other) = (provider(&client, &collection), provider(&world.client, &collection));
    meant.prepare().await.unwrap();
    for Listed { code, .. } in listed() {
        let key = key();
        let how = doc! { "writeConcernError": { "code": code, "errmsg": "test" } };
        fail(&world, &app, "alwaysOn", how).await;
        let error = meant.try_acquire(&key).await.unwrap_err();
        heal(&world).await;
        assert!(error.is_outcome_unknown(), "{code}: {error:?}");
        let next = other.acquire(&key).timeout(SOON).await.unwrap_or_else(|error| panic!("{code}: {error:?}"));
        assert!(next.release().await.unwrap().is_released());
    }
}
