//! Waits that end without the lock, and leave nothing behind.

use futures_util::future::{join, join_all};
use rustix::process::Signal;
use serde_json::Value;

use crate::Tests;
use crate::kit::{World, finish, hold};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("waits::a_busy_lock_has_its_exit_code", busy);
    tests.add("waits::it_says_who_holds_the_lock", told);
    tests.add("waits::verbose_logs_what_happens", verbose);
    tests.add("waits::a_signal_ends_the_wait", signals);
    tests.add("waits::a_signal_ends_the_wait_for_a_server", no_server);
}

async fn busy(world: World) {
    let (mut holder, _) = hold(&world, &["k", "--owner", "the holder"]).await;
    // A wait that ends before the first answer of the server has another exit code.
    for limit in [&["--try"][..], &["--timeout", "5s"]] {
        let one: Vec<&str> = ["run", "k"].iter().chain(limit).chain(&["--", "echo", "ran"]).copied().collect();
        // Of several keys, one busy key is enough.
        let several: Vec<&str> = ["run", "j"].iter().chain(&one[1..]).copied().collect();
        let (finished, of_several) = join(world.output(&one), world.output(&several)).await;
        let finished = finished.expect(75);
        assert!(finished.out.is_empty() && finished.err.contains("busy"), "{finished:?}");
        assert!(finished.err.contains(r#""k" is held by the holder, "#), "{finished:?}");
        of_several.expect(75);
        assert_eq!(world.inspect("j").await, None, "{limit:?}");
    }
    let info = world.inspect("k").await.expect("it is held");
    assert_eq!((info.owner.as_deref(), info.waiting), (Some("the holder"), Some(0)));
    holder.end().await.expect(0);
    world.output(&["run", "k", "--timeout", "50s", "--", "true"]).await.expect(0);
}

/// A wait names the holder once, and the refusal after it as well.
async fn told(world: World) {
    let (mut holder, _) = hold(&world, &["k", "--owner", "the\u{1b}[2J holder"]).await;
    let run = |options: &[&str]| {
        let call = [&["run", "k", "--timeout", "10s"], options, &["--", "true"]].concat();
        world.command(&call)
    };
    let runs = [&[][..], &["-q"], &["--json"]].map(|options| finish(run(options)));
    let [plain, quiet, json] = <[_; 3]>::try_from(join_all(runs).await).expect("three");
    let [plain, quiet, json] = [plain, quiet, json].map(|finished| finished.expect(75));
    for finished in [&plain, &quiet] {
        assert!(!finished.err.contains('\u{1b}'), "{finished:?}");
        assert_eq!(finished.err.matches(r#"busy: "k" is held by the\u{1b}[2J holder"#).count(), 1, "{finished:?}");
    }
    let waits = r#"waiting: "k" is held by"#;
    assert_eq!((plain.err.matches(waits).count(), quiet.err.matches(waits).count()), (1, 0), "{plain:?} {quiet:?}");
    let error: Value = serde_json::from_str(json.err.lines().last().expect("a line")).expect("JSON");
    assert_eq!(error["exit"], 75, "{json:?}");
    assert!(error["error"].as_str().is_some_and(|text| text.contains("is held by")), "{json:?}");
    for (call, code) in [(&["ls", "--json", "--no-such-option"][..], 64), (&["show", "", "--json"], 64)] {
        let refused = world.output(call).await.expect(code);
        let error: Value = serde_json::from_str(refused.err.trim()).expect("JSON");
        assert_eq!(error["exit"], code, "{refused:?}");
    }
    holder.end().await.expect(0);
}

/// What the command connects to, what it waits for, and the token that it got; with `-vv` also what
/// the library does.
async fn verbose(world: World) {
    let token = &["--", "sh", "-c", "echo $DISTLOCK_TOKEN"][..];
    let hosts = world.uri.split(['/', '?']).nth(2).expect("hosts").to_owned();
    let collection = |name: &str| format!("using the collection database={} collection={name}", world.database);
    for (call, collection, is_logged, in_detail) in [
        (&["run", "k\u{1b}"][..], collection("locks"), false, false),
        (&["run", "k\u{1b}", "-v"], collection("locks"), true, false),
        (&["-vv", "run", "k\u{1b}"], collection("locks"), true, true),
        (&["run", "--once", "--verbose", "k\u{1b}"], collection("once"), true, false),
    ] {
        let finished = world.output(&[call, token].concat()).await.expect(0);
        let key = r"lock.key=k\u{1b}";
        let got = format!("granted, the command is started {key} lock.token={}", finished.out.trim());
        let waits = format!("acquiring {key} lock.mode=exclusive wait=Forever");
        for line in [&format!("connecting hosts={hosts}"), &collection, &waits, &got] {
            assert_eq!(finished.err.contains(line), is_logged, "{call:?} {line}: {finished:?}");
        }
        let debugs = finished.err.lines().filter(|line| line.contains(" DEBUG ")).count();
        assert_eq!(debugs > 0, in_detail, "{call:?}: {finished:?}");
        let is_ours = |line: &str| line.split_whitespace().nth(2).is_some_and(|target| target.starts_with("distlock"));
        assert!(finished.err.lines().all(is_ours), "{finished:?}");
        assert!(!finished.err.contains('\u{1b}') && finished.out.lines().count() == 1, "{finished:?}");
    }
}

async fn signals(world: World) {
    let (mut holder, _) = hold(&world, &["k"]).await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131), (Signal::HUP, 129)] {
        let mut waiter = world.start(&["run", "j", "k", "--", "echo", "ran"]);
        world.until_waiting("k", 1).await;
        waiter.signal(signal);
        let finished = waiter.end().await.expect(code);
        assert_eq!(finished.out, "", "{finished:?}");
        let info = world.inspect("k").await.expect("it is held");
        assert_eq!(info.waiting, Some(0), "a ticket is left behind: {info:?}");
        assert_eq!(world.inspect("j").await, None, "a lock is left behind");
    }
    holder.end().await.expect(0);
    assert_eq!(world.inspect("k").await, None);
}

async fn no_server(world: World) {
    let uri = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=600000";
    let mut waiter = crate::kit::Running::start(world.command_on(uri, &["run", "k", "--", "echo", "ran"]));
    // The handlers are installed before the first connection.
    let started = || std::fs::read_to_string(format!("/proc/{}/status", waiter.pid())).unwrap_or_default();
    let catches = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
        u64::from_str_radix(caught.trim(), 16).unwrap_or(0) >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    crate::kit::until(async || catches(&started())).await;
    waiter.signal(Signal::TERM);
    waiter.end().await.expect(143);
}
