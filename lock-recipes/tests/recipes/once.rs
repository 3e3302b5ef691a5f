//! What a recorder of metrics gets of work that is done once.

use std::time::Duration;

use distlock_api::ErrorKind;
use distlock_memory::MemoryOnce;
use distlock_recipes::once::{Once, OnceProvider, OnceProviderExt};
use metrics_util::debugging::DebuggingRecorder;

use crate::measured::measured;

#[tokio::test(start_paused = true)]
async fn each_answer_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let jobs = MemoryOnce::new().instrumented("jobs");

    let mut work = jobs.once("a").fingerprint("1").await.unwrap().begun().unwrap();
    assert!(jobs.try_once("a").await.unwrap().is_busy());
    work.complete("done").await.unwrap();
    assert!(jobs.once("a").await.unwrap().done().is_some());
    assert!(jobs.once("a").await.unwrap().done().is_some());
    assert!(matches!(jobs.once("a").fingerprint("2").await.unwrap(), Once::Mismatch(_)));

    drop(jobs.once("b").await.unwrap().begun().unwrap());
    assert!(matches!(jobs.once("b").at_most_once().await.unwrap(), Once::Interrupted(_)));
    jobs.once("b").await.unwrap().begun().unwrap().discard().await.unwrap();

    let refused = jobs.once("c").keep(Duration::ZERO).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    // One without a name reports nothing, neither calls nor locks.
    let silent = MemoryOnce::new();
    silent.once("a").await.unwrap().begun().unwrap().discard().await.unwrap();
    silent.close().await.unwrap();

    let expected = [
        "jobs begun = 2",
        "jobs begun_again = 1",
        "jobs busy = 1",
        "jobs done = 2",
        "jobs interrupted = 1",
        "jobs invalid_options = 1",
        "jobs mismatch = 1",
    ];
    assert_eq!(measured(&snapshotter, "distlock_once_total"), expected);

    let mut work = jobs.once("d").await.unwrap().begun().unwrap();
    work.complete("done").await.unwrap();
    assert_eq!(measured(&snapshotter, "distlock_holds_total"), ["jobs released = 1"]);
}
