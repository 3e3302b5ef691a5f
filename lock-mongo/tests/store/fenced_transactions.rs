//! Transactions of several documents that only the present holder can commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::error::Error;
use distlock_mongo::mongodb::event::EventHandler;
use distlock_mongo::mongodb::event::command::CommandEvent;
use distlock_mongo::mongodb::options::{ReadConcern, WriteConcern};
use distlock_mongo::{Fence, Fenced, TransactionError};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::Checks;
use super::pair::Pair;
use super::world::{Sent, World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    if !checks.is_replica_set() {
        check!(checks, transaction_needs_a_replica_set);
        return;
    }
    check!(checks, transaction_of_a_stale_holder_changes_nothing);
    check!(checks, transaction_of_a_newer_holder_waits_for_the_older_one);
    check!(checks, transaction_of_an_older_holder_that_overlaps_is_fenced_off);
    check!(checks, transaction_under_the_same_token_conflicts_with_a_newer_one);
    check!(checks, transaction_that_only_reads_stops_earlier_holders);
    check!(checks, transaction_first_use_race);
    check!(checks, transaction_race_keeps_documents_equal);
    check!(checks, transaction_dropped_in_the_middle_leaves_nothing);
    check!(checks, transaction_error_of_the_work_aborts);
    check!(checks, transaction_is_bounded_in_time);
    check!(checks, transaction_has_concerns_of_its_own);
    check!(checks, transaction_refuses_bad_input);
    check!(checks, transaction_by_hand);
    check!(checks, alone transaction_of_a_holder_that_was_killed_inside_one);
    check!(checks, alone transaction_commit_of_unknown_outcome);
    check!(checks, alone transaction_outcome_stays_unknown_after_a_later_error);
}

const LIMIT: Duration = Duration::from_secs(20);

impl Pair {
    async fn new(world: &World) -> Self {
        Self::create(world.raw(&random_name("pair")), world.raw(&random_name("fences")), LIMIT).await
    }

    /// Begins a transaction that waits after its writes until it is let go.
    fn begin(&self, token: u64, line: u64) -> Paused {
        let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (pair, signals) = (self.clone(), (Arc::clone(&written), Arc::clone(&go)));
        let task = tokio::spawn(async move {
            let transaction = pair.transaction(token);
            let run = transaction.run(|session| {
                let (pair, (written, go)) = (pair.clone(), signals.clone());
                Box::pin(async move {
                    pair.add(line, session).await?;
                    written.notify_one();
                    go.notified().await;
                    // The next calls do not wait.
                    go.notify_one();
                    Ok(())
                })
            });
            run.await
        });
        Paused { written, go, task }
    }

    async fn record(&self) -> Document {
        self.records.find_one(doc! { "_id": "the lock" }).await.unwrap().unwrap()
    }
}

struct Paused {
    written: Arc<Notify>,
    go: Arc<Notify>,
    task: tokio::task::JoinHandle<Result<Fenced<()>, TransactionError>>,
}

impl Paused {
    async fn finish(self) -> Result<Fenced<()>, TransactionError> {
        self.go.notify_one();
        self.task.await.unwrap()
    }
}

fn fenced_off(token: u64) -> Fenced<()> {
    Fenced::FencedOff { newest: FencingToken::new(token) }
}

fn failed(result: Result<Fenced<()>, TransactionError>) -> distlock_api::LockError {
    match result {
        Err(TransactionError::Failed(error)) => error,
        other => panic!("it should have failed: {other:?}"),
    }
}

async fn transaction_of_a_stale_holder_changes_nothing(world: World) {
    let pair = Pair::new(&world).await;
    assert_eq!(pair.commit(5, 1).await.unwrap(), Fenced::Accepted(()));
    assert_eq!(pair.commit(5, 2).await.unwrap(), Fenced::Accepted(()), "the same token may write again");
    assert_eq!(pair.commit(7, 3).await.unwrap(), Fenced::Accepted(()));
    assert_eq!(pair.commit(5, 4).await.unwrap(), fenced_off(7));
    assert_eq!(pair.logs().await, [1, 2, 3]);
    let record = pair.record().await;
    assert_eq!((record.get_i64("_fence").unwrap(), record.get_i64("transactions").unwrap()), (7, 3));
}

