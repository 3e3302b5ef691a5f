//! `run` on a terminal: what a user and a shell rely on. `flock` and `timeout --foreground` are
//! examined with it where they do the same.

use std::path::Path;

use crate::Tests;
use crate::ends::takes_over;
use crate::kit::{Terminal, World, fresh_path, is_stopped, until, until_dead, until_stopped};

const DISTLOCK: &str = "$D run k --";
/// The shell of commands that are stopped while they start others. Debian's `sh` waits by `vfork`
/// until its child has become the other program, and if the child is stopped before, the shell
/// cannot stop: so it is without `distlock`, too.
const SHELL: &str = "bash -c";

pub(crate) fn add(tests: &mut Tests) {
    tests.add("terminal::a_command_reads_from_the_terminal", reads);
    tests.add("terminal::ctrl_z_stops_the_job_and_the_shell_continues_it", ctrl_z);
    tests.add("terminal::a_stopped_job_loses_the_lock_and_ends", stopped);
    tests.add("terminal::a_job_in_the_background_stops_when_it_reads", background);
    tests.add("terminal::ctrl_c_reaches_the_command_and_the_script_around_it", ctrl_c);
    tests.add("terminal::without_a_shell_ctrl_z_stops_nothing", no_shell);
    tests.add("terminal::a_terminal_that_closes_ends_the_command", closed);
}

/// Returns the starts of command lines that behave alike. The file is removed in the end.
fn alike(file: &Path) -> [String; 3] {
    [format!("flock {}", file.display()), "timeout --foreground 60".to_owned(), DISTLOCK.to_owned()]
}

/// As `ssh` and `sudo` read a password.
async fn reads(world: World) {
    let mut terminal = Terminal::start(&world).await;
    let script = "sh -c 'echo asks; read a </dev/tty; echo got $a; read b; echo and $b'";
    let locked = fresh_path();
    for program in alike(&locked) {
        terminal.enter(&format!("{program} {script}"));
        terminal.until("asks").await;
        terminal.enter("secret");
        terminal.until("got secret").await;
        terminal.enter("more");
        terminal.until("and more").await;
    }
    // In a pipeline, the terminal is given to the command when it reads.
    terminal.enter(&format!("{DISTLOCK} sh -c 'echo asks; read a </dev/tty; echo got $a' | cat"));
    terminal.until("asks").await;
    terminal.enter("more");
    terminal.until("got more").await;
    // The script around it has the terminal again.
    for command in ["true", "/no/such/command"] {
        terminal.enter(&format!("sh -c '{DISTLOCK} {command}; echo asks; read a </dev/tty; echo script $a'"));
        terminal.until("asks").await;
        terminal.enter("goes on");
        terminal.until("script goes on").await;
    }
    terminal.close().await;
    std::fs::remove_file(&locked).expect("the file");
}

async fn ctrl_z(world: World) {
    let mut terminal = Terminal::start(&world).await;
    let (locked, file) = (fresh_path(), fresh_path());
    // The shell shows the command line, but not what is in the variable.
    let script = "echo above=$PPID,; echo pid=$$,; while ! test -e $FILE; do sleep 0.05; done; echo finished";
    terminal.enter(&format!("export FILE={} S='{script}'", file.display()));
    let lines = alike(&locked).map(|program| format!("{program} {SHELL} \"$S\""));
    let pipeline = format!("{DISTLOCK} {SHELL} \"$S\" | cat");
    for line in lines.into_iter().chain([pipeline]) {
        terminal.enter(&line);
        let (above, command) = (terminal.number("above").await, terminal.number("pid").await);
        for continued_by in ["bg", "fg"] {
            terminal.press("\x1a");
            terminal.until("Stopped").await;
            until_stopped(above).await;
            until_stopped(command).await;
            terminal.enter(continued_by);
            until(async || !is_stopped(above) && !is_stopped(command)).await;
            if continued_by == "bg" {
                // The shell does not signal a job that it puts into the foreground while it runs.
                terminal.enter("fg");
            }
            until(async || terminal.shows(above) || terminal.shows(command)).await;
        }
        std::fs::write(&file, "").expect("a file");
        terminal.until("finished").await;
        terminal.enter("echo code=$?,");
        assert_eq!(terminal.number("code").await, 0, "{line}");
        std::fs::remove_file(&file).expect("the file");
    }
    terminal.close().await;
    std::fs::remove_file(&locked).expect("the file");
}

