//! Commands that are stopped without a terminal: they keep the lock for a bounded time.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::Tests;
use crate::ends::takes_over;
use crate::kit::{World, group_of, hold, is_stopped, pid, script_if_dead, until, until_stopped};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("stops::a_stopped_command_is_ended_before_the_deadline", ended);
    tests.add("stops::a_command_that_continues_in_time_keeps_the_lock", continued);
    tests.add("stops::a_signal_ends_a_stopped_command", signals);
    tests.add("stops::a_command_that_stops_its_group_does_not_stop_the_leash", group);
}

async fn stop(command: u32) {
    kill_process(pid(command), Signal::STOP).expect("it runs");
    until_stopped(command).await;
}

/// `distlock` renews the lease, but not for a command that does nothing.
async fn ended(world: World) {
    let script = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.05; done";
    let mut victim = world.start(&["run", "k", "--ttl", "6s", "--grace", "2s", "--", "sh", "-c", script]);
    let command: u32 = victim.line().await.parse().expect("a process id");
    let mut next = world.start(&["run", "k", "--", "sh", "-c", &script_if_dead(&[command])]);
    world.until_waiting("k", 1).await;
    stop(command).await;
    // It is continued, and has its grace.
    assert_eq!(victim.line().await, "TERM");
    let finished = victim.end().await.expect(79);
    assert!(finished.err.contains("was stopped"), "{finished:?}");
    next.end().await.expect(0);
}

async fn continued(world: World) {
    let (mut running, command) = hold(&world, &["k", "--ttl", "3s"]).await;
    let begun = Instant::now();
    stop(command).await;
    kill_process(pid(command), Signal::CONT).expect("it is stopped");
    // Renewals count again: the deadline at which it was stopped passes.
    until(async || begun.elapsed() > Duration::from_secs(5)).await;
    running.end().await.expect(0);
}

async fn signals(world: World) {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131), (Signal::HUP, 129)] {
        let (mut running, command) = hold(&world, &["k", "--ttl", "10m"]).await;
        stop(command).await;
        running.signal(signal);
        running.end().await.expect(code);
        assert_eq!(world.inspect("k").await, None, "the lock is released");
    }
}

/// `distlock` is stopped, too: only the leash can end the command.
async fn group(world: World) {
    // The leash first, whose process id is that of the group.
    let script = "set -- $(cat /proc/$$/stat); kill -STOP $5; \
                  until grep -q '^State:.T' /proc/$5/status; do sleep 0.05; done; \
                  echo $$; kill -STOP $$; while :; do sleep 0.05; done";
    for ttl in ["10m", "4s"] {
        let mut running = world.start(&["run", "k", "--ttl", ttl, "--", "sh", "-c", script]);
        let command: u32 = running.line().await.parse().expect("a process id");
        until_stopped(command).await;
        let leash = group_of(command).expect("it is stopped");
        // At once, and not only when the command is ended.
        until(async || !is_stopped(leash)).await;
        if ttl == "10m" {
            running.signal(Signal::TERM);
            running.end().await.expect(143);
            continue;
        }
        running.signal(Signal::STOP);
        takes_over(&world, &[command]).await;
        running.signal(Signal::CONT);
        running.end().await.expect(79);
    }
}
