//! The store against the record of the engine, which is the meaning of each request.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use distlock_api::{FencingToken, Holder, LockInfo, LockKey, Mode};
use distlock_engine::record::{ForceRelease, Record};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, QueueStanding, Release, Renewal, Reply, Standing, Ticket,
};
use fastrand::Rng;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};

checks! {
    C1 store_answers_as_the_record [Store]
        "Random requests of all kinds and modes, one after the other, have the answers of \
         `distlock_engine::record::Record`: granted or busy, the order of tokens, the position in \
         the queue, released or lost, and the time that is left. A failure means that some \
         sequence of requests, which the message names, does not have the effect that the engine \
         relies on.";
}

const STORES: usize = 3;
/// The claims of a key at a time.
const SLOTS: usize = 7;
const STEPS: usize = 50;
/// How many keys are used at the same time.
const AT_ONCE: usize = 8;
/// A sequence ends after this time, so that no lease expires in it.
const LIMIT: Duration = Duration::from_secs(20);
const TTLS: [Duration; 3] = [LEASE, Duration::from_millis(60_125), Duration::from_millis(240_500)];
/// With room for fewer than there are claims.
const TICKET: Ticket = Ticket::new(LEASE, TTLS[1], 5);
/// Only the first waiter has its turn within a sequence.
const WINDOW: Duration = Duration::from_secs(600);
const HOLD: Duration = Duration::from_secs(300);
/// A store remembers as many releases of a key (C10).
const REMEMBERED: usize = 4;
/// How long a failing sequence is shortened.
const SHORTENING: Duration = Duration::from_secs(10);

