//! The state of the shop, as the customers and the warehouse see it. Both are in this process, and
//! each request has a number. Times are seconds since the start.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::time::Instant;

/// How many spans are kept, for pages that are opened later.
const SPANS: usize = 2000;
/// The label of an answer that is a success.
pub(crate) const OK: &str = "ok";

/// A counter, and the requests that work on it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// The counter that a race would corrupt.
    pub(crate) sold: usize,
    pub(crate) writes: usize,
    pub(crate) holds: Vec<Hold>,
    /// The most requests at once, where at least one of them writes.
    pub(crate) most_at_once: usize,
    /// The most requests at once that only read.
    pub(crate) most_readers: usize,
    /// Reads that saw another request write.
    torn: usize,
    /// Requests that have not been answered.
    pending: usize,
    newest_token: u64,
    newest_token_of_a_writer: u64,
    pub(crate) tokens_back: u64,
    /// Since when requests have been waiting without one being served.
    stuck_since: Option<f64>,
    longest_pause: f64,
    pub(crate) served_since_kill: bool,
}

/// A request at work: it has read the counter, and not yet written it or read it again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hold {
    request: u64,
    pub(crate) replica: String,
    /// As text for the page, because scripts have no 64-bit numbers.
    #[serde(serialize_with = "as_text")]
    token: u64,
    from: f64,
    /// Whether it only reads, and what it has read.
    pub(crate) seen: Option<usize>,
    /// Its replica was killed: it will not end.
    pub(crate) dead: bool,
}

fn as_text<S: serde::Serializer>(token: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(token)
}

/// A hold that is over.
#[derive(Debug, Serialize)]
pub(crate) struct Span {
    number: u64,
    item: usize,
    to: f64,
    #[serde(flatten)]
    hold: Hold,
}

#[derive(Debug, Serialize)]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) killed: Option<f64>,
    pub(crate) served: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct State {
    pub(crate) locked: bool,
    pub(crate) items: Vec<Item>,
    pub(crate) replicas: Vec<Replica>,
    /// Orders and reads that were served.
    pub(crate) ok: u64,
    pub(crate) reads: u64,
    pub(crate) refused: BTreeMap<String, u64>,
    /// The verdict, and whether it is good.
    pub(crate) finished: Option<(bool, String)>,
    /// How long requests waited, in steps of 0.1 ms. It stays small however long the program runs.
    #[serde(skip)]
    waits: BTreeMap<u64, u64>,
    #[serde(skip)]
    spans: VecDeque<Span>,
    #[serde(skip)]
    requests: u64,
    /// The item of each request, and when it came.
    #[serde(skip)]
    pending: HashMap<u64, (usize, f64)>,
}

/// The state, shared.
#[derive(Clone)]
pub(crate) struct Board(Arc<Mutex<(State, Instant)>>);

impl Board {
    pub(crate) fn new(state: State) -> Self {
        Self(Arc::new(Mutex::new((state, Instant::now()))))
    }

    /// Counts the times from now on.
    pub(crate) fn begin(&self) {
        self.0.lock().expect("no code in here panics").1 = Instant::now();
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State, f64) -> T) -> T {
        let (state, start) = &mut *self.0.lock().expect("no code in here panics");
        change(state, start.elapsed().as_secs_f64())
    }
}

impl State {
    pub(crate) fn new(replicas: &[&str], items: &[&str], locked: bool) -> Self {
        let items = items.iter().map(|name| Item { name: (*name).to_owned(), ..Item::default() });
        let replicas = replicas.iter().map(|name| Replica { name: (*name).to_owned(), killed: None, served: 0 });
        Self { locked, items: items.collect(), replicas: replicas.collect(), ..Self::default() }
    }

    fn find(&self, item: &str) -> Option<usize> {
        self.items.iter().position(|candidate| candidate.name == item)
    }

    /// Records a request of a customer. Returns its number.
    pub(crate) fn arrived(&mut self, item: &str, now: f64) -> Option<u64> {
        let index = self.find(item)?;
        self.requests += 1;
        self.pending.insert(self.requests, (index, now));
        self.items[index].pending += 1;
        self.items[index].stuck_since.get_or_insert(now);
        Some(self.requests)
    }

    /// Reads the counter for a request at a replica. One that only reads does so twice: a write in
    /// between tears its view.
    pub(crate) fn read(&mut self, item: &str, caller: (u64, &str, u64, bool), now: f64) -> Option<usize> {
        let (index, (request, replica, token, reads)) = (self.find(item)?, caller);
        let sold = self.items[index].sold;
        match self.items[index].holds.iter().position(|hold| hold.request == request && reads) {
            Some(place) => {
                let hold = self.end(index, place, now);
                self.items[index].torn += usize::from(hold.seen != Some(sold));
                self.items[index].served(now);
            }
            None => {
                let (replica, seen) = (replica.to_owned(), reads.then_some(sold));
                self.begin(index, Hold { request, replica, token, from: now, seen, dead: false });
            }
        }
        Some(sold)
    }

