//! Commands whose lock is lost: by force, and because MongoDB cannot be reached.

use std::time::{Duration, Instant};

use distlock_conformance::process::is_dead;
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};

use crate::Tests;
use crate::kit::{Running, World, hold, script_if_dead, until_dead};
use crate::proxy;

pub(crate) fn add(tests: &mut Tests) {
    tests.add("losses::a_forced_release_ends_the_command", forced);
    tests.add("losses::a_command_that_ignores_sigterm_is_killed", forced_stubborn);
    tests.add("losses::the_command_is_gone_before_another_holder_when_mongodb_is_away", away);
    tests.add("losses::a_silent_server_keeps_the_command_no_longer_than_the_lease", silent);
    tests.add("losses::a_command_without_renewals_gets_sigterm_first", asked_first);
    tests.add("losses::a_command_that_hangs_ends_before_its_maximum_hold", held_too_long);
    tests.add("losses::a_command_that_ends_in_time_keeps_its_exit_code", in_time);
}

async fn forced(world: World) {
    let (mut victim, command) = hold(&world, &["k", "--ttl", "12s", "--owner", "the victim"]).await;
    let released = world.output(&["force-release", "k", "--reason", "a test"]).await.expect(0).objects();
    assert_eq!((&released[0]["released"], &released[0]["before"]["owner"]), (&true.into(), &"the victim".into()));
    until_dead(command).await;
    let finished = victim.end().await.expect(79);
    assert!(finished.err.contains("lost"), "{finished:?}");
    world.output(&["run", "k", "--try", "--", "true"]).await.expect(0);
}

async fn forced_stubborn(world: World) {
    let script = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.05; done";
    let mut victim = world.start(&["run", "k", "--ttl", "12s", "--", "sh", "-c", script]);
    let command: u32 = victim.line().await.parse().expect("a process id");
    world.output(&["force-release", "k", "--reason", "a test"]).await.expect(0);
    assert_eq!(victim.line().await, "TERM");
    until_dead(command).await;
    victim.end().await.expect(79);
}

/// Starts a command that does `trap` at SIGTERM, on a connection that can be cut. The `terms` of
/// its lease are long enough that a busy server renews it in time.
async fn cut_off(world: &World, terms: &[&str], trap: &str) -> (Running, FaultProxy, u32) {
    let proxy = proxy::start(world).await;
    let script = format!("trap '{trap}' TERM; echo $$; while :; do sleep 0.05; done");
    let command = ["--", "sh", "-c", &script];
    let arguments: Vec<&str> = ["run", "k"].iter().chain(terms).chain(&command).copied().collect();
    let mut running = Running::start(world.command_on(&proxy::uri(&proxy), &arguments));
    let command = running.line().await.parse().expect("a process id");
    (running, proxy, command)
}

async fn away(world: World) {
    let (mut victim, proxy, command) = cut_off(&world, &["--ttl", "9s"], "").await;
    let mut next = world.start(&["run", "k", "--", "sh", "-c", &script_if_dead(&[command])]);
    world.until_waiting("k", 1).await;
    assert!(!is_dead(command));
    proxy.close().await;
    next.end().await.expect(0);
    victim.end().await.expect(79);
}

/// The connection stays open, and nothing is answered: there is nothing to give back.
async fn silent(world: World) {
    let ttl = Duration::from_secs(6);
    let (mut victim, proxy, _) = cut_off(&world, &["--ttl", "6s"], "").await;
    let silent = Instant::now();
    for way in [Way::ToServer, Way::ToClient] {
        proxy.strike(NetworkFault::drop_next(way, u32::MAX));
    }
    victim.end().await.expect(79);
    let after = silent.elapsed();
    // Two seconds are promised; a busy machine gets as much again.
    assert!(after < ttl + Duration::from_secs(4), "it ended {after:?} after the server was silent");
}

async fn asked_first(world: World) {
    // The grace is the time in which the lease is looked at.
    let terms = ["--ttl", "12s", "--grace", "4s"];
    let (mut victim, proxy, command) = cut_off(&world, &terms, "echo TERM; exit 0").await;
    proxy.close().await;
    assert_eq!(victim.line().await, "TERM");
    // The lease has not ended yet: the command had its grace.
    assert!(world.inspect("k").await.is_some());
    let finished = victim.end().await.expect(79);
    assert!(finished.err.contains("could not be renewed"), "{finished:?}");
    assert!(is_dead(command));
}

/// The lease is renewed and far from its end: the maximum alone ends the command.
async fn held_too_long(world: World) {
    let hold = Duration::from_secs(3);
    // The second one does not end by SIGTERM.
    for trap in ["echo TERM; exit 0", "echo TERM"] {
        let script = format!("trap '{trap}' TERM; echo $$; while :; do sleep 0.05; done");
        let begun = Instant::now();
        let mut victim = world.start(&["run", "k", "--ttl", "5m", "--max-hold", "3s", "--", "sh", "-c", &script]);
        let command: u32 = victim.line().await.parse().expect("a process id");
        let mut next = world.start(&["run", "k", "--", "sh", "-c", &script_if_dead(&[command])]);
        world.until_waiting("k", 1).await;
        assert_eq!(victim.line().await, "TERM");
        assert!(begun.elapsed() >= hold / 2, "it got SIGTERM after {:?}", begun.elapsed());
        let finished = victim.end().await.expect(79);
        assert!(finished.err.contains("--max-hold"), "{finished:?}");
        // Its script fails if the command is alive.
        next.end().await.expect(0);
        assert!(begun.elapsed() < Duration::from_secs(60), "the lock passed on after {:?}", begun.elapsed());
    }
}

async fn in_time(world: World) {
    let run = ["run", "k", "--max-hold", "20s", "--", "sh", "-c", "exit 7"];
    world.output(&run).await.expect(7);
    assert_eq!(world.inspect("k").await, None);
    let refused = world.output(&["run", "k", "--max-hold", "1s", "--grace", "1s", "--", "true"]).await.expect(78);
    assert!(refused.err.contains("longer than the grace"), "{refused:?}");
    world.output(&["run", "k", "--max-hold", "0s", "--", "true"]).await.expect(78);
}
