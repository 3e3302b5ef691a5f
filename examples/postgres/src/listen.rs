//! The stream of events: LISTEN on a connection of its own.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use futures_util::stream::{BoxStream, unfold};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::{Client, Config};

use crate::connection::{Dial, Dialled, Events, Received, session};
use crate::error::{Effect, of_connecting, of_request};

/// How long opening may take.
const OPENING: Duration = Duration::from_secs(5);
/// How often a silent connection is tested, to notice that the server or the network is gone.
const TESTED_EVERY: Duration = Duration::from_secs(5);
/// How long the answer to a test may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How many events may wait here. Beyond that the connection is not read, and they wait at the
/// server.
const KEPT: usize = 1024;

/// Listens on these channels. The stream ends with an error when the connection fails, because
/// events may have been missed. The engine then opens another stream.
pub(crate) async fn listen<E: Send + 'static>(
    dial: &dyn Dial,
    config: &Config,
    channels: &[String],
    parse: fn(&str) -> E,
) -> Result<BoxStream<'static, Result<E>>> {
    let (sender, received) = mpsc::channel(KEPT);
    let opening = async {
        let opened = session(dial, config, Some(Events { sender })).await;
        let Dialled { client, driver, .. } = opened.map_err(|error| of_connecting(&error))?;
        let listener = Listener { client, driver, received, parse, test_at: Instant::now() + TESTED_EVERY };
        let listen: String = channels.iter().map(|channel| format!("LISTEN \"{channel}\";")).collect();
        listener.client.batch_execute(&listen).await.map_err(|error| of_request(&error, Effect::None))?;
        Ok(listener)
    };
    let listener = timeout(OPENING, opening).await.unwrap_or_else(|_| Err(broken("it did not open in time")))?;
    Ok(Box::pin(unfold(Some(listener), |listener| async {
        let mut listener = listener?;
        let event = listener.next().await;
        let listener = event.is_ok().then_some(listener);
        Some((event, listener))
    })))
}

struct Listener<E> {
    client: Client,
    driver: AbortHandle,
    received: mpsc::Receiver<Received>,
    parse: fn(&str) -> E,
    test_at: Instant,
}

impl<E> Listener<E> {
    async fn next(&mut self) -> Result<E> {
        loop {
            tokio::select! {
                biased;
                received = self.received.recv() => return match received {
                    Some(Received::Notification(notification)) => Ok((self.parse)(notification.payload())),
                    Some(Received::Failed(error)) => Err(of_request(&error, Effect::None)),
                    None => Err(broken("it has ended")),
                },
                () = sleep_until(self.test_at) => {
                    let answer = timeout(ANSWERED_WITHIN, self.client.check_connection()).await;
                    answer
                        .map_err(|_| broken("the server is silent"))?
                        .map_err(|error| of_request(&error, Effect::None))?;
                    self.test_at = Instant::now() + TESTED_EVERY;
                }
            }
        }
    }
}

impl<E> Drop for Listener<E> {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn broken(why: &str) -> LockError {
    LockError::new(ErrorKind::Unavailable, format!("the connection for events to PostgreSQL broke: {why}"))
}
