//! The commands of operators, as tables and as JSON.

use distlock::mongodb::mongodb::bson::{Document, doc};
use rustix::process::Signal;
use serde_json::Value;

use crate::Tests;
use crate::kit::{HOLD, Running, World, finish, hold};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("admin::ls_lists_what_matches", ls);
    tests.add("admin::show_shows_one_lock", show);
    tests.add("admin::a_forced_release_is_in_the_history", history);
    tests.add("admin::release_owner_takes_all_its_locks", release_owner);
    tests.add("admin::processes_of_one_host_name_and_id_are_two_owners", default_owners);
    tests.add("admin::watch_prints_what_happens", watch);
    tests.add("admin::bench_measures_and_cleans_up", bench);
    tests.add("admin::completions_and_man_pages_are_printed", generated);
}

async fn ls(world: World) {
    let (mut one, _) = hold(&world, &["orders/1", "orders/2", "--owner", "web-1"]).await;
    let (mut other, _) = hold(&world, &["jobs/1", "--owner", "web-2\u{1b}[2J"]).await;
    let keys = async |arguments: &[&str]| {
        let arguments: Vec<&str> = ["ls"].iter().chain(arguments).copied().collect();
        let objects = world.output(&arguments).await.expect(0).objects();
        objects.iter().map(|object| object["key"].as_str().expect("a key").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]).await, ["jobs/1", "orders/1", "orders/2"]);
    assert_eq!(keys(&["--prefix", "orders/"]).await, ["orders/1", "orders/2"]);
    assert_eq!(keys(&["--owner", "web-1", "--prefix", "orders/2"]).await, ["orders/2"]);
    assert_eq!(keys(&["--owner", "web"]).await, [""; 0]);
    let table = world.output(&["ls", "--human"]).await.expect(0).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("KEY") && lines[2].starts_with("orders/1  held"), "{table}");
    assert!(lines[1].contains("web-2\\u{1b}[2J") && !table.contains('\u{1b}'), "{table}");
    one.end().await.expect(0);
    other.end().await.expect(0);
    assert_eq!(keys(&[]).await, [""; 0]);
}

async fn show(world: World) {
    let free = world.output(&["show", "k"]).await.expect(0).objects();
    assert_eq!(free[0]["state"], "free");
    let (mut holder, _) = hold(&world, &["k", "--owner", "me"]).await;
    let mut waiter = world.start(&["run", "k", "--", "true"]);
    world.until_waiting("k", 1).await;
    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    let info = world.inspect("k").await.expect("it is held");
    assert_eq!(shown[0]["state"], "held");
    assert_eq!(shown[0]["owner"], "me");
    assert_eq!(shown[0]["waiting"], 1);
    assert_eq!(shown[0]["token"].as_u64(), Some(info.token.get()));
    assert_eq!(shown[0]["metadata"]["command"], "sh");
    let lines = world.output(&["show", "k", "--human"]).await.expect(0).out;
    assert!(lines.lines().any(|line| line.split_whitespace().eq(["owner", "me"])), "{lines}");
    holder.end().await.expect(0);
    waiter.end().await.expect(0);
    assert_eq!(world.output(&["show", "k", "--human"]).await.expect(0).out, "k is free\n");
}

async fn history(world: World) {
    let (mut victim, _) = hold(&world, &["k", "--ttl", "12s", "--owner", "the victim"]).await;
    let said = world.output(&["force-release", "k", "--reason", "first", "--human"]).await.expect(0).out;
    assert_eq!(said, "k: taken away from the victim\n");
    victim.end().await.expect(79);
    let free = world.output(&["force-release", "k", "--reason", "second"]).await.expect(0).objects();
    assert_eq!(free[0]["released"], false);
    let entries = world.output(&["history", "k"]).await.expect(0).objects();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((&entries[0]["owner"], &entries[0]["reason"]), (&"the victim".into(), &"first".into()));
    let table = world.output(&["history", "k", "--human"]).await.expect(0).out;
    assert!(table.starts_with("TIME") && table.contains("the victim"), "{table}");
}

async fn release_owner(world: World) {
    let (mut victim, _) = hold(&world, &["a", "b", "--ttl", "12s", "--owner", "gone"]).await;
    let (mut other, _) = hold(&world, &["c", "--owner", "alive"]).await;
    let released = world.output(&["release-owner", "gone", "--reason", "it ended"]).await.expect(0).objects();
    assert_eq!(released[0]["released"], 2);
    victim.end().await.expect(79);
    assert!(world.inspect("c").await.is_some());
    other.end().await.expect(0);
    let human = world.output(&["release-owner", "gone", "--reason", "again", "--human"]).await.expect(0).out;
    assert_eq!(human, "gone: 0 locks taken away\n");
}

