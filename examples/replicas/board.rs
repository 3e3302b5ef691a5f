//! The state of the shop, as the proxy and the warehouse see it. Both are in this process, and each
//! request has a number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::tally::{OK, Waits, lost_updates};

/// How many spans are kept, for pages that are opened later.
const SPANS: usize = 2000;

/// A counter, and the requests that work on it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// The counter that a race would corrupt.
    pub(crate) sold: u64,
    pub(crate) writes: u64,
    pub(crate) holds: Vec<Hold>,
    /// The most requests at once, where at least one of them writes.
    pub(crate) most_at_once: usize,
    /// The most requests at once that only read.
    pub(crate) most_readers: usize,
    /// Reads that saw another request write.
    pub(crate) torn: u64,
    /// Requests that have not been answered.
    pub(crate) pending: usize,
    newest_token: u64,
    newest_token_of_a_writer: u64,
    pub(crate) tokens_back: u64,
    /// Since when requests have been waiting without one being served.
    stuck_since: Option<Instant>,
    pub(crate) longest_pause: Duration,
    pub(crate) served_since_kill: bool,
}

/// A request at work: it has read the counter, and not yet written it or read it again.
#[derive(Debug)]
pub(crate) struct Hold {
    request: u64,
    pub(crate) replica: String,
    pub(crate) token: u64,
    pub(crate) since: Instant,
    /// What it has read, if it only reads.
    pub(crate) seen: Option<u64>,
    /// Its replica was killed: it will not end.
    pub(crate) dead: bool,
}

/// A hold that is over.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) number: u64,
    pub(crate) item: usize,
    pub(crate) replica: String,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) reads: bool,
    pub(crate) dead: bool,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) killed: Option<Instant>,
    pub(crate) served: u64,
}

/// Answers and waits within a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// Orders that were served.
    pub(crate) ok: u64,
    /// Reads that were served.
    pub(crate) reads: u64,
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) waits: Waits,
    /// By item and replica.
    pub(crate) grants: BTreeMap<(usize, String), u64>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) start: Instant,
    pub(crate) locked: bool,
    pub(crate) items: Vec<Item>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) total: Answers,
    pub(crate) this_second: Answers,
    pub(crate) spans: VecDeque<Span>,
    /// The verdict, and whether it is good.
    pub(crate) finished: Option<(bool, String)>,
    requests: u64,
    pending: HashMap<u64, (usize, Instant)>,
}

/// The state, shared.
#[derive(Clone)]
pub(crate) struct Board(Arc<Mutex<State>>);

impl Board {
    pub(crate) fn new(replicas: &[&str], items: &[&str], locked: bool) -> Self {
        Self(Arc::new(Mutex::new(State::new(replicas, items, locked, Instant::now()))))
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        change(&mut self.0.lock().expect("no code in here panics"), Instant::now())
    }
}

impl State {
    pub(crate) fn new(replicas: &[&str], items: &[&str], locked: bool, start: Instant) -> Self {
        let item = |name: &&str| Item {
            name: (*name).to_owned(),
            sold: 0,
            writes: 0,
            holds: Vec::new(),
            most_at_once: 0,
            most_readers: 0,
            torn: 0,
            pending: 0,
            newest_token: 0,
            newest_token_of_a_writer: 0,
            tokens_back: 0,
            stuck_since: None,
            longest_pause: Duration::ZERO,
            served_since_kill: false,
        };
        let replica = |name: &&str| Replica { name: (*name).to_owned(), killed: None, served: 0 };
        Self {
            start,
            locked,
            items: items.iter().map(item).collect(),
            replicas: replicas.iter().map(replica).collect(),
            total: Answers::default(),
            this_second: Answers::default(),
            spans: VecDeque::new(),
            finished: None,
            requests: 0,
            pending: HashMap::new(),
        }
    }

    fn find(&self, item: &str) -> Option<usize> {
        self.items.iter().position(|candidate| candidate.name == item)
    }

    /// Records a request that has reached the proxy. Returns its number.
    pub(crate) fn arrived(&mut self, item: &str, now: Instant) -> Option<u64> {
        let index = self.find(item)?;
        self.requests += 1;
        self.pending.insert(self.requests, (index, now));
        let item = &mut self.items[index];
        item.pending += 1;
        item.stuck_since.get_or_insert(now);
        Some(self.requests)
    }

    /// Reads the counter for an order at a replica, which holds the lock if there is one.
    pub(crate) fn read(&mut self, item: &str, request: u64, replica: &str, token: u64, now: Instant) -> Option<u64> {
        let index = self.find(item)?;
        let hold = Hold { request, replica: replica.to_owned(), token, since: now, seen: None, dead: false };
        Some(self.begin(index, hold, now))
    }

    /// Reads the counter for a request that only reads, and so shares the lock. It does so twice:
    /// a write in between tears its view.
    pub(crate) fn look(&mut self, item: &str, request: u64, replica: &str, token: u64, now: Instant) -> Option<u64> {
        let index = self.find(item)?;
        let item = &mut self.items[index];
        let sold = item.sold;
        match item.holds.iter().position(|hold| hold.request == request) {
            Some(hold) => {
                item.torn += u64::from(item.holds[hold].seen != Some(sold));
                item.served(now);
                self.end(index, hold, now);
            }
            None => {
                let seen = Some(sold);
                self.begin(
                    index,
                    Hold { request, replica: replica.to_owned(), token, since: now, seen, dead: false },
                    now,
                );
            }
        }
        Some(sold)
    }

