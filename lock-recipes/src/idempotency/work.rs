//! The work of a request that was begun: the inner call, and what is remembered of its answer.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::IdempotencyBody;
use super::codec::{KeptAnswer, Remembered, encode, encode_not_kept};
use super::policy::{self, AfterAnswer};
use super::refusal::{Reason, Refusal};
use super::shared::{NOT_KEPT, Shared, mark};
use super::tally::Event;
use crate::once::{NotCompleted, OnceGuard, OnceOptions};

/// How often a completion is asked for whose outcome is unknown.
const COMPLETIONS: usize = 3;

/// Calls the service while the lease is held, and remembers its answer. If the lease is lost, the
/// call is dropped.
///
/// If this is dropped, or panics, the work is interrupted.
pub(super) async fn work<S, B, RB>(
    mut service: S,
    request: Request<B>,
    guard: OnceGuard,
    shared: Arc<Shared>,
) -> Result<Response<IdempotencyBody<RB>>, S::Error>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
{
    match guard.run(service.call(request)).await {
        Ok(Ok(response)) => Ok(remember(response, guard, &shared).await.unwrap_or_else(|error| shared.refuse(&error))),
        // The service failed without an answer: how far it came is not known.
        Ok(Err(error)) => Err(error),
        Err(lost) => Ok(shared.refuse(&Refusal::new(Reason::NotRemembered).with_source(lost))),
    }
}

/// Ends the work as its answer says, and returns the answer.
async fn remember<B: Body>(
    response: Response<B>,
    guard: OnceGuard,
    shared: &Shared,
) -> Result<Response<IdempotencyBody<B>>, Refusal> {
    match (shared.config.after)(response.status()) {
        AfterAnswer::Keep => keep(response, guard, shared).await,
        AfterAnswer::RunAgain => {
            if let Err(error) = guard.discard().await {
                // The run counts as interrupted then.
                tracing::debug!(idempotency.class = &*shared.config.class, %error, "work was not given back");
            }
            Ok(response.map(IdempotencyBody::passing))
        }
        AfterAnswer::InDoubt => Ok(response.map(IdempotencyBody::passing)),
    }
}

async fn keep<B: Body>(
    response: Response<B>,
    mut guard: OnceGuard,
    shared: &Shared,
) -> Result<Response<IdempotencyBody<B>>, Refusal> {
    let (parts, body) = response.into_parts();
    let limit = shared.config.max_answer_body;
    let (body, read) = if policy::is_kept(body.size_hint().exact(), limit) {
        guard.run(IdempotencyBody::read(body)).await.map_err(not_remembered)?
    } else {
        (IdempotencyBody::passing(body), None)
    };
    let kept = read.filter(|body| body.len() <= limit).and_then(|body| {
        let headers = policy::chosen(&parts.headers, &shared.config.kept_headers);
        encode(&Remembered::Answer(KeptAnswer { status: parts.status, headers, body }))
    });
    let kept = kept.filter(|value| value.len() <= OnceOptions::MAX_VALUE_LEN);
    match &kept {
        Some(value) => complete(&mut guard, value).await?,
        None => complete(&mut guard, &encode_not_kept(parts.status)).await?,
    }
    let mut response = Response::from_parts(parts, body);
    shared.tell_keep(&mut response);
    if kept.is_none() {
        shared.tally.event(&shared.config.class, Event::NotKept);
        mark(&mut response, NOT_KEPT);
    }
    Ok(response)
}

/// Completes the work. Only a completion that the store has confirmed counts.
async fn complete(guard: &mut OnceGuard, value: &[u8]) -> Result<(), Refusal> {
    let mut left = COMPLETIONS;
    loop {
        left -= 1;
        match guard.complete(value).await {
            Ok(()) => return Ok(()),
            Err(NotCompleted::Unknown(_)) if left > 0 => {}
            Err(error) => return Err(not_remembered(error.into_error())),
        }
    }
}

fn not_remembered(error: distlock_api::LockError) -> Refusal {
    Refusal::new(Reason::NotRemembered).with_source(error)
}
