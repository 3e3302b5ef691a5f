//! A store that processes share, and whose time may be that of the calling client.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_api::{
    Capabilities, ErrorKind, FencingToken, LockError, LockKey, LockProvider, Loss, ReleaseOutcome, Result,
};
use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
use distlock_engine::store::{Attempt, BusyReply, Claim, Grant, Release, Renewal, RenewalSubject, Reply, Standing};
use distlock_engine::{LeaseProvider, LeaseStore};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The clock that decides when a lease has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The kernel's, which all processes share, whatever their wall clocks show.
    Common,
    /// The client's, right or wrong.
    Client,
}

impl Clock {
    fn now(self) -> Duration {
        match self {
            Self::Common => Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default(),
            Self::Client => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    pub(crate) fn fixture(self) -> Clocked {
        Clocked(self, std::env::temp_dir().join(format!("distlock-broken-{:016x}", fastrand::u64(..))))
    }
}

/// A folder with a file for each key.
pub(crate) struct Clocked(Clock, PathBuf);

#[async_trait]
impl Fixture for Clocked {
    fn name(&self) -> &str {
        match self.0 {
            Clock::Common => "common-clock",
            Clock::Client => "client-clock",
        }
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        Profile::new(promised).processes()
    }

    async fn start(&self) -> std::result::Result<(), FixtureError> {
        Ok(std::fs::create_dir(&self.1)?)
    }

    async fn clients(&self, count: usize) -> std::result::Result<Vec<Client>, FixtureError> {
        let store = || Files { clock: self.0, folder: self.1.clone() };
        Ok((0..count).map(|_| Client::of_store(store())).collect())
    }

    fn address(&self) -> Option<String> {
        Some(self.1.display().to_string())
    }

    async fn connect(&self, address: &str) -> std::result::Result<Arc<dyn LockProvider>, FixtureError> {
        Ok(Arc::new(LeaseProvider::new(Arc::new(Files { clock: self.0, folder: address.into() }))))
    }

    async fn stop(&self) {
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

#[derive(Debug)]
struct Files {
    clock: Clock,
    folder: PathBuf,
}

/// The content of a file.
#[derive(Default, Serialize, Deserialize)]
struct Record {
    holder: Option<String>,
    expires: Duration,
    token: u64,
}

impl Record {
    fn is_held_by(&self, claim: &Claim, now: Duration) -> bool {
        self.holder.as_deref() == Some(claim.id().as_str()) && now < self.expires
    }
}

impl Files {
    /// Does one atomic step: the file's lock ends with the process that holds it.
    fn step<T>(&self, key: &LockKey, step: impl FnOnce(&mut Record, Duration) -> T) -> Result<T> {
        let outcome = self.change(key, step);
        outcome
            .map_err(|error| LockError::new(ErrorKind::Other, format!("a file of the store cannot be used: {error}")))
    }

    fn change<T>(&self, key: &LockKey, step: impl FnOnce(&mut Record, Duration) -> T) -> std::io::Result<T> {
        let mut file = self.open(key)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut record = if text.is_empty() { Record::default() } else { serde_json::from_str(&text)? };
        let answer = step(&mut record, self.clock.now());
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&serde_json::to_vec(&record)?)?;
        Ok(answer)
    }

    fn open(&self, key: &LockKey) -> std::io::Result<File> {
        let path = self.folder.join(key.as_str());
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    }
}

#[async_trait]
impl LeaseStore for Files {
    fn name(&self) -> &str {
        "files"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let claim = &attempt.claim;
        self.step(claim.key(), |record, now| {
            if record.holder.is_some() && now < record.expires && !record.is_held_by(claim, now) {
                return Reply::Busy(BusyReply::new().with_holder_remaining(record.expires - now));
            }
            if !record.is_held_by(claim, now) {
                record.holder = Some(claim.id().as_str().to_owned());
                record.token += 1;
            }
            record.expires = now + attempt.ttl;
            Reply::Granted(Grant::new(FencingToken::new(record.token), attempt.ttl))
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let RenewalSubject::Lease { ttl, .. } = renewal.subject else { return Ok(Standing::Gone(Loss::Gone)) };
        self.step(renewal.claim.key(), |record, now| {
            if !record.is_held_by(&renewal.claim, now) {
                return Standing::Gone(Loss::Gone);
            }
            record.expires = record.expires.max(now + ttl);
            Standing::Held { remaining: record.expires - now }
        })
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.step(release.claim.key(), |record, now| {
            if !record.is_held_by(&release.claim, now) {
                return ReleaseOutcome::AlreadyLost;
            }
            record.holder = None;
            ReleaseOutcome::Released
        })
    }
}