async fn store_answers_as_the_record(cx: Context) -> Verdict {
    let stores = cx.stores::<STORES>().await?;
    let seeds: Vec<u64> = (0..cx.rounds(40)).map(|_| cx.rng().u64(..)).collect();
    let found: Vec<_> = stream::iter(seeds)
        .map(async |seed| {
            let steps = random_steps(&cx, &stores[0], seed);
            let difference = Sequence::new(&cx, &stores).run(&steps).await?;
            Ok::<_, Failure>(difference.map(|_| (seed, steps)))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let Some((seed, steps)) = found.into_iter().flatten().next() else { return Ok(()) };
    let Some((difference, steps, key)) = shortened(&cx, &stores, steps).await? else {
        ensure!(false, "the answers of seed {seed:#x} differ from the record, but not if they are repeated");
        return Ok(());
    };
    let steps: Vec<String> = (1..).zip(&steps).map(|(number, step)| format!("{number}. {step}")).collect();
    let last = steps.len();
    ensure!(false, "{difference}, in step {last} of {key:?} (seed {seed:#x}): {}", steps.join("; "));
    Ok(())
}

/// Leaves out steps as long as there is a difference.
async fn shortened(
    cx: &Context,
    stores: &[BareStore; STORES],
    mut steps: Vec<Step>,
) -> Result<Option<(String, Vec<Step>, LockKey)>, Failure> {
    let (begun, mut found, mut next) = (Instant::now(), None, steps.len());
    loop {
        let mut fewer = steps.clone();
        if next < steps.len() {
            fewer.remove(next);
        }
        let sequence = Sequence::new(cx, stores);
        let key = sequence.key.clone();
        if let Some((at, difference)) = sequence.run(&fewer).await? {
            fewer.truncate(at + 1);
            next = next.min(fewer.len());
            steps = fewer.clone();
            found = Some((difference, fewer, key));
        } else if found.is_none() {
            return Ok(None);
        }
        if next == 0 || begun.elapsed() > SHORTENING {
            return Ok(found);
        }
        next -= 1;
    }
}

/// A step of one of the claims.
#[derive(Clone, Debug)]
struct Step {
    slot: usize,
    /// The claim, if the slot has none yet.
    new: NewClaim,
    ttl: Duration,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
struct NewClaim {
    store: usize,
    mode: Mode,
    waits: bool,
    tokens: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Attempt,
    Renew,
    RenewByWrongToken,
    Refresh,
    Release,
    ReleaseWithMinimumHold,
    /// Of one of the last releases.
    RepeatRelease,
    Withdraw,
    CountWaiters,
    Inspect,
    Force,
    ForceHolder,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, new: NewClaim { mode, waits, tokens, .. }, ttl, kind } = self;
        match kind {
            Kind::Attempt => {
                let with = if *waits { "with a ticket" } else { "without a ticket" };
                write!(f, "attempt of {slot}, if new {mode} {with} for {tokens} tokens, {ttl:?}")
            }
            Kind::Renew | Kind::RenewByWrongToken => write!(f, "{kind:?} {slot} for {ttl:?}"),
            Kind::CountWaiters | Kind::Inspect | Kind::Force => write!(f, "{kind:?}"),
            _ => write!(f, "{kind:?} {slot}"),
        }
    }
}

fn random_steps(cx: &Context, store: &BareStore, seed: u64) -> Vec<Step> {
    let (can, mut rng) = (store.inner().capabilities(), Rng::with_seed(seed));
    let has_queue = store.inner().extras().queue.is_some();
    let promised = cx.profile().capabilities();
    let (shared, permits) = (can.shared && promised.shared, can.permits && promised.permits);
    let mode = |rng: &mut Rng| match rng.u8(..10) {
        3..7 if shared => Mode::Shared,
        7.. if permits => {
            let of = rng.u32(1..=4);
            Mode::Permits { take: rng.u32(1..=of), of }
        }
        _ => Mode::Exclusive,
    };
    let kind = |rng: &mut Rng| match rng.u8(..100) {
        40..50 => Kind::Renew,
        50..53 => Kind::RenewByWrongToken,
        53..63 if has_queue => Kind::Refresh,
        63..77 => Kind::Release,
        77..79 if can.minimum_hold && promised.minimum_hold => Kind::ReleaseWithMinimumHold,
        79..83 => Kind::RepeatRelease,
        83..89 => Kind::Withdraw,
        89..92 if has_queue => Kind::CountWaiters,
        92..96 if cx.profile().has_admin() => Kind::Inspect,
        96..98 if cx.profile().has_admin() => Kind::Force,
        98.. if cx.profile().has_admin() && (shared || permits) => Kind::ForceHolder,
        _ => Kind::Attempt,
    };
    let steps = (0..STEPS).map(|_| {
        let tokens = if can.token_blocks { rng.u32(1..=4) } else { 1 };
        let tokens = NonZeroU32::new(tokens).expect("not zero");
        let waits = has_queue && rng.u8(..4) > 0;
        let new = NewClaim { store: rng.usize(..STORES), mode: mode(&mut rng), waits, tokens };
        let ttl = TTLS[rng.usize(..TTLS.len())];
        Step { slot: rng.usize(..SLOTS), new, ttl, kind: kind(&mut rng) }
    });
    steps.collect()
}

/// A claim of a sequence.
#[derive(Clone, Debug)]
struct Slot {
    claim: Claim,
    new: NewClaim,
    holder: Holder,
    /// The last grants that it has received: of the store, and of the record.
    grants: Option<(Grant, Grant)>,
}

/// One key of the store, and its record.
struct Sequence<'a> {
    stores: &'a [BareStore; STORES],
    key: LockKey,
    record: Record,
    begun: Instant,
    /// How long the slowest request took. By so much the clocks of the two may differ.
    slowest: Duration,
    slots: Vec<Option<Slot>>,
    claims: usize,
    /// The last releases; `None` for withdrawals.
    released: VecDeque<Option<(usize, Claim)>>,
    /// The first and the last token of the store's grants, by the first token of the record's.
    tokens: BTreeMap<u64, (u64, u64)>,
    /// New grants of the store have greater tokens.
    floor: u64,
}

