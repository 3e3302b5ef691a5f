//! The provider's one stream of hints.

use std::collections::VecDeque;
use std::time::Duration;

use distlock_api::store::{EventStream, ProviderId};
use distlock_api::{ErrorKind, LockError, Result};
use futures_util::stream;
use mongodb::change_stream::ChangeStream;
use mongodb::options::ReadConcern;
use tokio::time::timeout;

use crate::calls::Budget;
use crate::error::{Effect, translate, unanswered};
use crate::lease::{Hints, Told};
use crate::store::MongoStore;
use crate::topology::Deployment;

/// How long the server lets a question for changes wait if there are none.
const AWAIT: Duration = Duration::from_secs(5);

struct Listening {
    changes: ChangeStream<Told>,
    hints: Hints,
    told: VecDeque<distlock_api::store::StoreEvent>,
    /// A connection that is dead without saying so would be waited for for ever.
    silence: Duration,
}

/// Opens the change stream: when this returns, the server has it, and what happens from then on is told.
///
/// The driver resumes it by itself after a failure of the network or of a member. It ends when the collection is dropped or renamed, with the first error, and when the server
/// has not even said "nothing new" for [`AWAIT`] and a request's time. Dropping it closes the server's cursor.
pub(crate) async fn watch(store: &MongoStore, provider: ProviderId) -> Result<EventStream> {
    let budget = Budget::new(store.request_timeout);
    if store.topology.of(&store.database, budget.left()).await? == Deployment::Standalone {
        return Err(LockError::new(ErrorKind::Unsupported, "a standalone MongoDB server has no change streams"));
    }
    let (records, pipeline) = (store.records.clone(), store.layout.hints(provider));
    let open = async move {
        let open = records.watch().pipeline(pipeline).read_concern(ReadConcern::majority()).max_await_time(AWAIT);
        open.await
    };
    let changes = store.calls.run(budget, Effect::None, open).await.map_err(refused)?;
    let silence = AWAIT + store.request_timeout;
    let listening = Listening {
        changes: changes.with_type(),
        hints: Hints::new(store.layout.clone(), provider),
        told: VecDeque::new(),
        silence,
    };
    Ok(Box::pin(stream::unfold(Some(listening), async |listening| {
        let mut listening = listening?;
        loop {
            if let Some(event) = listening.told.pop_front() {
                return Some((Ok(event), Some(listening)));
            }
            // One question to the server at a time, so that its "nothing new" is heard, too.
            match timeout(listening.silence, listening.changes.next_if_any()).await {
                Ok(Ok(Some(change))) => listening.told.extend(listening.hints.read(&change)),
                Ok(Ok(None)) if listening.changes.is_alive() => {}
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => return Some((Err(translate(&error, Effect::None)), None)),
                Err(_) => return Some((Err(unanswered(listening.silence, Effect::None)), None)),
            }
        }
    })))
}

/// Whoever may not watch does without (C16), and need not ask again.
fn refused(error: LockError) -> LockError {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let message = "the MongoDB user may not watch the lock collection: the privilege changeStream is missing";
    LockError::new(ErrorKind::Unsupported, message).with_source(error)
}
