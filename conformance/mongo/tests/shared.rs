//! The processes of a run share a server that ends with the run. This program runs itself as the
//! test binary of a backend, with a process for each check, as `cargo nextest` does.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_api::Capabilities;
use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
use distlock_conformance_mongo::{MongoServer, Topology, run_one};
use distlock_memory::MemoryProvider;
use libtest_mimic::{Arguments, Trial};
use tokio::sync::Mutex;

/// Set in the processes that examine the backend.
const VARIABLE: &str = "DISTLOCK_TEST_BACKEND";

fn main() -> ExitCode {
    if std::env::var_os(VARIABLE).is_some() {
        return run_one(OnServer::default());
    }
    let trial = Trial::test("processes_of_a_run_share_a_server_that_ends_with_it", || {
        shared_by_a_run();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Starts a server, prints its address, and does not use it.
#[derive(Default)]
struct OnServer(Mutex<Option<MongoServer>>);

#[async_trait]
impl Fixture for OnServer {
    fn name(&self) -> &str {
        "on-server"
    }

    fn profile(&self) -> Profile {
        Profile::new(Capabilities::default()).one_provider()
    }

    async fn start(&self) -> Result<(), FixtureError> {
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

/// The runner is a shell, the parent of the processes.
fn shared_by_a_run() {
    let directory = Directory::new();
    let read = |file: &str| std::fs::read_to_string(directory.0.join(file)).expect("what a process said");
    let run = format!("test-{:016x}", fastrand::u64(..));
    let mut shell = Command::new("sh");
    // Two at once, and a third after they have ended.
    shell.args([
        "-c",
        r#"cd "$1"; "$2" --exact "$3" >a & "$2" --exact "$3" >b & wait; "$2" --exact "$3" >c"#,
        "runner",
    ]);
    shell.arg(&directory.0).arg(std::env::current_exe().expect("this program"));
    shell.arg("on-server::C5_fencing::across_release").stderr(Stdio::null());
    for name in ["LEVEL", "MINUTES", "SEED", "REPORT"] {
        shell.env_remove(format!("DISTLOCK_CONFORMANCE_{name}"));
    }
    shell.env(VARIABLE, "on-server").env("NEXTEST_RUN_ID", run).env_remove("DISTLOCK_MONGODB_STANDALONE_URI");
    assert!(shell.status().expect("a shell").success(), "{:?}", ["a", "b", "c"].map(read));
    let uris = ["a", "b", "c"].map(|file| {
        let said = read(file);
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

/// An empty directory, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("distlock-shared-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).expect("an empty directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
