//! A password in the connection string appears in no output, and in no other process.

use crate::Tests;
use crate::doctor::user;
use crate::kit::{BOUND, Finished, World, finish, hold};

const PASSWORD: &str = "tr0ub4dor-and-3";
const ALL: [&str; 7] = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes", "remove"];

pub(crate) fn add(tests: &mut Tests) {
    tests.add_controlled("secrets::no_output_shows_the_password", outputs);
    tests.add_controlled("secrets::the_leash_does_not_get_the_connection_string", leash);
}

fn shows_nothing(finished: &Finished) {
    assert!(!finished.out.contains(PASSWORD) && !finished.err.contains(PASSWORD), "{finished:?}");
}

async fn outputs(world: World) {
    let uri = user(&world, &ALL, PASSWORD).await;
    let calls: [&[&str]; 11] = [
        &["run", "k", "--", "true"],
        &["run", "k", "--", "/no/such/command"],
        &["ls"],
        &["show", "k"],
        &["history", "k"],
        &["force-release", "k", "--reason", "r"],
        &["release-owner", "o", "--reason", "r"],
        &["doctor"],
        &["--help"],
        &["run", "--help"],
        &["man", "run"],
    ];
    // The password is right, wrong, and in a connection string that cannot be used.
    let wrong = uri.replacen(PASSWORD, &format!("{PASSWORD}-wrong"), 1);
    let unusable = format!("{uri}&maxPoolSize=many&tlsCertificateKeyFilePassword={PASSWORD}");
    let unreachable = format!("mongodb://u:{PASSWORD}@127.0.0.1:1/?serverSelectionTimeoutMS=200");
    for (uri, needs_a_server) in [(&uri, 0), (&wrong, 77), (&unusable, 78), (&unreachable, 69)] {
        for call in calls {
            let finished = finish(world.command_on(uri, call)).await;
            shows_nothing(&finished);
            let expected = match call {
                ["run", .., "/no/such/command"] if needs_a_server == 0 => 127,
                ["--help"] | ["run", "--help"] | ["man", ..] => 0,
                ["doctor"] => i32::from(needs_a_server != 0),
                _ => needs_a_server,
            };
            finished.expect(expected);
            let mut by_option = world.command(&[&["--uri", uri], call].concat());
            by_option.env_remove("DISTLOCK_MONGODB_URI");
            shows_nothing(&finish(by_option).await);
        }
    }
    // In the wrong place.
    for call in [&["ls", &uri][..], &["watch", &uri], &[&uri]] {
        shows_nothing(&world.output(call).await.expect(64));
    }
}

async fn leash(world: World) {
    let uri = user(&world, &ALL, PASSWORD).await;
    let mut mine = world.clone();
    mine.uri = uri;
    let (mut holder, command) = hold(&mine, &["k"]).await;
    let stat = std::fs::read_to_string(format!("/proc/{command}/stat")).expect("it runs");
    let group = stat.rsplit_once(") ").expect("a stat").1.split(' ').nth(2).expect("a group").to_owned();
    assert_ne!(group, holder.pid().to_string());
    for file in ["environ", "cmdline"] {
        let read = std::fs::read(format!("/proc/{group}/{file}")).expect("the leash runs");
        let text = String::from_utf8_lossy(&read);
        assert!(!text.contains(PASSWORD), "{file}: {text}");
    }
    let cmdline = std::fs::read(format!("/proc/{}/cmdline", holder.pid())).expect("it runs");
    assert!(!String::from_utf8_lossy(&cmdline).contains(PASSWORD));
    let ended = tokio::time::timeout(BOUND, holder.end()).await.expect("it ends");
    shows_nothing(&ended.expect(0));
}
