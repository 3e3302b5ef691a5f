//! `run --once`: work that is done once per key.

use distlock::mongodb::mongodb::bson::doc;
use rustix::process::Signal;
use serde_json::Value;

use crate::Tests;
use crate::kit::{World, fresh_path, hold, until, until_dead};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("once::work_that_is_done_is_not_done_again", done);
    tests.add("once::of_many_runs_at_the_same_time_one_does_the_work", at_the_same_time);
    tests.add("once::work_that_has_failed_is_done_again", failed);
    tests.add("once::work_under_way_is_busy", busy);
    tests.add("once::work_of_a_process_that_was_killed_is_done_again", killed);
    tests.add("once::it_needs_one_key", usage);
    tests.add("once::each_state_is_shown", shown);
    tests.add("once::doctor_examines_the_outcomes", examined);
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

async fn state(world: &World, key: &str) -> Value {
    world.output(&["show", key, "--once"]).await.expect(0).objects().remove(0)
}

async fn shown(world: World) {
    assert_eq!(state(&world, "k").await["state"], "new");
    let (mut holder, _) = hold(&world, &["k", "--once", "--owner", "the first"]).await;
    let under_way = state(&world, "k").await;
    assert!(under_way["state"] == "under way" && under_way["owner"] == "the first", "{under_way}");
    holder.end().await.expect(0);
    let done = state(&world, "k").await;
    assert!(done["state"] == "done" && done["token"] == under_way["token"], "{done}");
    assert!(done["begun_at"].is_string() && done["done_at"].is_string(), "{done}");
    world.output(&["run", "other", "--once", "--", "false"]).await.expect(1);
    // The release of the lease is on the primary, and shown when a majority has it.
    until(async || state(&world, "other").await["state"] == "interrupted").await;
    // A lock of the same key is another thing.
    let lock = world.output(&["show", "k"]).await.expect(0).objects().remove(0);
    assert_eq!(lock["state"], "free", "{lock}");
}

async fn examined(world: World) {
    let verdict = |findings: &[Value], check: &str| {
        let finding = findings.iter().find(|finding| finding["check"] == check);
        finding.unwrap_or_else(|| panic!("{check} is missing: {findings:?}"))["verdict"].clone()
    };
    let findings = world.output(&["doctor", "--once"]).await.expect(0).objects();
    for check in ["onceCollection", "onceIndexes", "indexes"] {
        assert_eq!(verdict(&findings, check), "ok", "{findings:?}");
    }
    verdict(&findings, "oncePrivileges");
    let index = doc! { "key": { "other": 1 }, "name": "mine", "expireAfterSeconds": 60 };
    let create = doc! { "createIndexes": "jobs", "indexes": [index] };
    world.client.database(&world.database).run_command(create).await.expect("an index");
    let findings = world.output(&["doctor", "--once=jobs"]).await.expect(1).objects();
    assert_eq!(verdict(&findings, "onceIndexes"), "wrong", "{findings:?}");
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
