//! The child's side.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_api::{
    AcquireOptions, Acquired, LeaseOptions, LockError, LockGuard, LockKey, LockProvider, ReleaseOutcome, RenewalPolicy,
    Wait,
};

use super::protocol::{Answer, ChildError, Job, Request};
use crate::client::is_settled;
use crate::failure::chain;
use crate::fixture::Fixture;

/// How long a child waits for the store to answer a release.
const RELEASING: Duration = Duration::from_secs(20);

/// Does a child's job. Returns only if the job is invalid or the fixture fails.
pub(crate) fn serve(job: &str, fixtures: Vec<Box<dyn Fixture>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let Ok(runtime) = runtime else { return fail("the runtime cannot be built") };
    let job: Job = match serde_json::from_str(job) {
        Ok(job) => job,
        Err(error) => return fail(&format!("the job is invalid: {error}")),
    };
    let Some(fixture) = fixtures.into_iter().find(|fixture| fixture.name() == job.fixture) else {
        return fail(&format!("there is no fixture {:?}", job.fixture));
    };
    let provider = match runtime.block_on(fixture.connect(&job.address)) {
        Ok(provider) => provider,
        Err(error) => return fail(&chain(&*error)),
    };
    send(&Answer::Ready);

    let mut guard = None;
    for line in std::io::stdin().lock().lines() {
        let request = line.map_err(|error| error.to_string()).and_then(|line| {
            serde_json::from_str(&line).map_err(|error| format!("the request {line:?} is invalid: {error}"))
        });
        let answer = request
            .map_err(ChildError::from)
            .and_then(|request| runtime.block_on(execute(request, &provider, &mut guard)));
        send(&answer.unwrap_or_else(|ChildError { error, unknown }| Answer::Failed { error, unknown }));
    }
    // The parent has ended. The child releases nothing, like a process that was killed.
    std::process::exit(0)
}

async fn execute(
    request: Request,
    provider: &Arc<dyn LockProvider>,
    guard: &mut Option<LockGuard>,
) -> Result<Answer, ChildError> {
    match request {
        Request::Acquire { key, mode, ttl_ms, renew, wait_ms } => {
            let renewal = if renew { RenewalPolicy::Auto } else { RenewalPolicy::Never };
            let lease = LeaseOptions::new().ttl(Duration::from_millis(ttl_ms)).renewal(renewal);
            let wait = if wait_ms == 0 { Wait::Try } else { Wait::UpTo(Duration::from_millis(wait_ms)) };
            let key = LockKey::new(key)?;
            let options = AcquireOptions::new().with_lease(lease).with_wait(wait).with_mode(mode);
            match provider.acquire_with(key.clone(), options).await? {
                Acquired::Busy(_) => Ok(Answer::Busy),
                Acquired::Held(held) => {
                    let answer = Answer::Granted { token: held.fencing_token().get(), remaining_ms: remaining(&held) };
                    *guard = Some(held);
                    Ok(answer)
                }
            }
        }
        Request::GuardState => {
            let held = guard.as_ref().ok_or_else(|| ChildError::from("nothing is held".to_owned()))?;
            Ok(Answer::GuardState { lost: held.is_lost(), remaining_ms: remaining(held) })
        }
        Request::Release => {
            let releasing = guard.take().ok_or_else(|| ChildError::from("nothing is held".to_owned()))?.release();
            match tokio::time::timeout(RELEASING, releasing).await {
                Ok(Ok(outcome)) => Ok(Answer::Released { in_time: outcome == ReleaseOutcome::Released }),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => {
                    let error = format!("a release did not return within {RELEASING:?}");
                    Err(ChildError { error, unknown: true })
                }
            }
        }
        Request::Clock => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(Answer::Clock { unix_ms: millis(now) })
        }
        Request::Accounting => {
            let now = provider.accounting();
            Ok(Answer::Accounting { idle: is_settled(&now), accounting: format!("{now:?}") })
        }
    }
}

impl From<LockError> for ChildError {
    fn from(error: LockError) -> Self {
        Self { error: chain(&error), unknown: error.is_outcome_unknown() }
    }
}

impl From<String> for ChildError {
    fn from(error: String) -> Self {
        Self { error, unknown: false }
    }
}

fn remaining(guard: &LockGuard) -> u64 {
    guard.remaining().map_or(u64::MAX, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn send(answer: &Answer) {
    let line = serde_json::to_string(answer).expect("answers are plain data");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn fail(error: &str) -> ExitCode {
    send(&Answer::Failed { error: error.to_owned(), unknown: false });
    ExitCode::FAILURE
}