async fn transaction_of_a_newer_holder_waits_for_the_older_one(world: World) {
    let pair = Pair::new(&world).await;
    let older = pair.begin(5, 1);
    older.written.notified().await;
    let newer = tokio::spawn({
        let pair = pair.clone();
        async move {
            // What it reads in its transaction contains the older one's commit.
            let transaction = pair.transaction(6);
            let seen = transaction.run(|session| {
                let pair = pair.clone();
                Box::pin(async move {
                    let found = pair.documents.find_one(doc! { "_id": 2 }).session(&mut *session).await?;
                    pair.add(2, session).await?;
                    Ok(found.unwrap().get_array("log").unwrap().len())
                })
            });
            (seen.await, Instant::now())
        }
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!newer.is_finished(), "it commits before the older one, whose transaction is open");
    assert!(pair.logs().await.is_empty());
    let released = Instant::now();
    assert_eq!(older.finish().await.unwrap(), Fenced::Accepted(()));
    let (seen, committed) = newer.await.unwrap();
    assert_eq!(seen.unwrap(), Fenced::Accepted(1));
    assert!(committed > released);
    assert_eq!(pair.logs().await, [1, 2]);
}

async fn transaction_of_an_older_holder_that_overlaps_is_fenced_off(world: World) {
    let pair = Pair::new(&world).await;
    let newer = pair.begin(6, 1);
    newer.written.notified().await;
    let older = tokio::spawn({
        let pair = pair.clone();
        async move { pair.commit(5, 2).await }
    });
    sleep(Duration::from_millis(100)).await;
    assert_eq!(newer.finish().await.unwrap(), Fenced::Accepted(()));
    assert_eq!(older.await.unwrap().unwrap(), fenced_off(6));
    assert_eq!(pair.logs().await, [1]);
}

/// The holder's token is in the record already. If its stamp changed nothing, it would be no write,
/// and the transaction would commit after the one of the newer holder.
async fn transaction_under_the_same_token_conflicts_with_a_newer_one(world: World) {
    let pair = Pair::new(&world).await;
    assert_eq!(pair.commit(5, 1).await.unwrap(), Fenced::Accepted(()));
    // It has stamped, and changes no document that the newer one changes.
    let (stamped, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let late = tokio::spawn({
        let (pair, signals) = (pair.clone(), (Arc::clone(&stamped), Arc::clone(&go)));
        async move {
            let transaction = pair.transaction(5);
            let run = transaction.run(|session| {
                let (pair, (stamped, go)) = (pair.clone(), signals.clone());
                Box::pin(async move {
                    stamped.notify_one();
                    go.notified().await;
                    go.notify_one();
                    pair.documents.insert_one(doc! { "_id": "late" }).session(session).await?;
                    Ok(())
                })
            });
            run.await
        }
    });
    stamped.notified().await;
    let newer = tokio::spawn({
        let pair = pair.clone();
        async move { pair.commit(6, 2).await }
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!newer.is_finished(), "the newer holder has committed while an earlier transaction is open");
    go.notify_one();
    assert_eq!(late.await.unwrap().unwrap(), Fenced::Accepted(()));
    assert_eq!(newer.await.unwrap().unwrap(), Fenced::Accepted(()));
    assert_eq!(pair.commit(5, 3).await.unwrap(), fenced_off(6));
    assert_eq!(pair.logs().await, [1, 2]);
}

async fn transaction_that_only_reads_stops_earlier_holders(world: World) {
    let pair = Pair::new(&world).await;
    let transaction = pair.transaction(6);
    let read = transaction.run(|session| {
        let pair = pair.clone();
        Box::pin(async move { pair.documents.count_documents(doc! {}).session(session).await })
    });
    assert_eq!(read.await.unwrap(), Fenced::Accepted(2));
    assert_eq!(pair.commit(5, 1).await.unwrap(), fenced_off(6));
    assert!(pair.logs().await.is_empty());
}

/// The record does not exist, nor does its collection.
async fn transaction_first_use_race(world: World) {
    for _ in 0..3 {
        let pair = Pair::new(&world).await;
        race(&pair, 1..=8).await;
    }
}

async fn transaction_race_keeps_documents_equal(world: World) {
    let pair = Pair::new(&world).await;
    assert_eq!(pair.commit(1, 1).await.unwrap(), Fenced::Accepted(()));
    race(&pair, 2..=17).await;
}

/// One transaction for each token, all at once.
async fn race(pair: &Pair, tokens: std::ops::RangeInclusive<u64>) {
    let last = *tokens.end();
    let before = pair.logs().await.len();
    let writers: Vec<_> = tokens
        .map(|token| {
            let pair = pair.clone();
            tokio::spawn(async move { (token, pair.commit(token, token).await.unwrap()) })
        })
        .collect();
    let mut accepted = 0;
    for writer in writers {
        match writer.await.unwrap() {
            (_, Fenced::Accepted(())) => accepted += 1,
            (token, Fenced::FencedOff { newest }) => assert!(newest.get() > token),
            (token, Fenced::NoDocument) => panic!("token {token}: no record"),
        }
    }
    let log = pair.logs().await;
    assert_eq!((log.len() - before, log.last()), (accepted, Some(&last.cast_signed())));
    assert!(log.is_sorted(), "a smaller token committed after a greater one: {log:?}");
    let record = pair.record().await;
    assert_eq!(record.get_i64("_fence").unwrap().unsigned_abs(), last);
    assert_eq!(record.get_i64("transactions").unwrap(), i64::try_from(log.len()).unwrap());
}

async fn transaction_dropped_in_the_middle_leaves_nothing(world: World) {
    let pair = Pair::new(&world).await;
    let dropped = pair.begin(5, 1);
    dropped.written.notified().await;
    dropped.task.abort();
    assert!(dropped.task.await.unwrap_err().is_cancelled());
    let begun = Instant::now();
    // Neither its writes nor its stamp.
    assert_eq!(pair.commit(4, 2).await.unwrap(), Fenced::Accepted(()));
    assert!(begun.elapsed() < LIMIT / 2, "the transaction was not aborted: {:?}", begun.elapsed());
    assert_eq!(pair.logs().await, [2]);
}

async fn transaction_error_of_the_work_aborts(world: World) {
    let pair = Pair::new(&world).await;
    let (mut calls, transaction) = (0, pair.transaction(5));
    let run = transaction.run(|session| {
        calls += 1;
        let pair = pair.clone();
        Box::pin(async move {
            pair.add(1, session).await?;
            Err::<(), _>(Error::custom("too little money"))
        })
    });
    match run.await {
        Err(TransactionError::Work(error)) => assert_eq!(error.get_custom(), Some(&"too little money")),
        other => panic!("the work has failed: {other:?}"),
    }
    assert_eq!(calls, 1);
    // An error of the server, which aborts by itself.
    let duplicate = transaction.run(|session| {
        let pair = pair.clone();
        Box::pin(async move { pair.documents.insert_one(doc! { "_id": 1 }).session(session).await.map(drop) })
    });
    assert!(matches!(duplicate.await, Err(TransactionError::Work(_))));
    assert!(pair.logs().await.is_empty());
    assert_eq!(pair.commit(4, 2).await.unwrap(), Fenced::Accepted(()), "the stamp was aborted, too");
}

async fn transaction_is_bounded_in_time(world: World) {
    let pair = Pair::new(&world).await;
    let open = pair.begin(5, 1);
    open.written.notified().await;
    let begun = Instant::now();
    let limited = pair.transaction(6).within(Duration::from_millis(400));
    let error = failed(limited.run(|session| pair.work(2, session)).await);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error}");
    assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
    assert_eq!(open.finish().await.unwrap(), Fenced::Accepted(()));
    // Work that hangs.
    let hanging = limited.run(|_| Box::pin(std::future::pending()));
    let error = failed(hanging.await);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error}");
    assert_eq!(pair.commit(5, 3).await.unwrap(), Fenced::Accepted(()));
    assert_eq!(pair.logs().await, [1, 3]);
}

/// Its successor succeeds within the default limit. The times are a sixth of the default ones.
async fn transaction_of_a_holder_that_was_killed_inside_one(world: World) {
    const PART: u32 = 6;
    const SERVER: Duration = Duration::from_secs(60);

    let lifetime = async |limit: Duration| {
        let seconds = i64::try_from(limit.as_secs()).unwrap();
        world.admin(doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": seconds }).await;
    };
    let pair = Pair::new(&world).await;
    assert_eq!(pair.commit(4, 1).await.unwrap(), Fenced::Accepted(()));
    lifetime(SERVER / PART).await;
    // To the server, and to its successor, a process that is gone and one that pauses are the same.
    let killed = pair.begin(5, 2);
    killed.written.notified().await;
    let successor = pair.transaction(6).within(distlock_mongo::FencedTransaction::DEFAULT_LIMIT / PART);
    let succeeded = successor.run(|session| pair.work(3, session)).await;
    lifetime(SERVER).await;
    assert_eq!(succeeded.unwrap(), Fenced::Accepted(()));
    assert_eq!(killed.finish().await.unwrap(), fenced_off(6));
    assert_eq!(pair.logs().await, [1, 3]);
}

async fn transaction_has_concerns_of_its_own(world: World) {
    let sent = Sent::default();
    let (client, options) = world
        .connect(|options| {
            options.command_event_handler = Some(sent.handler());
            options.write_concern = Some(WriteConcern::nodes(1));
            options.read_concern = Some(ReadConcern::local());
        })
        .await;
    let pair = Pair::new(&World { client, options, ..world }).await;
    assert_eq!(pair.commit(5, 1).await.unwrap(), Fenced::Accepted(()));
    sent.take();
    assert_eq!(pair.commit(5, 2).await.unwrap(), Fenced::Accepted(()));
    let commands = sent.take();
    let names: Vec<_> = commands.iter().map(|command| command.keys().next().unwrap().as_str()).collect();
    assert_eq!(names, ["update", "update", "update", "commitTransaction"], "one more than the work has");
    let level = commands[0].get_document("readConcern").unwrap().get_str("level").unwrap();
    assert_eq!((level, commands[0].get_bool("startTransaction").unwrap()), ("snapshot", true));
    assert_eq!(commands[3].get_document("writeConcern").unwrap().get_str("w").unwrap(), "majority");
    assert!(commands[3].contains_key("maxTimeMS"), "{:?}", commands[3]);
}

async fn transaction_refuses_bad_input(world: World) {
    let pair = Pair::new(&world).await;
    let zero = pair.transaction(5).within(Duration::ZERO);
    let fence = Fence::new(FencingToken::new(5)).unwrap().field("transactions").unwrap();
    for transaction in [zero, fence.transaction(&pair.records, 1)] {
        let error = failed(transaction.run(|session| pair.work(1, session)).await);
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    }
    assert_eq!(pair.records.count_documents(doc! {}).await.unwrap(), 0, "nothing was sent");
    pair.records.insert_one(doc! { "_id": "the lock", "_fence": "7" }).await.unwrap();
    let error = failed(pair.commit(5, 1).await);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Corrupt, false), "{error}");
    assert!(pair.logs().await.is_empty());
}