/// Why a step ends its sequence.
enum Ended {
    Difference(String),
    Failure(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

type Compared<T = ()> = Result<T, Ended>;

/// A difference, unless the condition holds.
macro_rules! same {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Ended::Difference(format!($($message)+)));
        }
    };
}

impl<'a> Sequence<'a> {
    fn new(cx: &Context, stores: &'a [BareStore; STORES]) -> Self {
        Self {
            stores,
            key: cx.key(),
            record: Record::default(),
            begun: Instant::now(),
            slowest: Duration::ZERO,
            slots: vec![None; SLOTS],
            claims: 0,
            released: VecDeque::new(),
            tokens: BTreeMap::new(),
            floor: 0,
        }
    }

    /// Returns the first step whose answers differ, and how.
    async fn run(mut self, steps: &[Step]) -> Result<Option<(usize, String)>, Failure> {
        for (at, step) in steps.iter().enumerate() {
            match self.step(step).await {
                Err(Ended::Failure(failure)) => return Err(failure),
                _ if self.begun.elapsed() > LIMIT => return Ok(None),
                Err(Ended::Difference(difference)) => return Ok(Some((at, difference))),
                Ok(()) => {}
            }
        }
        Ok(None)
    }

    async fn step(&mut self, step: &Step) -> Compared {
        let slot = self.slot(step);
        let (store, claim) = (&self.stores[slot.new.store], &slot.claim);
        let (sent, now) = (Instant::now(), self.begun.elapsed());
        match step.kind {
            Kind::Attempt => {
                let attempt = attempt(&slot, step.ttl);
                let theirs = store.ask(&attempt).await?.map_err(Failure::from)?;
                self.took(sent);
                self.attempted(step.slot, &slot, &attempt, &theirs, now)
            }
            Kind::Renew | Kind::RenewByWrongToken => {
                let by = u64::from(step.kind == Kind::RenewByWrongToken);
                let of = |grant: &Grant| FencingToken::new(last(grant).get() + by);
                let one = FencingToken::new(1);
                let (theirs, ours) = slot.grants.as_ref().map_or((one, one), |(theirs, ours)| (of(theirs), of(ours)));
                let theirs = store.renew(&Renewal::lease(claim.clone(), theirs, step.ttl)).await?;
                self.took(sent);
                let ours = self.record.step(&Renewal::lease(claim.clone(), ours, step.ttl), now);
                self.same_standing("a renewal", &theirs, &ours)
            }
            Kind::Refresh => {
                if !slot.new.waits {
                    return Ok(());
                }
                let refresh = Renewal::ticket(claim.clone(), TICKET);
                let theirs = store.renew(&refresh).await?;
                self.took(sent);
                let ours = self.record.step(&refresh, now);
                // A store need not know that the ticket is gone because of a grant.
                if let (Standing::Gone(_), Standing::Held { .. }) = (&theirs, &ours) {
                    return Ok(());
                }
                self.same_standing("a refresh", &theirs, &ours)
            }
            Kind::Release | Kind::ReleaseWithMinimumHold => {
                let mut release = Release::new(claim.clone());
                if step.kind == Kind::ReleaseWithMinimumHold {
                    release = release.with_hold_at_least(HOLD);
                }
                let theirs = store.release_as(&release).await?;
                self.took(sent);
                let ours = self.record.step(&release, now);
                if ours.is_released() {
                    self.remember(Some((slot.new.store, claim.clone())));
                }
                self.slots[step.slot] = None;
                same!(theirs == ours, "a release was answered {theirs:?} by the store and {ours:?} by the record");
                Ok(())
            }
            Kind::RepeatRelease => {
                let Some((store, claim)) = self.released.iter().flatten().nth(step.slot % REMEMBERED).cloned() else {
                    return Ok(());
                };
                let release = Release::new(claim);
                let theirs = self.stores[store].release_as(&release).await?;
                self.took(sent);
                let ours = self.record.step(&release, now);
                same!(
                    theirs == ours,
                    "a repeated release was answered {theirs:?} by the store and {ours:?} by the record"
                );
                Ok(())
            }
            Kind::Withdraw => {
                store.withdraw(claim).await?;
                self.took(sent);
                if self.record.step(&Release::new(claim.clone()), now).is_released() {
                    self.remember(None);
                }
                self.slots[step.slot] = None;
                Ok(())
            }
            Kind::CountWaiters => {
                let theirs = store.waiters(claim).await?;
                let ours = u32::try_from(self.record.waiting(now).count()).unwrap_or(u32::MAX);
                same!(
                    theirs.is_none_or(|theirs| theirs == ours),
                    "the store counts {theirs:?} waiters instead of {ours}"
                );
                Ok(())
            }
            Kind::Inspect => {
                let theirs = store.admin()?.inspect(&self.key).await.map_err(Failure::from)?;
                self.took(sent);
                let ours = self.record.describe(&self.key, now);
                self.same_info("an inspection", theirs, ours)
            }
            Kind::Force | Kind::ForceHolder => {
                let (admin, mut request) = (store.admin()?, ForceRelease::new(self.key.clone(), SystemTime::now(), ""));
                let theirs = if step.kind == Kind::Force {
                    admin.force_release(&self.key, "conformance").await
                } else {
                    request = request.with_holder(claim.id().clone());
                    admin.force_release_holder(&self.key, claim.id(), "conformance").await
                };
                self.took(sent);
                let ours = self.record.step(&request, now);
                self.same_info("a release by force", theirs.map_err(Failure::from)?, ours)
            }
        }
    }