    /// Begins the work of a request. Returns the counter.
    fn begin(&mut self, index: usize, hold: Hold, now: Instant) -> u64 {
        if let Some((_, arrived)) = self.pending.get(&hold.request) {
            let wait = now.saturating_duration_since(*arrived);
            self.total.waits.add(wait);
            self.this_second.waits.add(wait);
        }
        *self.this_second.grants.entry((index, hold.replica.clone())).or_default() += 1;
        // This request got the lock that a dead replica left behind.
        while let Some(left) = self.items[index].holds.iter().position(|left| left.dead && left.excludes(&hold)) {
            self.end(index, left, now);
        }
        let item = &mut self.items[index];
        item.check_token(&hold);
        item.holds.push(hold);
        if item.holds.iter().all(|hold| hold.seen.is_some()) {
            item.most_readers = item.most_readers.max(item.holds.len());
        } else {
            item.most_at_once = item.most_at_once.max(item.holds.len());
        }
        item.sold
    }

    /// Writes the counter for a request.
    pub(crate) fn write(&mut self, item: &str, request: u64, sold: u64, now: Instant) -> Option<()> {
        let index = self.find(item)?;
        let item = &mut self.items[index];
        item.sold = sold;
        item.writes += 1;
        item.served(now);
        let hold = item.holds.iter().position(|hold| hold.request == request);
        let replica = hold.map(|hold| self.end(index, hold, now));
        if let Some(replica) = self.replicas.iter_mut().find(|candidate| replica.as_ref() == Some(&candidate.name)) {
            replica.served += 1;
        }
        Some(())
    }

    fn end(&mut self, item: usize, hold: usize, now: Instant) -> String {
        let hold = self.items[item].holds.remove(hold);
        let number = self.spans.back().map_or(1, |last| last.number + 1);
        let replica = hold.replica.clone();
        let (from, reads, dead) = (hold.since, hold.seen.is_some(), hold.dead);
        self.spans.push_back(Span { number, item, replica, from, to: now, reads, dead });
        if self.spans.len() > SPANS {
            self.spans.pop_front();
        }
        hold.replica
    }

    /// Records that the proxy has answered a request, which is an order or only reads.
    pub(crate) fn answered(&mut self, request: u64, reads: bool, label: &str, now: Instant) {
        let Some((index, _)) = self.pending.remove(&request) else { return };
        let item = &mut self.items[index];
        item.pending -= 1;
        if item.pending == 0 {
            item.longest_pause = item.longest_pause.max(item.pause(now));
            item.stuck_since = None;
        }
        for answers in [&mut self.total, &mut self.this_second] {
            if label == OK {
                let count = if reads { &mut answers.reads } else { &mut answers.ok };
                *count += 1;
            } else {
                *answers.refused.entry(label.to_owned()).or_default() += 1;
            }
        }
        let left = self.items[index].holds.iter().position(|hold| hold.request == request && !hold.dead);
        if let Some(hold) = left {
            self.end(index, hold, now);
        }
    }

    /// Whether a replica has read a counter for an order within this time, and not yet written it.
    pub(crate) fn has_begun(&self, replica: &str, now: Instant, within: Duration) -> bool {
        let mut holds = self.items.iter().flat_map(|item| &item.holds);
        holds.any(|hold| {
            hold.replica == replica && hold.seen.is_none() && now.saturating_duration_since(hold.since) < within
        })
    }

    pub(crate) fn killed(&mut self, replica: &str, now: Instant) {
        self.replicas.iter_mut().filter(|candidate| candidate.name == replica).for_each(|it| it.killed = Some(now));
        for item in &mut self.items {
            item.served_since_kill = false;
            item.holds.iter_mut().filter(|hold| hold.replica == replica).for_each(|hold| hold.dead = true);
        }
    }

    pub(crate) fn has_killed(&self) -> bool {
        self.replicas.iter().any(|replica| replica.killed.is_some())
    }

    pub(crate) fn lost(&self) -> u64 {
        self.items.iter().map(Item::lost).sum()
    }

    pub(crate) fn queued(&self) -> usize {
        self.items.iter().map(Item::queued).sum()
    }

    pub(crate) fn torn(&self) -> u64 {
        self.items.iter().map(|item| item.torn).sum()
    }

    pub(crate) fn most_readers(&self) -> usize {
        self.items.iter().map(|item| item.most_readers).max().unwrap_or(0)
    }
}

impl Hold {
    /// Whether a lock keeps the two apart: at least one of them writes.
    fn excludes(&self, other: &Self) -> bool {
        self.seen.is_none() || other.seen.is_none()
    }
}

impl Item {
    pub(crate) fn lost(&self) -> u64 {
        lost_updates(self.writes, self.sold)
    }

    /// How many requests wait for their turn.
    pub(crate) fn queued(&self) -> usize {
        self.pending.saturating_sub(self.holds.iter().filter(|hold| !hold.dead).count())
    }

    /// Records that a request was served.
    fn served(&mut self, now: Instant) {
        self.served_since_kill = true;
        self.longest_pause = self.longest_pause.max(self.pause(now));
        self.stuck_since = Some(now);
    }

    /// Counts a token that is not greater than those before it. Of readers that are served
    /// together, the one with the greater token may begin first.
    fn check_token(&mut self, hold: &Hold) {
        if hold.token == 0 {
            return;
        }
        let is_writer = hold.seen.is_none();
        let before = if is_writer { self.newest_token } else { self.newest_token_of_a_writer };
        self.tokens_back += u64::from(hold.token <= before);
        self.newest_token = self.newest_token.max(hold.token);
        if is_writer {
            self.newest_token_of_a_writer = self.newest_token_of_a_writer.max(hold.token);
        }
    }

    /// How long no request was served although requests were waiting.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.stuck_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests;