async fn stopped(world: World) {
    let mut terminal = Terminal::start(&world).await;
    terminal.enter(&format!("$D run k --ttl 4s -- {SHELL} 'echo pid=$$,; while :; do sleep 0.05; done'"));
    let command = terminal.number("pid").await;
    terminal.press("\x1a");
    terminal.until("Stopped").await;
    takes_over(&world, &[command]).await;
    terminal.enter("fg");
    terminal.enter("echo code=$?,");
    assert_eq!(terminal.number("code").await, 79);
    terminal.close().await;
}

async fn background(world: World) {
    let mut terminal = Terminal::start(&world).await;
    terminal.enter(&format!("{DISTLOCK} sh -c 'echo above=$PPID,; echo pid=$$,; read a </dev/tty; echo got $a' &"));
    let (above, command) = (terminal.number("above").await, terminal.number("pid").await);
    until_stopped(command).await;
    until_stopped(above).await;
    // The shell learns of it a moment later, and takes the job for a running one until then.
    terminal.enter("until test -n \"$(jobs -s)\"; do sleep 0.05; done; fg");
    until(async || terminal.shows(command)).await;
    terminal.enter("late");
    terminal.until("got late").await;
    terminal.close().await;
}

async fn ctrl_c(world: World) {
    let mut terminal = Terminal::start(&world).await;
    let locked = fresh_path();
    for program in alike(&locked) {
        let command = format!("{program} sh -c \"echo started; sleep 300\"");
        terminal.enter(&format!("sh -c 'trap \"echo interrupted; exit 3\" INT; {command}; echo continued'"));
        terminal.until("started").await;
        terminal.press("\x03");
        terminal.until("interrupted").await;
        terminal.enter("echo code=$?,");
        assert_eq!(terminal.number("code").await, 3, "{program}");
    }
    assert_eq!(world.inspect("k").await, None, "the lock is released");
    terminal.close().await;
    std::fs::remove_file(&locked).expect("the file");
}

/// As the first program of a session, such as a container's: nothing could continue it.
async fn no_shell(world: World) {
    let file = fresh_path();
    let mut terminal = Terminal::start(&world).await;
    let script =
        format!("trap \"echo continued\" CONT; echo pid=$$,; while ! test -e {}; do sleep 0.05; done", file.display());
    terminal.enter(&format!("exec {DISTLOCK} {SHELL} '{script}; echo got TSTP; read a </dev/tty; echo got $a'"));
    let command = terminal.number("pid").await;
    terminal.press("\x1a");
    terminal.until("continued").await;
    assert!(!is_stopped(command));
    std::fs::write(&file, "").expect("a file");
    terminal.until("got TSTP").await;
    terminal.enter("more");
    terminal.until("got more").await;
    terminal.close().await;
    std::fs::remove_file(&file).expect("the file");
}

async fn closed(world: World) {
    for with_ctrl_z in [false, true] {
        let mut terminal = Terminal::start(&world).await;
        let script = "echo above=$PPID,; echo pid=$$,; while :; do sleep 0.05; done";
        terminal.enter(&format!("$D run k --ttl 10m -- {SHELL} '{script}'"));
        let (above, command) = (terminal.number("above").await, terminal.number("pid").await);
        if with_ctrl_z {
            terminal.press("\x1a");
            terminal.until("Stopped").await;
        }
        terminal.close().await;
        until_dead(command).await;
        until_dead(above).await;
        assert_eq!(world.inspect("k").await, None, "the lock is released");
    }
}
