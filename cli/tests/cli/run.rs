//! What a command gets, and what becomes of its exit code.

use crate::Tests;
use crate::kit::{World, finish, fresh_path, hold};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("run::exit_codes_are_passed_on", exit_codes);
    tests.add("run::the_environment_has_the_locks", environment);
    tests.add("run::two_runs_of_a_key_exclude_each_other", exclusion);
    tests.add("run::runs_of_two_keys_in_opposite_order_exclude_each_other", several_keys);
    tests.add("run::a_minimum_hold_keeps_the_key_closed", minimum_hold);
    tests.add("run::a_wrong_command_line_is_refused", usage);
}

async fn exit_codes(world: World) {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        world.output(&["run", "k", "--", "sh", "-c", script]).await.expect(code);
    }
    let missing = world.output(&["run", "k", "--", "/no/such/command"]).await.expect(127);
    assert!(missing.err.contains("/no/such/command"), "{missing:?}");
    world.output(&["run", "k", "--", "/"]).await.expect(126);
    assert_eq!(world.inspect("k").await, None, "released in each case");
}

async fn environment(world: World) {
    let one = "echo $DISTLOCK_KEY,$DISTLOCK_TOKEN,$DISTLOCK_OWNER,$DISTLOCK_KEYS,$DISTLOCK_KEY_1,$DISTLOCK_KEY_2";
    let mut command = world.command(&["run", "a b", "--owner", "me", "--", "sh", "-c", one]);
    // Of an outer `distlock run`.
    command.env("DISTLOCK_KEY_2", "outer").env("DISTLOCK_TOKEN_2", "1");
    let first = finish(command).await.expect(0);
    let token_of = |line: &str| line.split(',').nth(1).and_then(|token| token.parse::<u64>().ok()).expect("a token");
    let token = token_of(&first.out);
    assert_eq!(first.out, format!("a b,{token},me,1,a b,\n"));
    let second = world.output(&["run", "a b", "--", "sh", "-c", one]).await.expect(0);
    assert!(token_of(&second.out) > token, "{first:?} {second:?}");
    let two = "echo $DISTLOCK_KEYS $DISTLOCK_KEY_1 $DISTLOCK_KEY_2 ${DISTLOCK_KEY-none} ${DISTLOCK_TOKEN-none}; \
               test $DISTLOCK_TOKEN_1 -gt 0 -a $DISTLOCK_TOKEN_2 -gt 0";
    let both = world.output(&["run", "z", "y", "z", "--", "sh", "-c", two]).await.expect(0);
    assert_eq!(both.out, "2 z y none none\n");
}

/// Runs a script that fails if another one is at work, several times at once.
async fn together(world: &World, keys: &[&[&str]]) {
    let file = fresh_path();
    let script = format!("set -C; : > {0} || exit 99; sleep 0.05; rm {0}", file.display());
    let runs = keys.iter().map(|keys| {
        let arguments: Vec<&str> = ["run"].iter().chain(*keys).chain(&["--", "sh", "-c", &script]).copied().collect();
        finish(world.command(&arguments))
    });
    for finished in futures_util::future::join_all(runs).await {
        finished.expect(0);
    }
}

async fn exclusion(world: World) {
    let one: &[&str] = &["k"];
    together(&world, &[one; 6]).await;
    assert_eq!(world.inspect("k").await, None);
}

async fn several_keys(world: World) {
    let (there, back): (&[&str], &[&str]) = (&["a", "b"], &["b", "a"]);
    together(&world, &[there, back, there, back]).await;
    assert_eq!((world.inspect("a").await, world.inspect("b").await), (None, None));
}

async fn minimum_hold(world: World) {
    world.output(&["run", "k", "--hold-at-least", "1h", "--", "true"]).await.expect(0);
    let shown = world.output(&["show", "k"]).await.expect(0).objects();
    assert_eq!(shown[0]["state"], "closed", "{shown:?}");
    world.output(&["run", "k", "--try", "--", "true"]).await.expect(75);
    // A command that could not be started has done no work.
    world.output(&["run", "other", "--hold-at-least", "1h", "--", "/no/such/command"]).await.expect(127);
    assert_eq!(world.inspect("other").await, None);
}

async fn usage(world: World) {
    for arguments in
        [&["run", "k"][..], &["run", "k", "--ttl", "5", "--", "true"], &["run", "", "--", "true"], &["no-such-command"]]
    {
        let refused = world.output(arguments).await.expect(64);
        assert!(!refused.err.is_empty() && refused.out.is_empty(), "{refused:?}");
    }
    let refused = world.output(&["run", "k", "--ttl", "9s", "--grace", "4s", "--", "true"]).await.expect(78);
    assert!(refused.err.contains("third of the ttl"), "{refused:?}");
    for ttl in ["1ms", "999ms"] {
        let refused = world.output(&["run", "k", "--ttl", ttl, "--", "true"]).await.expect(78);
        assert!(refused.err.contains("--ttl") && refused.err.contains("at least 1s"), "{refused:?}");
    }
    let mut nowhere = world.command(&["ls"]);
    nowhere.env_remove("DISTLOCK_MONGODB_URI");
    let refused = finish(nowhere).await.expect(64);
    assert!(refused.err.contains("DISTLOCK_MONGODB_URI"), "{refused:?}");
    // The lock was never asked for.
    let (mut holder, _) = hold(&world, &["k", "--try"]).await;
    holder.end().await;
}
