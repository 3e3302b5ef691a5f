//! `run` as process 1 of a container, and under a process 1 that is no init.
//!
//! A process that adopts others by `PR_SET_CHILD_SUBREAPER` gets them as process 1 does, and needs
//! no privilege.

use rustix::process::{Signal, kill_process};
use tokio::process::Command;

use crate::Tests;
use crate::kit::{Running, World, finish, hold, parent_of, pid, until, wrapped};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("init::adopted_processes_are_collected_while_the_command_runs", running);
    tests.add("init::adopted_processes_are_collected_while_it_waits", waiting);
    tests.add("init::process_1_collects_what_it_adopts", process_1);
    tests.add("init::dead_processes_that_are_not_collected_hold_nothing_up", uncollected);
}

const ADOPT: &str = "import ctypes, os, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n";

/// Kills a process that another one has adopted, and waits until it is no longer there, not even
/// as a dead one.
async fn collected(orphan: u32, by: u32) {
    until(async || parent_of(orphan) == Some(by)).await;
    kill_process(pid(orphan), Signal::KILL).expect("it runs");
    until(async || parent_of(orphan).is_none()).await;
}

async fn running(world: World) {
    let orphan = |name: &str| format!("sh -c 'echo {name} $$; exec sleep 300 >/dev/null 2>&1'");
    let [outside, inside, left] = ["outside", "inside", "left"].map(orphan);
    let script = format!("setsid -f {outside}; ({inside} &); ({left} &); read line; exit 4");
    let adopt = format!("{ADOPT}os.execvp(sys.argv[1], sys.argv[1:])");
    let command = world.command(&["run", "k", "--", "sh", "-c", &script]);
    let mut running = Running::start(wrapped(&["python3", "-c", &adopt], &command));
    for _ in 0..3 {
        let line = running.line().await;
        let (name, orphan) = line.split_once(' ').expect("a name and a process id");
        if name != "left" {
            collected(orphan.parse().expect("a process id"), running.pid()).await;
        }
    }
    let finished = running.end().await.expect(4);
    assert!(!finished.err.contains("still there"), "{finished:?}");
}

async fn waiting(world: World) {
    let (mut holder, _) = hold(&world, &["k"]).await;
    let adopt = format!(
        "{ADOPT}\
         if os.fork() == 0:\n  \
           if os.fork() == 0:\n    \
             os.execvp('sh', ['sh', '-c', 'echo $$; exec sleep 300 >/dev/null 2>&1'])\n  \
           os._exit(0)\n\
         os.wait()\n\
         os.execvp(sys.argv[1], sys.argv[1:])"
    );
    let command = world.command(&["run", "k", "--", "true"]);
    let mut waiting = Running::start(wrapped(&["python3", "-c", &adopt], &command));
    let orphan = waiting.line().await.parse().expect("a process id");
    world.until_waiting("k", 1).await;
    collected(orphan, waiting.pid()).await;
    holder.end().await.expect(0);
    waiting.end().await.expect(0);
}

/// Its process group is outside of the namespace, and has no number there. Where the machine allows
/// no namespaces, it adopts as above.
async fn process_1(world: World) {
    let namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let adopt = format!("{ADOPT}os.execvp(sys.argv[1], sys.argv[1:])");
    let is_allowed = finish(wrapped(&namespace, &Command::new("true"))).await.code == 0;
    let by = if is_allowed { &namespace[..] } else { &["python3", "-c", &adopt] };
    let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -q \") Z $PPID \"";
    let script =
        format!("setsid -f sleep 0; setsid -f sleep 0; (sleep 300 &); while {zombies}; do sleep 0.05; done; exit 5");
    let finished = finish(wrapped(by, &world.command(&["run", "k", "--", "sh", "-c", &script]))).await.expect(5);
    assert_eq!(finished.err, "");
    assert_eq!(world.inspect("k").await, None, "the lock is released");
}

/// The process above adopts what the command leaves, and never collects it.
async fn uncollected(world: World) {
    let adopt = format!("{ADOPT}sys.exit(subprocess.Popen(sys.argv[1:]).wait())");
    let script = "(sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' &); read line; exit 4";
    let command = world.command(&["run", "k", "--", "sh", "-c", script]);
    let mut running = Running::start(wrapped(&["python3", "-c", &adopt], &command));
    let orphan = running.line().await.parse().expect("a process id");
    until(async || parent_of(orphan) == Some(running.pid())).await;
    let finished = running.end().await.expect(4);
    assert!(!finished.err.contains("still there"), "{finished:?}");
}
