//! The program under test, and its run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, FencingToken, LockAdmin, LockGuard, LockKey, LockProvider,
    Result,
};
use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
use distlock_memory::MemoryProvider;

/// The environment variable with the backend that a process of this program examines.
const VARIABLE: &str = "DISTLOCK_TEST_BACKEND";

pub(crate) fn backend() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

pub(crate) fn fixtures(backend: &str) -> Vec<Box<dyn Fixture>> {
    match backend {
        "sound" => vec![Box::new(Memory { name: "sound", breaks: false })],
        "broken" => {
            vec![Box::new(Memory { name: NASTY, breaks: true }), Box::new(Memory { name: "sound", breaks: false })]
        }
        "variants" => ["sound", "left", "right"].map(|name| Box::new(Memory { name, breaks: false }) as _).into(),
        other => panic!("there is no backend {other:?}"),
    }
}

/// A name that must be escaped wherever it is written.
pub(crate) const NASTY: &str = "a<b>&'\"ü";

pub(crate) struct Memory {
    pub(crate) name: &'static str,
    pub(crate) breaks: bool,
}

#[async_trait]
impl Fixture for Memory {
    fn name(&self) -> &str {
        self.name
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.minimum_hold = true;
        promised.fair = true;
        promised.push = true;
        promised.shared = true;
        promised.permits = true;
        let profile = Profile::new(promised).admin().owners().lock_events().one_provider().expected_refusals(203);
        if matches!(self.name, "left" | "right") { profile.variant() } else { profile }
    }

    async fn clients(&self, count: usize) -> std::result::Result<Vec<Client>, FixtureError> {
        let inner = MemoryProvider::new();
        let provider: Arc<dyn LockProvider> = if self.breaks {
            Arc::new(TokensGoBack { inner, next: AtomicU64::new(u64::MAX / 2) })
        } else {
            Arc::new(inner)
        };
        Ok((0..count).map(|_| Client::new(Arc::clone(&provider))).collect())
    }
}

/// Each grant has a smaller token than the one before.
#[derive(Debug)]
struct TokensGoBack {
    inner: MemoryProvider,
    next: AtomicU64,
}

impl std::fmt::Display for TokensGoBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokensGoBack")
    }
}

#[async_trait]
impl LockProvider for TokensGoBack {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        Ok(match self.inner.acquire_with(key.clone(), options).await? {
            Acquired::Held(guard) => {
                let token = FencingToken::new(self.next.fetch_sub(1, Ordering::SeqCst));
                let mut held = None;
                let _ = guard.map_handle(|inner| {
                    held = Some(inner);
                    Box::new(Nothing)
                });
                Acquired::Held(LockGuard::new(key, token, held.expect("it was there")))
            }
            busy => busy,
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.inner.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin()
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// What is left of a guard after its lock was taken out.
struct Nothing;

impl distlock_api::LeaseHandle for Nothing {
    fn valid_until(&self) -> Option<tokio::time::Instant> {
        None
    }

    fn loss(&self) -> Option<distlock_api::Loss> {
        None
    }

    fn lost(&self) -> distlock_api::LostSignal {
        distlock_api::LostSignal::never()
    }

    fn release(self: Box<Self>) -> distlock_api::ReleaseFuture {
        distlock_api::ReleaseFuture::done(Ok(distlock_api::ReleaseOutcome::Released))
    }
}

/// The result and the output of a run of the program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) succeeded: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The names of the tests that passed or failed.
    pub(crate) fn with_result(&self, result: &str) -> Vec<&str> {
        let lines = self.out.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
        lines.filter(|(_, seen)| *seen == result).map(|(name, _)| name.trim()).collect()
    }

    pub(crate) fn seed(&self) -> &str {
        let line = self.err.lines().find_map(|line| line.split_once(", seed "));
        line.map(|(_, seed)| seed).unwrap_or_else(|| panic!("no seed: {self:?}"))
    }
}

/// Returns a command that examines a backend, without the settings of this process.
pub(crate) fn command(backend: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(VARIABLE, backend);
    for name in ["LEVEL", "MINUTES", "SEED", "REPORT"] {
        command.env_remove(format!("DISTLOCK_CONFORMANCE_{name}"));
    }
    command.env_remove("NEXTEST_RUN_ID");
    command
}

pub(crate) fn finished(mut command: Command) -> Ran {
    let output = command.output().expect("it runs");
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    Ran { succeeded: output.status.success(), out, err }
}

pub(crate) fn ran(backend: &str, arguments: &[&str]) -> Ran {
    let mut command = command(backend);
    command.args(arguments);
    finished(command)
}

/// An empty directory, removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("distlock-runner-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).expect("an empty directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn argument(&self) -> &str {
        self.0.to_str().expect("plain")
    }

    pub(crate) fn read(&self, file: &str) -> String {
        let path = self.0.join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}, there is {:?}", self.files()))
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("it is there").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