async fn transaction_by_hand(world: World) {
    let pair = Pair::new(&world).await;
    let mut session = world.client.start_session().await.unwrap();
    let transaction = pair.transaction(5);
    session.start_transaction().await.unwrap();
    assert_eq!(transaction.stamp(&mut session).await.unwrap(), Fenced::NoDocument);
    session.abort_transaction().await.unwrap();
    transaction.prepare(&mut session).await.unwrap();
    transaction.prepare(&mut session).await.unwrap();
    session.start_transaction().await.unwrap();
    assert_eq!(transaction.stamp(&mut session).await.unwrap(), Fenced::Accepted(()));
    pair.add(1, &mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    session.start_transaction().await.unwrap();
    assert_eq!(pair.transaction(4).stamp(&mut session).await.unwrap(), fenced_off(5));
    session.abort_transaction().await.unwrap();
    assert_eq!(pair.logs().await, [1]);
}

/// The server commits, and the client does not learn of it: the commit is repeated, and the work is
/// not.
async fn transaction_commit_of_unknown_outcome(world: World) {
    // After an error that tells of a shutdown, the driver takes no server until its next heartbeat,
    // after ten seconds by default. Two such errors would take as long as the transaction may.
    let app = random_name("app");
    let connecting = world.connect(|options| {
        options.app_name = Some(app.clone());
        options.heartbeat_freq = Some(Duration::from_secs(1));
    });
    let (client, _) = connecting.await;
    let pair = Pair::new(&World { client, ..world.clone() }).await;
    assert_eq!(pair.commit(5, 1).await.unwrap(), Fenced::Accepted(()));
    let mut calls = 0;
    let unconfirmed = doc! { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "test" };
    let data = doc! { "failCommands": ["commitTransaction"], "appName": &app, "writeConcernError": unconfirmed };
    // The driver itself repeats the first one.
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 2 }, "data": data }).await;
    let transaction = pair.transaction(5);
    let run = transaction.run(|session| {
        calls += 1;
        pair.work(2, session)
    });
    assert_eq!(run.await.unwrap(), Fenced::Accepted(()));
    assert_eq!((calls, pair.logs().await), (1, vec![1, 2]));

    // The server refuses the commit, and says that the transaction can be begun again.
    let refused = doc! { "errorCode": 251, "errorLabels": ["TransientTransactionError"] };
    world.fail(&app, "commitTransaction", refused).await;
    let mut calls = 0;
    let run = transaction.run(|session| {
        calls += 1;
        pair.work(3, session)
    });
    assert_eq!(run.await.unwrap(), Fenced::Accepted(()));
    assert_eq!((calls, pair.logs().await), (2, vec![1, 2, 3]));
}