    /// Begins the work of a request.
    fn begin(&mut self, index: usize, hold: Hold) {
        if let Some((_, arrived)) = self.pending.get(&hold.request) {
            *self.waits.entry(((hold.from - arrived) * 10_000.0).ceil() as u64).or_default() += 1;
        }
        // This request got the lock that a dead replica left behind.
        let is_left = |left: &Hold| left.dead && (left.seen.is_none() || hold.seen.is_none());
        while let Some(left) = self.items[index].holds.iter().position(is_left) {
            self.end(index, left, hold.from);
        }
        let item = &mut self.items[index];
        item.check_token(&hold);
        item.holds.push(hold);
        let most = match item.holds.iter().all(|hold| hold.seen.is_some()) {
            true => &mut item.most_readers,
            false => &mut item.most_at_once,
        };
        *most = item.holds.len().max(*most);
    }

    /// Writes the counter for a request.
    pub(crate) fn write(&mut self, item: &str, request: u64, sold: usize, now: f64) -> Option<()> {
        let index = self.find(item)?;
        let item = &mut self.items[index];
        item.sold = sold;
        item.writes += 1;
        item.served(now);
        if let Some(place) = item.holds.iter().position(|hold| hold.request == request) {
            let hold = self.end(index, place, now);
            self.replicas.iter_mut().filter(|replica| replica.name == hold.replica).for_each(|it| it.served += 1);
        }
        Some(())
    }

    fn end(&mut self, item: usize, place: usize, to: f64) -> Hold {
        let hold = self.items[item].holds.remove(place);
        self.spans.push_back(Span { number: self.newest_span() + 1, item, to, hold: hold.clone() });
        if self.spans.len() > SPANS {
            self.spans.pop_front();
        }
        hold
    }

    /// Records the answer to a request, which is an order or only reads.
    pub(crate) fn answered(&mut self, request: u64, reads: bool, label: &str, now: f64) {
        let Some((index, _)) = self.pending.remove(&request) else { return };
        let item = &mut self.items[index];
        item.pending -= 1;
        if item.pending == 0 {
            item.longest_pause = item.pause(now);
            item.stuck_since = None;
        }
        match (label, reads) {
            (OK, true) => self.reads += 1,
            (OK, false) => self.ok += 1,
            _ => *self.refused.entry(label.to_owned()).or_default() += 1,
        }
        let left = self.items[index].holds.iter().position(|hold| hold.request == request && !hold.dead);
        if let Some(place) = left {
            self.end(index, place, now);
        }
    }

    /// Whether a replica has read a counter for an order within this time, and not yet written it.
    pub(crate) fn has_begun(&self, replica: &str, now: f64, within: f64) -> bool {
        let mut holds = self.items.iter().flat_map(|item| &item.holds);
        holds.any(|hold| hold.replica == replica && hold.seen.is_none() && now - hold.from < within)
    }

    pub(crate) fn killed(&mut self, replica: &str, now: f64) {
        self.replicas.iter_mut().filter(|candidate| candidate.name == replica).for_each(|it| it.killed = Some(now));
        for item in &mut self.items {
            item.served_since_kill = false;
            item.holds.iter_mut().filter(|hold| hold.replica == replica).for_each(|hold| hold.dead = true);
        }
    }

    /// The spans after that of this number.
    pub(crate) fn spans_after(&self, number: u64) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.number > number).collect()
    }

    pub(crate) fn newest_span(&self) -> u64 {
        self.spans.back().map_or(0, |span| span.number)
    }

    /// The shortest wait that this share of all waits did not exceed, in milliseconds.
    pub(crate) fn wait(&self, percent: u64) -> Option<f64> {
        let mut left = (self.waits.values().sum::<u64>() * percent).div_ceil(100).max(1);
        self.waits.iter().find_map(|(step, count)| {
            left = left.saturating_sub(*count);
            (left == 0).then_some(*step as f64 / 10.0)
        })
    }

    pub(crate) fn lost(&self) -> usize {
        self.items.iter().map(Item::lost).sum()
    }

    pub(crate) fn torn(&self) -> usize {
        self.items.iter().map(|item| item.torn).sum()
    }
}

impl Item {
    pub(crate) fn lost(&self) -> usize {
        self.writes.saturating_sub(self.sold)
    }

    /// How many requests wait for their turn.
    pub(crate) fn queued(&self) -> usize {
        self.pending.saturating_sub(self.holds.iter().filter(|hold| !hold.dead).count())
    }

    /// Records that a request was served.
    fn served(&mut self, now: f64) {
        self.served_since_kill = true;
        self.longest_pause = self.pause(now);
        self.stuck_since = Some(now);
    }

    /// Counts a token that is not greater than those before it. Of readers that are served
    /// together, the one with the greater token may begin first.
    fn check_token(&mut self, hold: &Hold) {
        let is_writer = hold.seen.is_none();
        let before = if is_writer { self.newest_token } else { self.newest_token_of_a_writer };
        // Without a lock there is no token.
        self.tokens_back += u64::from(hold.token > 0 && hold.token <= before);
        self.newest_token = self.newest_token.max(hold.token);
        if is_writer {
            self.newest_token_of_a_writer = self.newest_token_of_a_writer.max(hold.token);
        }
    }

    /// The longest time in which no request was served although requests were waiting.
    pub(crate) fn pause(&self, now: f64) -> f64 {
        self.stuck_since.map_or(self.longest_pause, |since| self.longest_pause.max(now - since))
    }
}

#[cfg(test)]
mod tests;
