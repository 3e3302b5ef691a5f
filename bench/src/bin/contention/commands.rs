//! Counting the commands that a client sends, by the driver's own command monitoring.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use tokio::sync::Notify;

use crate::clock::{self, Nanos};

/// The number of commands of each kind.
pub type Counts = BTreeMap<String, u64>;

/// Counts what the clients that it monitors send. Heartbeats and handshakes are not counted: the
/// driver does not report them.
#[derive(Debug, Default)]
pub struct Monitor {
    seen: Mutex<Seen>,
    deleted: Notify,
}

#[derive(Debug, Default)]
struct Seen {
    sent: Counts,
    deletes_answered: u64,
    log: Option<Vec<(Nanos, String)>>,
}

impl Monitor {
    /// Records every command with its time from now on.
    pub fn keep_log(&self) {
        self.seen().log = Some(Vec::new());
    }

    /// The commands sent so far.
    pub fn counts(&self) -> Counts {
        self.seen().sent.clone()
    }

    /// Takes what was recorded.
    pub fn take_log(&self) -> Vec<(Nanos, String)> {
        self.seen().log.take().unwrap_or_default()
    }

    /// Waits until this many deletions have been answered. A lock that deletes its record in the
    /// background does not report it in any other way.
    pub async fn deletes_answered(&self, number: u64) {
        loop {
            let woken = self.deleted.notified();
            if self.seen().deletes_answered >= number {
                return;
            }
            woken.await;
        }
    }

    /// The handler for a client of driver 3.
    pub fn handler(self: &Arc<Self>) -> EventHandler<CommandEvent> {
        let monitor = Arc::clone(self);
        EventHandler::callback(move |event| match event {
            CommandEvent::Started(event) => monitor.started(&event.command_name),
            CommandEvent::Succeeded(event) => monitor.ended(&event.command_name),
            CommandEvent::Failed(event) => monitor.ended(&event.command_name),
            _ => {}
        })
    }

    /// Counts a request of a client whose driver has no command monitoring.
    pub fn sent(&self, name: &str) {
        self.started(name);
    }

    fn started(&self, name: &str) {
        let mut seen = self.seen();
        match seen.sent.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(seen.sent.insert(name.to_owned(), 1)),
        }
        if let Some(log) = &mut seen.log {
            log.push((clock::now(), format!("{name} sent")));
        }
    }

    fn ended(&self, name: &str) {
        let mut seen = self.seen();
        if let Some(log) = &mut seen.log {
            log.push((clock::now(), format!("{name} answered")));
        }
        if name == "delete" {
            seen.deletes_answered += 1;
            self.deleted.notify_waiters();
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the older driver that `mongo-lock` uses.
impl mongodb2::event::command::CommandEventHandler for Monitor {
    fn handle_command_started_event(&self, event: mongodb2::event::command::CommandStartedEvent) {
        self.started(&event.command_name);
    }

    fn handle_command_succeeded_event(&self, event: mongodb2::event::command::CommandSucceededEvent) {
        self.ended(&event.command_name);
    }

    fn handle_command_failed_event(&self, event: mongodb2::event::command::CommandFailedEvent) {
        self.ended(&event.command_name);
    }
}

/// What was sent between two readings.
pub fn difference(before: &Counts, after: &Counts) -> Counts {
    let since = |name: &String, count: u64| count - before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, &count)| (name.clone(), since(name, count))).filter(|(_, count)| *count > 0).collect()
}

/// Adds counts to others.
pub fn add(total: &mut Counts, counts: &Counts) {
    for (name, count) in counts {
        *total.entry(name.clone()).or_default() += count;
    }
}

/// Returns their sum without those that only wait for the next event of a change stream.
pub fn without_get_more(counts: &Counts) -> u64 {
    counts.iter().filter(|(name, _)| *name != "getMore").map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn differences_and_sums() {
        let before = counts(&[("find", 2), ("update", 5)]);
        let after = counts(&[("find", 2), ("getMore", 7), ("update", 9)]);
        let sent = difference(&before, &after);
        assert_eq!(sent, counts(&[("getMore", 7), ("update", 4)]));
        assert_eq!(without_get_more(&sent), 4);
        let mut total = before;
        add(&mut total, &sent);
        assert_eq!(total, counts(&[("find", 2), ("getMore", 7), ("update", 9)]));
    }
}
