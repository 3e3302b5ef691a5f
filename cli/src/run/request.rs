//! The validated request of a run, made of its arguments.

use distlock::mongodb::MongoProvider;
use distlock::{AcquireOptions, ErrorKind, Holder, LeaseOptions, LockError, LockKey, Mode, Wait};
use tracing::info;

use super::args::RunArgs;
use super::ending::Limits;
use crate::failure::Failure;

/// What a run locks, and how.
pub(super) struct Request {
    pub(super) keys: Vec<LockKey>,
    pub(super) options: AcquireOptions,
    pub(super) owner: String,
    pub(super) limits: Limits,
    pub(super) keep_uri: bool,
    pub(super) quiet: bool,
}

impl Request {
    /// Logs what is waited for.
    pub(super) fn log(&self) {
        for key in &self.keys {
            info!(lock.key = %key, lock.mode = %self.options.mode(), wait = ?self.options.wait(), "acquiring");
        }
    }

    /// Checks everything that can be checked before any I/O.
    pub(super) fn new(args: &RunArgs) -> Result<Self, Failure> {
        let mut keys: Vec<LockKey> = Vec::new();
        for key in &args.keys {
            let key = LockKey::new(key.as_str())?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut lease = LeaseOptions::new().ttl(args.ttl);
        if let Some(minimum) = args.hold_at_least {
            lease = lease.hold_at_least(minimum);
        }
        if let Some(maximum) = args.max_hold {
            lease = lease.max_hold(maximum);
        }
        let terms = lease.terms()?;
        if terms.ttl < MongoProvider::MIN_TTL {
            let (ttl, least) = (terms.ttl, MongoProvider::MIN_TTL);
            let message = format!(
                "--ttl is {ttl:?}, and must be at least {least:?}: the server may take longer to answer, and such a \
                 lock would never be held"
            );
            return Err(LockError::new(ErrorKind::InvalidOptions, message).into());
        }
        let limits = Limits::new(&terms, args.grace)?;
        let default_owner = || Holder::this_process().owner.map(|owner| owner.to_string()).unwrap_or_default();
        let owner = args.owner.clone().unwrap_or_else(default_owner);
        let wait = match (args.no_wait, args.timeout) {
            (true, _) => Wait::Try,
            (false, Some(limit)) => Wait::UpTo(limit),
            (false, None) => Wait::Forever,
        };
        // Its arguments may contain secrets.
        let command: String = args.command[0].to_string_lossy().chars().take(200).collect();
        let options = AcquireOptions::new()
            .with_wait(wait)
            .with_mode(args.permits.unwrap_or(if args.shared { Mode::Shared } else { Mode::Exclusive }))
            .with_lease(lease)
            .with_owner(&owner)
            .with_metadata("command", command);
        Ok(Self { keys, options, owner, limits, keep_uri: args.keep_uri, quiet: args.quiet })
    }
}