    /// Returns the claim of a step; a new one if there is none.
    fn slot(&mut self, step: &Step) -> Slot {
        if self.slots[step.slot].is_none() {
            self.claims += 1;
            let holder = Holder::new().with_owner(format!("claim {}", self.claims));
            let claim = self.stores[step.new.store].claim_as(&self.key, step.new.mode);
            self.slots[step.slot] = Some(Slot { claim, new: step.new, holder, grants: None });
        }
        self.slots[step.slot].clone().expect("it was just made")
    }

    fn took(&mut self, sent: Instant) {
        self.slowest = self.slowest.max(sent.elapsed());
    }

    fn remember(&mut self, released: Option<(usize, Claim)>) {
        self.released.push_back(released);
        if self.released.len() > REMEMBERED {
            self.released.pop_front();
        }
    }

    fn attempted(&mut self, at: usize, slot: &Slot, attempt: &Attempt, theirs: &Reply, now: Duration) -> Compared {
        let (before, is_first) =
            (self.record.token(), self.record.waiting(now).next().is_none_or(|id| id == slot.claim.id()));
        let ours = self.record.step(attempt, now);
        match (theirs, &ours) {
            (Reply::Granted(theirs), Reply::Granted(ours)) => {
                same!(
                    self.record.token() == before || theirs.token.get() > self.floor,
                    "the store granted {theirs:?}, and had answered an attempt before that the next token is above {}",
                    self.floor
                );
                self.same_tokens(theirs, ours)?;
                self.same_time("a grant", theirs.remaining, ours.remaining)?;
                if let Some(slot) = &mut self.slots[at] {
                    slot.grants = Some((theirs.clone(), ours.clone()));
                }
                Ok(())
            }
            (Reply::Busy(theirs), Reply::Busy(ours)) => self.same_busy("an attempt", theirs, ours, is_first),
            _ => {
                let what = if slot.new.waits { "with a ticket" } else { "without a ticket" };
                Err(Ended::Difference(format!(
                    "an attempt ({}) {what} was answered {theirs:?} by the store and {ours:?} by the record",
                    slot.claim.mode()
                )))
            }
        }
    }