/// The server commits, and the client does not learn of it. Then a call fails with an error that
/// says nothing of the transaction: one of the driver's own repetition, or a later one.
async fn transaction_outcome_stays_unknown_after_a_later_error(world: World) {
    for before in [1, 2] {
        let app = random_name("app");
        let (commits, refused) = (AtomicUsize::new(0), (world.clone(), app.clone()));
        let handler = EventHandler::callback(move |event: CommandEvent| {
            let is_commit = matches!(event, CommandEvent::Started(event) if event.command_name == "commitTransaction");
            if is_commit && commits.fetch_add(1, Ordering::Relaxed) == before {
                // Before it is sent.
                let (world, app) = &refused;
                let refuse = world.fail(app, "commitTransaction", doc! { "errorCode": 13 });
                block_in_place(|| Handle::current().block_on(refuse));
            }
        });
        let connecting = world.connect(|options| {
            options.app_name = Some(app.clone());
            options.command_event_handler = Some(handler);
        });
        let (client, _) = connecting.await;
        let pair = Pair::new(&World { client, ..world.clone() }).await;
        let unconfirmed = doc! { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "test" };
        let data = doc! { "failCommands": ["commitTransaction"], "appName": &app, "writeConcernError": unconfirmed };
        let times = doc! { "times": i32::try_from(before).unwrap() };
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": times, "data": data }).await;
        let error = failed(pair.commit(5, 1).await);
        assert!(error.is_outcome_unknown(), "{error}");
        assert_eq!(pair.logs().await, [1], "it is committed");
    }
}

async fn transaction_needs_a_replica_set(world: World) {
    let pair = Pair::new(&world).await;
    let error = failed(pair.commit(5, 1).await);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error}");
    assert!(pair.logs().await.is_empty());
}
