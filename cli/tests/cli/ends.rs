//! How commands end that run: by a signal, with what they have started, and when `distlock` itself
//! is killed or stopped.

use distlock_conformance::process::is_dead;
use rustix::process::Signal;

use crate::Tests;
use crate::kit::{Running, World, fresh_path, hold, pid, script_if_dead, until, until_dead, wrapped};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("ends::signals_reach_the_command", signals);
    tests.add("ends::a_signal_that_the_command_survives_does_not_end_it", survived);
    tests.add("ends::signals_for_the_command_reach_it", passed_on);
    tests.add("ends::ignored_signals_stay_ignored", ignored);
    tests.add("ends::what_the_command_has_started_ends_with_it", no_orphans);
    tests.add("ends::the_command_ends_when_distlock_is_killed", killed);
    tests.add("ends::the_command_ends_when_distlock_is_stopped", stopped);
    tests.add("ends::a_standard_error_that_is_full_keeps_no_command", full);
    tests.add("ends::a_standard_error_that_is_closed_changes_nothing", closed);
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

/// They mean nothing to `distlock`, also while it waits.
async fn passed_on(world: World) {
    let script = "for s in USR1 USR2 WINCH; do trap \"echo got $s\" $s; done; echo started; \
                  while test ! -e \"$0\"; do sleep 0.05; done; exit 5";
    let file = fresh_path();
    let mut running = world.start(&["run", "k", "--", "sh", "-c", script, &file.display().to_string()]);
    assert_eq!(running.line().await, "started");
    let mut waiting = world.start(&["run", "k", "--", "true"]);
    world.until_waiting("k", 1).await;
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::WINCH, "WINCH")] {
        waiting.signal(signal);
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
    }
    std::fs::write(&file, "").expect("a file");
    running.end().await.expect(5);
    waiting.end().await.expect(0);
    std::fs::remove_file(&file).expect("the file");
}

/// As under `nohup`: they end neither `distlock`, while it waits or runs, nor its command.
async fn ignored(world: World) {
    let (mut holder, _) = hold(&world, &["k"]).await;
    let command = world.command(&["run", "k", "--", "sh", "-c", "echo $$; read line; exit 7"]);
    let mut running = Running::start(wrapped(&["sh", "-c", "trap '' HUP INT; exec \"$0\" \"$@\""], &command));
    world.until_waiting("k", 1).await;
    let signals = [Signal::HUP, Signal::INT];
    signals.into_iter().for_each(|signal| running.signal(signal));
    holder.end().await.expect(0);
    let child: u32 = running.line().await.parse().expect("a process id");
    for signal in signals {
        running.signal(signal);
        rustix::process::kill_process(pid(child), signal).expect("it runs");
    }
    assert!(world.inspect("k").await.is_some());
    running.end().await.expect(7);
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
pub(crate) async fn takes_over(world: &World, processes: &[u32]) {
    let script = script_if_dead(processes);
    world.output(&["run", "k", "--timeout", "50s", "--", "sh", "-c", &script]).await.expect(0);
}

async fn stubborn(world: &World, ttl: &str) -> (Running, [u32; 2]) {
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
    takes_over(&world, &processes).await;
    assert_eq!(world.inspect("k").await, None);
}

async fn stopped(world: World) {
    let (mut running, processes) = stubborn(&world, "3s").await;
    running.signal(Signal::STOP);
    takes_over(&world, &processes).await;
    running.signal(Signal::CONT);
    let finished = running.end().await.expect(79);
    assert!(finished.err.contains("lost"), "{finished:?}");
    // A process that is stopped, but whose leash is alive, is no holder.
    let (mut holder, command) = hold(&world, &["k", "--try"]).await;
    assert!(rustix::process::test_kill_process(pid(command)).is_ok());
    holder.end().await.expect(0);
    until(async || is_dead(command)).await;
}

/// The reader of standard error does not read, and the leash has something to say.
async fn full(world: World) {
    let script = "dd if=/dev/zero bs=65536 count=1 of=/dev/fd/3 oflag=nonblock 3>&2 2>/dev/null; echo $$; sleep 300";
    let mut running = world.start(&["run", "k", "--ttl", "10m", "--", "sh", "-c", script]);
    let command = running.line().await.parse().expect("a process id");
    running.signal(Signal::KILL);
    until_dead(command).await;
}

/// The reader of standard error has gone, as a terminal does.
async fn closed(world: World) {
    let run = ["run", "k", "--once", "--", "true"];
    world.output(&run).await.expect(0);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut again = world.command(&run);
    // It says that the work is done.
    let status = again.stderr(writer).status().await.expect("it starts");
    assert_eq!(status.code(), Some(0));
}