    fn same_busy(&mut self, what: &str, theirs: &BusyReply, ours: &BusyReply, is_first: bool) -> Compared {
        same!(
            theirs.standing == ours.standing,
            "{what} was answered {:?} by the store and {:?} by the record",
            theirs.standing,
            ours.standing
        );
        self.floor = self.floor.max(theirs.token.map_or(0, FencingToken::get));
        match (theirs.holder_remaining, ours.holder_remaining) {
            (Some(theirs), Some(ours)) if is_first => self.same_time(what, theirs, ours),
            _ => Ok(()),
        }
    }

    fn same_standing(&mut self, what: &str, theirs: &Standing, ours: &Standing) -> Compared {
        match (theirs, ours) {
            (Standing::Held { remaining: theirs }, Standing::Held { remaining: ours }) => {
                // A lower bound is enough.
                let most = *ours + self.slowest + GRAIN;
                same!(*theirs <= most, "{what} left {theirs:?} by the store and {ours:?} by the record");
                Ok(())
            }
            (Standing::Waiting(theirs), Standing::Waiting(ours)) => {
                let is_first = ours.standing == QueueStanding::Queued { ahead: 0 };
                self.same_busy(what, theirs, ours, is_first)
            }
            (Standing::Gone(_), Standing::Gone(_)) => Ok(()),
            _ => Err(Ended::Difference(format!(
                "{what} was answered {theirs:?} by the store and {ours:?} by the record"
            ))),
        }
    }

    /// Compares the order of the tokens of all grants, and the length of this one's block.
    fn same_tokens(&mut self, theirs: &Grant, ours: &Grant) -> Compared {
        same!(theirs.tokens == ours.tokens, "the store granted {theirs:?}, and the record {} tokens", ours.tokens);
        let (first, block) = (ours.token.get(), (theirs.token.get(), last(theirs).get()));
        let known = *self.tokens.entry(first).or_insert(block);
        same!(known == block, "a repeated attempt was granted {theirs:?}, and token {} before", known.0);
        let before = self.tokens.range(..first).next_back().map_or(0, |(_, (_, last))| *last);
        let after = self.tokens.range(first + 1..).next().map_or(u64::MAX, |(_, (first, _))| *first);
        same!(
            before < block.0 && block.1 < after,
            "the store granted {theirs:?} after token {before} and before token {after}"
        );
        Ok(())
    }

    fn same_time(&self, what: &str, theirs: Duration, ours: Duration) -> Compared {
        let most = self.slowest + GRAIN;
        same!(theirs.abs_diff(ours) <= most, "{what} reports {theirs:?} by the store and {ours:?} by the record");
        Ok(())
    }

    fn same_info(&self, what: &str, theirs: Option<LockInfo>, ours: Option<LockInfo>) -> Compared {
        let (theirs, ours) = match (theirs, ours) {
            (None, None) => return Ok(()),
            (Some(theirs), Some(ours)) => (theirs, ours),
            (theirs, ours) => {
                return Err(Ended::Difference(format!(
                    "{what} reports {theirs:?} by the store and {ours:?} by the record"
                )));
            }
        };
        let holders = |info: &LockInfo| -> Vec<_> {
            info.holders.iter().map(|holder| (holder.id.clone(), holder.mode, holder.owner.clone())).collect()
        };
        same!(
            theirs.id == ours.id && theirs.owner == ours.owner && holders(&theirs) == holders(&ours),
            "{what} reports {theirs:?} by the store and {ours:?} by the record"
        );
        same!(
            theirs.waiting.is_none() || theirs.waiting == ours.waiting,
            "{what} reports {:?} waiters by the store and {:?} by the record",
            theirs.waiting,
            ours.waiting
        );
        self.same_time(what, theirs.remaining, ours.remaining)
    }
}

fn attempt(slot: &Slot, ttl: Duration) -> Attempt {
    let attempt = Attempt::new(slot.claim.clone(), ttl).with_tokens(slot.new.tokens).with_turn_window(WINDOW);
    let attempt = attempt.with_holder(slot.holder.clone());
    if slot.new.waits { attempt.with_ticket(TICKET) } else { attempt }
}
