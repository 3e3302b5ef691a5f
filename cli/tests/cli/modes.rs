//! Locks that several commands hold together: shared, and by permits.

use serde_json::Value;

use crate::Tests;
use crate::kit::{World, finish, fresh_path, hold};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("modes::c26_shared_runs_are_together_and_others_alone", shared);
    tests.add("modes::c27_no_more_runs_than_permits", permits);
    tests.add("modes::c27_many_runs_never_exceed_the_permits", many);
    tests.add("modes::one_holder_of_several_can_be_released_by_force", one_of_several);
    tests.add("modes::watch_prints_the_mode", watch);
    tests.add("modes::c30_impossible_modes_are_refused", usage);
}

async fn shared(world: World) {
    let (mut first, _) = hold(&world, &["k", "--shared", "--owner", "first"]).await;
    let (mut second, _) = hold(&world, &["k", "--shared", "--try", "--owner", "second"]).await;
    world.output(&["run", "k", "--try", "--", "true"]).await.expect(75);
    world.output(&["run", "k", "--permits", "1/9", "--try", "--", "true"]).await.expect(75);

    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    let info = world.inspect("k").await.expect("it is held");
    assert_eq!((&shown[0]["state"], &shown[0]["mode"]), (&"held".into(), &"shared".into()));
    assert_eq!(shown[0]["token"].as_u64(), Some(info.token.get()));
    let holders = shown[0]["holders"].as_array().expect("a list");
    let named: Vec<_> = holders.iter().map(|holder| holder["owner"].as_str().expect("a name")).collect();
    assert_eq!(named, ["first", "second"], "in the order of their grants");
    assert!(holders[0]["token"].as_u64() < holders[1]["token"].as_u64(), "{shown:?}");
    let table = world.output(&["ls", "--human"]).await.expect(0).out;
    assert!(table.contains("shared by 2  first and 1 other"), "{table}");
    let lines = world.output(&["show", "k", "--human"]).await.expect(0).out;
    assert_eq!(lines.lines().filter(|line| line.starts_with("holder ")).count(), 2, "{lines}");

    let mut writer = world.start(&["run", "k", "--", "echo", "alone"]);
    world.until_waiting("k", 1).await;
    // A reader behind a waiting writer waits (C28).
    world.output(&["run", "k", "--shared", "--try", "--", "true"]).await.expect(75);
    first.end().await.expect(0);
    second.end().await.expect(0);
    assert_eq!(writer.line().await, "alone");
    writer.end().await.expect(0);

    let (mut alone, _) = hold(&world, &["k", "--try"]).await;
    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    assert_eq!((&shown[0]["mode"], shown[0]["holders"].as_array().map(Vec::len)), (&"exclusive".into(), Some(1)));
    world.output(&["run", "k", "--shared", "--try", "--", "true"]).await.expect(75);
    alone.end().await.expect(0);
    assert_eq!(world.inspect("k").await, None);
}

async fn permits(world: World) {
    let (mut first, _) = hold(&world, &["k", "--permits", "1/3"]).await;
    let (mut second, _) = hold(&world, &["k", "--permits", "2/3", "--try"]).await;
    let refused = world.output(&["run", "k", "--permits", "1/3", "--try", "--", "true"]).await.expect(75);
    assert!(refused.err.contains("permits"), "{refused:?}");
    world.output(&["run", "k", "--shared", "--try", "--", "true"]).await.expect(75);
    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    let holder = &shown[0]["holders"][1];
    assert_eq!((&holder["mode"], &holder["take"], &holder["of"]), (&"permits".into(), &2.into(), &3.into()));
    let table = world.output(&["ls", "--human"]).await.expect(0).out;
    assert!(table.contains("3 of 3 permits"), "{table}");
    first.end().await.expect(0);
    let (mut third, _) = hold(&world, &["k", "--permits", "1/3", "--timeout", "50s"]).await;
    second.end().await.expect(0);
    third.end().await.expect(0);
    assert_eq!(world.inspect("k").await, None);
}

