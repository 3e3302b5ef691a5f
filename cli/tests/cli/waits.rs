//! Waits that end without the lock, and leave nothing behind.

use futures_util::future::join;
use rustix::process::Signal;

use crate::Tests;
use crate::kit::{World, hold};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("waits::a_busy_lock_has_its_exit_code", busy);
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
        of_several.expect(75);
        assert_eq!(world.inspect("j").await, None, "{limit:?}");
    }
    let info = world.inspect("k").await.expect("it is held");
    assert_eq!((info.owner.as_deref(), info.waiting), (Some("the holder"), Some(0)));
    holder.end().await.expect(0);
    world.output(&["run", "k", "--timeout", "50s", "--", "true"]).await.expect(0);
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
