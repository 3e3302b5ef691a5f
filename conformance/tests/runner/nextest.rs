//! A process for each check, as `cargo nextest` has it.

use serde_json::Value;

use crate::program::{Directory, command};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("processes_of_a_run_add_to_one_report", processes_add_to_one_report),
    #[cfg(feature = "mongodb")]
    ("processes_of_a_run_share_a_server_that_ends_with_it", server::shared_by_a_run),
];

#[cfg(feature = "mongodb")]
pub(crate) use server::OnServer;

fn processes_add_to_one_report() {
    let directory = Directory::new();
    let checks = [
        "C5_fencing::across_release",
        "C6_constant_token::through_renewals_and_contention",
        "C7_owner::not_re_entrant",
    ];
    let report = |run: &str, checks: &[&str]| {
        let processes = checks.iter().map(|check| {
            let mut command = command("sound");
            command.args(["--exact", &format!("sound::{check}"), "--report", directory.argument()]);
            command.env("NEXTEST_RUN_ID", run).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            command.spawn().expect("it starts")
        });
        for mut process in processes.collect::<Vec<_>>() {
            assert!(process.wait().expect("it ends").success());
        }
        let sound: Value = serde_json::from_str(&directory.read("sound.json")).expect("JSON");
        let checks = sound["checks"].as_array().expect("a list").iter();
        checks.map(|check| check["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(report("first", &checks), checks);
    // Another run begins anew.
    assert_eq!(report("second", &checks[1..]), checks[1..]);
    let runs = std::fs::read_dir(directory.path().join("parts/sound")).expect("the parts").count();
    assert_eq!(runs, 1, "the parts of a run that is over are still there");
    assert!(
        directory.read("index.html").contains("not_re_entrant") || directory.read("index.html").contains("not_<wbr/>")
    );
}

#[cfg(feature = "mongodb")]
mod server {
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use distlock_api::Capabilities;
    use distlock_conformance::server::{MongoServer, Topology};
    use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
    use distlock_memory::MemoryProvider;
    use tokio::sync::Mutex;

    use crate::program::{Directory, backend, command};

    /// Starts a server, says where it is, and does not use it.
    #[derive(Default)]
    pub(crate) struct OnServer(Mutex<Option<MongoServer>>);

    #[async_trait]
    impl Fixture for OnServer {
        fn name(&self) -> &str {
            "on-server"
        }

        fn profile(&self) -> Profile {
            Profile::new(Capabilities::default()).one_provider()
        }

        async fn start(&self) -> Result<(), FixtureError> {
            assert_eq!(backend().as_deref(), Some("mongo"));
            let server = MongoServer::start(Topology::Standalone).await?;
            println!("server at {}", server.uri());
            *self.0.lock().await = Some(server);
            Ok(())
        }

        async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
            let provider = MemoryProvider::new();
            Ok((0..count).map(|_| Client::new(Arc::new(provider.clone()))).collect())
        }

        async fn stop(&self) {
            if let Some(server) = self.0.lock().await.take() {
                server.stop().await;
            }
        }
    }

    /// A shell is the runner: the parent of the processes.
    pub(super) fn shared_by_a_run() {
        let directory = Directory::new();
        let run = format!("test-{:016x}", fastrand::u64(..));
        let check = "on-server::C5_fencing::across_release";
        let program = command("mongo");
        let mut shell = Command::new("sh");
        // Two at once, and a third when they are over.
        shell.args([
            "-c",
            r#"cd "$1"; "$2" --exact "$3" >a & "$2" --exact "$3" >b & wait; "$2" --exact "$3" >c"#,
            "runner",
        ]);
        shell.arg(directory.path()).arg(program.get_program()).arg(check);
        shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("NEXTEST_RUN_ID", run).env_remove("DISTLOCK_MONGODB_STANDALONE_URI").stderr(Stdio::null());
        assert!(shell.status().expect("a shell").success(), "{:?}", ["a", "b", "c"].map(|file| directory.read(file)));
        let uris = ["a", "b", "c"].map(|file| {
            let said = directory.read(file);
            let uri = said.lines().find_map(|line| line.strip_prefix("server at ").map(str::to_owned));
            uri.unwrap_or_else(|| panic!("no server: {said}"))
        });
        assert!(uris.iter().all(|uri| *uri == uris[0]), "{uris:?}");

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut options = mongodb::options::ClientOptions::parse(&uris[0]).await.expect("a URI");
            options.server_selection_timeout = Some(Duration::from_millis(500));
            let client = mongodb::Client::with_options(options).expect("a client");
            let deadline = Instant::now() + Duration::from_secs(30);
            while client.database("admin").run_command(mongodb::bson::doc! { "ping": 1 }).await.is_ok() {
                assert!(Instant::now() < deadline, "the server outlives the run");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
}
