//! How commands end that run: by a signal, with what they have started, and when `distlock` itself
//! is killed or stopped.

use distlock_conformance::process::is_dead;
use rustix::process::Signal;

use crate::Tests;
use crate::kit::{World, fresh_path, hold, pid, script_if_dead, until, until_dead};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("ends::signals_reach_the_command", signals);
    tests.add("ends::a_signal_that_the_command_survives_does_not_end_it", survived);
    tests.add("ends::what_the_command_has_started_ends_with_it", no_orphans);
    tests.add("ends::the_command_ends_when_distlock_is_killed", killed);
    tests.add("ends::the_command_ends_when_distlock_is_stopped", stopped);
}

async fn signals(world: World) {
    let script = "for s in HUP INT QUIT TERM; do trap \"echo got $s; exit 5\" $s; done; echo started; \
                  while :; do sleep 0.05; done";
    for (signal, name) in [(Signal::HUP, "HUP"), (Signal::INT, "INT"), (Signal::QUIT, "QUIT"), (Signal::TERM, "TERM")] {
        let mut running = world.start(&["run", "k", "--", "sh", "-c", script]);
        assert_eq!(running.line().await, "started");
        running.signal(signal);
        let finished = running.end().await.expect(5);
        assert_eq!(finished.out, format!("got {name}\n"));
        assert_eq!(world.inspect("k").await, None, "the lock is released");
    }
}

async fn survived(world: World) {
    let script = "trap 'echo got TERM' TERM; echo started; while test ! -e \"$0\"; do sleep 0.05; done; exit 3";
    let file = fresh_path();
    let mut running = world.start(&["run", "k", "--", "sh", "-c", script, &file.display().to_string()]);
    assert_eq!(running.line().await, "started");
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "got TERM");
    assert!(world.inspect("k").await.is_some(), "it is still held");
    std::fs::write(&file, "").expect("a file");
    running.end().await.expect(3);
    std::fs::remove_file(&file).expect("the file");
}

async fn no_orphans(world: World) {
    let mut running = world.start(&["run", "k", "--", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!; exit 4"]);
    let orphan = running.line().await.parse().expect("a process id");
    running.end().await.expect(4);
    // It may take init a moment to reap it: a zombie is dead.
    assert!(is_dead(orphan), "process {orphan} has outlived the lock");
}

/// A command that ends only by SIGKILL, with a child of its own, and prints both process ids.
const STUBBORN: &str = "trap '' TERM INT HUP QUIT; sleep 300 >/dev/null 2>&1 & echo $$ $!; while :; do sleep 1; done";

/// Runs a command under the key, once the lock is free, that fails if one of the processes lives.
async fn takes_over(world: &World, processes: [u32; 2]) {
    let script = script_if_dead(&processes);
    world.output(&["run", "k", "--timeout", "50s", "--", "sh", "-c", &script]).await.expect(0);
}

async fn stubborn(world: &World, ttl: &str) -> (crate::kit::Running, [u32; 2]) {
    let mut running = world.start(&["run", "k", "--ttl", ttl, "--", "sh", "-c", STUBBORN]);
    let line = running.line().await;
    let mut ids = line.split(' ').map(|id| id.parse().expect("a process id"));
    let ids = [ids.next().expect("two"), ids.next().expect("two")];
    (running, ids)
}

async fn killed(world: World) {
    // The deadline is far away: the end of `distlock` is what ends the command.
    let (running, processes) = stubborn(&world, "10m").await;
    assert!(processes.iter().all(|process| !is_dead(*process)));
    running.signal(Signal::KILL);
    for process in processes {
        until_dead(process).await;
    }
    assert!(world.inspect("k").await.is_some(), "only the ttl, or force, frees the key");
    world.output(&["force-release", "k", "--reason", "it was killed"]).await.expect(0);
    let (running, processes) = stubborn(&world, "3s").await;
    running.signal(Signal::KILL);
    takes_over(&world, processes).await;
    assert_eq!(world.inspect("k").await, None);
}

async fn stopped(world: World) {
    let (mut running, processes) = stubborn(&world, "3s").await;
    running.signal(Signal::STOP);
    takes_over(&world, processes).await;
    running.signal(Signal::CONT);
    let finished = running.end().await.expect(79);
    assert!(finished.err.contains("lost"), "{finished:?}");
    // A process that is stopped, but whose leash is alive, is no holder.
    let (mut holder, command) = hold(&world, &["k", "--try"]).await;
    assert!(rustix::process::test_kill_process(pid(command)).is_ok());
    holder.end().await.expect(0);
    until(async || is_dead(command)).await;
}
