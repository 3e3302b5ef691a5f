//! A password in the connection string appears in no output, and in no other process.

use futures_util::future::{join, join_all};

use crate::Tests;
use crate::doctor::user;
use crate::kit::{BOUND, Finished, World, finish, hold, random_name};

const PASSWORD: &str = "tr0ub4dor-and-3";
const ALL: [&str; 7] = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes", "remove"];

pub(crate) fn add(tests: &mut Tests) {
    tests.add_controlled("secrets::no_output_shows_the_password", outputs);
    tests.add_controlled("secrets::the_command_does_not_get_the_connection_string", child);
    tests.add_controlled("secrets::a_file_names_the_deployment", files);
    tests.add_controlled("secrets::the_leash_does_not_get_the_connection_string", leash);
}

fn shows_nothing(finished: &Finished) {
    assert!(!finished.out.contains(PASSWORD) && !finished.err.contains(PASSWORD), "{finished:?}");
}

async fn outputs(world: World) {
    let uri = user(&world, &ALL, PASSWORD).await;
    let calls: [&[&str]; 13] = [
        &["run", "k", "--", "true"],
        &["run", "k", "-vv", "--", "true"],
        &["-vv", "ls"],
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
    let each = [(&uri, 0), (&wrong, 77), (&unusable, 78), (&unreachable, 69)].map(async |(uri, needs_a_server)| {
        for call in calls {
            let mut by_option = world.command(&[&["--uri", uri], call].concat());
            by_option.env_remove("DISTLOCK_MONGODB_URI");
            let (finished, by_option) = join(finish(world.command_on(uri, call)), finish(by_option)).await;
            shows_nothing(&finished);
            shows_nothing(&by_option);
            let expected = match call {
                ["run", .., "/no/such/command"] if needs_a_server == 0 => 127,
                ["--help"] | ["run", "--help"] | ["man", ..] => 0,
                ["doctor"] => i32::from(needs_a_server != 0),
                _ => needs_a_server,
            };
            finished.expect(expected);
        }
    });
    join_all(each).await;
    // In the wrong place, or divided by the shell.
    let [first, second] = [PASSWORD, "h/?authMechanismProperties=AWS_SESSION_TOKEN:x"];
    let misplaced = [uri.clone(), format!("u:{PASSWORD}@h"), format!("AWS_SESSION_TOKEN:{PASSWORD}"), first.into()];
    for call in misplaced.iter().flat_map(|word| [vec!["ls", word], vec!["watch", word], vec![word], vec!["run", word]])
    {
        let mut line = vec!["--uri", "mongodb://u:pass"];
        line.extend(call);
        line.push(second);
        shows_nothing(&world.output(&line).await.expect(64));
    }
    let typo = world.output(&["lss"]).await.expect(64);
    assert!(typo.err.contains("'lss'") && typo.err.contains("'ls'"), "a plain word is shown: {typo:?}");
    // A password that is a part of what a message says.
    let short = uri.replacen(PASSWORD, "e", 1);
    let refused = finish(world.command_on(&short, &["ls"])).await.expect(77);
    assert!(refused.err.contains("refused") || refused.err.contains("credentials"), "{refused:?}");
}

/// The command that is run does not get the connection string, unless the user wants it.
async fn child(world: World) {
    for (key, options, expected) in [
        ("a", &[][..], false),
        ("b", &["--once"], false),
        ("c", &["--keep-uri"], true),
        ("d", &["--once", "--keep-uri"], true),
    ] {
        let finished = world.output(&[&["run", key], options, &["--", "env"]].concat()).await.expect(0);
        assert!(finished.out.contains("DISTLOCK_TOKEN") || options.contains(&"--once"), "{finished:?}");
        assert_eq!(finished.out.contains("DISTLOCK_MONGODB_URI="), expected, "{options:?}");
    }
}

/// A file, or a credential of the service manager, names the deployment.
async fn files(world: World) {
    let uri = user(&world, &ALL, PASSWORD).await;
    let folder = std::env::temp_dir().join(random_name("credentials"));
    std::fs::create_dir(&folder).expect("a folder");
    let credential = folder.join("distlock-mongodb-uri");
    std::fs::write(&credential, format!("{uri}\n")).expect("written");
    let command = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.env_remove("DISTLOCK_MONGODB_URI");
        command
    };
    let path = credential.to_str().expect("text");
    finish(command(&["ls", "--uri-file", path])).await.expect(0);
    let mut by_credential = command(&["ls"]);
    by_credential.env("CREDENTIALS_DIRECTORY", &folder);
    finish(by_credential).await.expect(0);
    let mut without = command(&["ls"]);
    without.env("CREDENTIALS_DIRECTORY", "/no/such/folder");
    assert!(finish(without).await.expect(64).err.contains("--uri-file"));
    std::fs::write(&credential, format!("{uri}\n{uri}\n")).expect("written");
    for file in [path, "/no/such/file"] {
        let refused = finish(command(&["ls", "--uri-file", file])).await.expect(78);
        shows_nothing(&refused);
        assert!(refused.err.contains(file), "{refused:?}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
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