/// The process ids differ here. In two containers they may not, and neither may the host names.
async fn default_owners(world: World) {
    let start = async |key: &str| {
        let mut command = world.command(&[&["run", key, "--ttl", "12s"][..], &HOLD].concat());
        command.env("HOSTNAME", "vm");
        let mut running = Running::start(command);
        running.line().await;
        running
    };
    let (mut victim, mut other) = (start("a").await, start("b").await);
    let owners = world.output(&["ls"]).await.expect(0).objects();
    let owner = |at: usize| owners[at]["owner"].as_str().expect("an owner");
    let in_a_container =
        |at: usize, running: &Running| owner(at).replace(&format!("vm pid {}", running.pid()), "vm pid 1");
    assert_ne!(in_a_container(0, &victim), in_a_container(1, &other), "one owner");
    let released = world.output(&["release-owner", owner(0), "--reason", "it ended"]).await.expect(0).objects();
    assert_eq!(released[0]["released"], 1, "{released:?}");
    victim.end().await.expect(79);
    other.end().await.expect(0);
}

async fn watch(world: World) {
    // The collection exists before the stream is opened.
    world.output(&["run", "orders/0", "--", "true"]).await.expect(0);
    let (mut victim, _) = hold(&world, &["orders/2", "--ttl", "12s", "--owner", "held before"]).await;
    let mut json = world.start(&["watch", "--prefix", "orders/"]);
    let mut human = world.start(&["watch", "--human"]);
    assert_eq!(json.line().await, r#"{"event":"watching"}"#);
    assert_eq!(human.line().await, "watching");
    world.output(&["run", "jobs/1", "--owner", "other", "--", "true"]).await.expect(0);
    world.output(&["run", "orders/1", "--owner", "me", "--", "true"]).await.expect(0);
    let granted: Value = serde_json::from_str(&json.line().await).expect("an object");
    assert_eq!(
        (&granted["event"], &granted["key"], &granted["owner"]),
        (&"granted".into(), &"orders/1".into(), &"me".into())
    );
    let released: Value = serde_json::from_str(&json.line().await).expect("an object");
    assert_eq!((&released["event"], &released["id"]), (&"released".into(), &granted["id"]));
    assert_eq!(released["owner"], "me");
    let line = human.line().await;
    assert!(line.starts_with("granted") && line.contains("jobs/1") && line.ends_with("other"), "{line}");
    world.output(&["force-release", "orders/2", "--reason", "it hangs"]).await.expect(0);
    let forced: Value = serde_json::from_str(&json.line().await).expect("an object");
    assert_eq!(
        (&forced["event"], &forced["owner"], &forced["reason"]),
        (&"force_released".into(), &"held before".into(), &"it hangs".into())
    );
    for expected in ["released        jobs/1  other", "granted", "released        orders/1  me"] {
        let line = human.line().await;
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(human.line().await, "force_released  orders/2  held before  reason it hangs");
    victim.end().await.expect(79);
    json.signal(Signal::INT);
    json.end().await.expect(130);
    human.signal(Signal::TERM);
    human.end().await.expect(143);
}

async fn bench(world: World) {
    let records = world.client.database(&world.database).collection::<Document>("locks");
    let figures = world.output(&["bench", "--seconds", "2"]).await.expect(0).objects();
    let names: Vec<_> = figures.iter().map(|figure| figure["workload"].as_str().expect("a name")).collect();
    assert_eq!(names, ["uncontended", "hot_key", "many_keys"]);
    assert!(figures.iter().all(|figure| figure["locks"].as_u64() > Some(0)), "{figures:?}");
    assert_eq!(records.count_documents(doc! {}).await.expect("a number"), 0);
    let mut interrupted = world.start(&["bench", "--seconds", "600", "--human"]);
    crate::kit::until(async || records.count_documents(doc! {}).await.expect("a number") > 0).await;
    interrupted.signal(Signal::TERM);
    interrupted.end().await.expect(143);
    assert_eq!(records.count_documents(doc! {}).await.expect("a number"), 0);
}

async fn generated(world: World) {
    for shell in ["bash", "zsh", "fish"] {
        let script = world.output(&["completions", shell]).await.expect(0).out;
        assert!(script.contains("force-release") && !script.contains(&world.uri), "{script}");
    }
    let page = world.output(&["man"]).await.expect(0).out;
    assert!(page.starts_with(".ie") || page.contains(".TH distlock"), "{page}");
    let page = world.output(&["man", "run"]).await.expect(0).out;
    assert!(page.contains("DISTLOCK_TOKEN") && page.contains("distlock\\-run"), "{page}");
    // Neither needs a deployment.
    let mut command = world.command(&["man"]);
    command.env_remove("DISTLOCK_MONGODB_URI");
    finish(command).await.expect(0);
}