/// Each run makes a file of its own while it is at work, and fails if there are more than three.
async fn many(world: World) {
    let directory = fresh_path();
    std::fs::create_dir(&directory).expect("a directory");
    let script =
        format!("cd {} && : > $$ && sleep 0.05; test $(ls | wc -l) -le 3 || exit 99; rm $$", directory.display());
    let runs = (0..9).map(|_| finish(world.command(&["run", "k", "--permits", "1/3", "--", "sh", "-c", &script])));
    for finished in futures_util::future::join_all(runs).await {
        finished.expect(0);
    }
    std::fs::remove_dir(&directory).expect("it is empty");
    assert_eq!(world.inspect("k").await, None);
}

async fn one_of_several(world: World) {
    let (mut victim, _) = hold(&world, &["k", "--shared", "--ttl", "12s", "--owner", "the victim"]).await;
    let (mut other, _) = hold(&world, &["k", "--shared", "--owner", "the other"]).await;
    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    let id = shown[0]["holders"][0]["id"].as_str().expect("an id");
    let release = ["force-release", "k", "--reason", "it hangs", "--human", "--holder"];
    let of = async |id: &str| {
        let arguments: Vec<&str> = release.iter().copied().chain([id]).collect();
        world.output(&arguments).await.expect(0).out
    };
    assert_eq!(of("no-such-id").await, "k: was not held by no-such-id\n");
    assert_eq!(of(id).await, "k: taken away from the victim\n");
    victim.end().await.expect(79);
    let info = world.inspect("k").await.expect("the other one holds it");
    assert_eq!((info.holders.len(), info.owner.as_deref()), (1, Some("the other")));
    let entries = world.output(&["history", "k"]).await.expect(0).objects();
    assert_eq!((entries.len(), &entries[0]["owner"]), (1, &"the victim".into()));
    other.end().await.expect(0);
    assert_eq!(world.inspect("k").await, None);
}

async fn watch(world: World) {
    // The collection exists before the stream is opened.
    world.output(&["run", "k", "--", "true"]).await.expect(0);
    let mut watch = world.start(&["watch"]);
    assert_eq!(watch.line().await, r#"{"event":"watching"}"#);
    for (option, mode) in [(&["--shared"][..], "shared"), (&["--permits", "2/5"], "permits"), (&[], "exclusive")] {
        let arguments: Vec<&str> = ["run", "k"].iter().chain(option).chain(&["--", "true"]).copied().collect();
        world.output(&arguments).await.expect(0);
        let granted: Value = serde_json::from_str(&watch.line().await).expect("an object");
        assert_eq!((&granted["event"], &granted["mode"]), (&"granted".into(), &mode.into()));
        let numbers = if mode == "permits" { (2.into(), 5.into()) } else { (Value::Null, Value::Null) };
        assert_eq!((granted["take"].clone(), granted["of"].clone()), numbers);
        let released: Value = serde_json::from_str(&watch.line().await).expect("an object");
        assert_eq!((&released["event"], &released["id"]), (&"released".into(), &granted["id"]));
    }
    watch.signal(rustix::process::Signal::INT);
    watch.end().await.expect(130);
}

async fn usage(world: World) {
    for (permits, why) in [
        ("0/3", "take at least one"),
        ("4/3", "at most as many"),
        ("1/0", "at least one"),
        ("3", "1/10"),
        ("1/99999999999", "1/10"),
        ("-1/3", "1/10"),
    ] {
        let permits = format!("--permits={permits}");
        let refused = world.output(&["run", "k", &permits, "--", "true"]).await.expect(64);
        assert!(refused.err.contains(why) && refused.out.is_empty(), "{refused:?}");
    }
    world.output(&["run", "k", "--shared", "--permits", "1/3", "--", "true"]).await.expect(64);
    assert_eq!(world.inspect("k").await, None);
}
