//! `run --once`: work that is done once per key.

use rustix::process::Signal;

use crate::Tests;
use crate::kit::{World, fresh_path, hold, until_dead};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("once::work_that_is_done_is_not_done_again", done);
    tests.add("once::of_many_runs_at_the_same_time_one_does_the_work", at_the_same_time);
    tests.add("once::work_that_has_failed_is_done_again", failed);
    tests.add("once::work_under_way_is_busy", busy);
    tests.add("once::work_of_a_process_that_was_killed_is_done_again", killed);
    tests.add("once::it_needs_one_key", usage);
}

async fn done(world: World) {
    let run = ["run", "report/2026-11-25", "--once", "--owner", "the first", "--", "sh", "-c", "echo $DISTLOCK_KEY"];
    let first = world.output(&run).await.expect(0);
    assert_eq!(first.out, "report/2026-11-25\n");
    for _ in 0..2 {
        let again = world.output(&run).await.expect(0);
        assert!(again.out.is_empty() && again.err.contains("the first has done"), "{again:?}");
    }
    let other = ["run", "report/2026-11-26", "--once", "--", "echo", "another date"];
    assert_eq!(world.output(&other).await.expect(0).out, "another date\n");
    // A lock of the same key is another thing.
    world.output(&["run", "report/2026-11-25", "--try", "--", "true"]).await.expect(0);
    let short = ["run", "short", "--once", "--keep", "1ms", "--", "echo", "done"];
    assert_eq!(world.output(&short).await.expect(0).out, "done\n");
    assert_eq!(world.output(&short).await.expect(0).out, "done\n", "it is no longer remembered");
}

async fn at_the_same_time(world: World) {
    let file = fresh_path();
    let script = format!("echo done >> {}; sleep 0.2", file.display());
    let run = ["run", "k", "--once", "--", "sh", "-c", &script];
    for finished in futures_util::future::join_all((0..6).map(|_| world.output(&run))).await {
        finished.expect(0);
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "done\n");
    std::fs::remove_file(&file).expect("the file");
}

async fn failed(world: World) {
    world.output(&["run", "k", "--once", "--owner", "the first", "--", "sh", "-c", "exit 7"]).await.expect(7);
    let again = world.output(&["run", "k", "--once", "--", "echo", "again"]).await.expect(0);
    assert!(again.out == "again\n" && again.err.contains("the first has begun"), "{again:?}");
    // A command that could not be started has done no work.
    world.output(&["run", "other", "--once", "--", "/no/such/command"]).await.expect(127);
    let next = world.output(&["run", "other", "--once", "--", "true"]).await.expect(0);
    assert!(!next.err.contains("has begun"), "{next:?}");
}

async fn busy(world: World) {
    let (mut holder, _) = hold(&world, &["k", "--once"]).await;
    world.output(&["run", "k", "--once", "--try", "--", "true"]).await.expect(75);
    // A wait that ends before the first answer of the server has another exit code.
    world.output(&["run", "k", "--once", "--timeout", "5s", "--", "true"]).await.expect(75);
    holder.end().await.expect(0);
    let next = world.output(&["run", "k", "--once", "--try", "--", "echo", "again"]).await.expect(0);
    assert!(next.out.is_empty(), "{next:?}");
}

async fn killed(world: World) {
    let (running, command) = hold(&world, &["k", "--once", "--ttl", "3s", "--owner", "the first"]).await;
    running.signal(Signal::KILL);
    until_dead(command).await;
    let again = world.output(&["run", "k", "--once", "--timeout", "50s", "--", "echo", "again"]).await.expect(0);
    assert!(again.out == "again\n" && again.err.contains("the first has begun"), "{again:?}");
}

async fn usage(world: World) {
    let refused = world.output(&["run", "a", "b", "--once", "--", "true"]).await.expect(64);
    assert!(refused.err.contains("one key"), "{refused:?}");
}
