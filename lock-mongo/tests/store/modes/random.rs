//! Random operations on one key, each compared with a small model of the rules R25–R30.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::ReleaseOutcome::{AlreadyLost, Released};
use distlock_api::{AcquisitionId, LockKey, Mode};
use distlock_conformance::Level;
use distlock_engine::store::{
    Attempt, BatchStore, Claim, LeaseStore, QueueStanding, Release, Renewal, Reply, Standing,
};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};

use super::older::Before;
use super::{permits, record};
use crate::Checks;
use crate::world::{LONG, World, admin, claim, key, ticket, twin};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C28 random_operations_follow_the_rules);
}

#[derive(Clone, Debug)]
struct Holder {
    id: AcquisitionId,
    mode: Mode,
    first: u64,
    last: u64,
    live: bool,
    kept: bool,
    /// As an exclusive lease, because a process without modes granted it.
    alone: bool,
}

impl Holder {
    fn as_held(&self) -> Mode {
        if self.alone { Mode::Exclusive } else { self.mode }
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    id: AcquisitionId,
    mode: Mode,
    tokens: u64,
}

#[derive(Default, Debug)]
struct Model {
    holders: Vec<Holder>,
    queue: Vec<Waiting>,
    token: u64,
    /// The lease that a process without modes has.
    theirs: Option<Claim>,
}

impl Model {
    fn live(&self) -> Vec<&Holder> {
        self.holders.iter().filter(|holder| holder.live).collect()
    }

    fn own(&self, id: &AcquisitionId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.id == *id && holder.live && !holder.kept)
    }

    fn fits(&self, mode: Mode) -> bool {
        mode.fits(self.live().iter().map(|holder| holder.as_held()))
    }

    fn drop_dead(&mut self) {
        self.holders.retain(|holder| holder.live);
    }
}

struct Run {
    world: World,
    name: String,
    store: MongoStore,
    key: LockKey,
    claims: Vec<(Claim, u64)>,
    past: Vec<Claim>,
    model: Model,
    log: Log,
}

fn random_mode() -> Mode {
    match fastrand::u8(0..10) {
        0..3 => Mode::Exclusive,
        3..7 => Mode::Shared,
        _ => {
            let of = fastrand::u32(1..5);
            permits(fastrand::u32(1..=of), of)
        }
    }
}

impl Run {
    fn new_claim(&self) -> (Claim, u64) {
        (claim(&self.key).with_mode(random_mode()), fastrand::u64(1..5))
    }

    async fn attempt(&mut self, slot: usize, with_ticket: bool) {
        let (claim, tokens) = self.claims[slot].clone();
        self.log.note(format!("attempt {slot} {} {} ticket={with_ticket}", claim.id(), claim.mode()));
        let mut attempt = Attempt::new(claim.clone(), LONG)
            .with_tokens(NonZeroU32::new(u32::try_from(tokens).unwrap()).unwrap())
            .with_turn_window(Duration::from_secs(600));
        if with_ticket {
            attempt = attempt.with_ticket(ticket());
        }
        let reply = self.store.try_acquire(&attempt).await.expect("an answer");
        let (id, mode) = (claim.id(), claim.mode());
        if let Some(own) = self.model.own(id).cloned() {
            let Reply::Granted(grant) = reply else { panic!("it holds already: {reply:?}") };
            assert_eq!((grant.token.get(), u64::from(grant.tokens.get())), (own.first, own.last - own.first + 1));
            return;
        }
        let at = self.model.queue.iter().position(|waiting| waiting.id == *id);
        let position = at.unwrap_or(self.model.queue.len());
        if position == 0 && self.model.fits(mode) {
            let Reply::Granted(grant) = reply else { panic!("it fits: {reply:?}") };
            assert!(grant.token.get() > self.model.token, "C5");
            assert_eq!(u64::from(grant.tokens.get()), tokens);
            assert!(grant.remaining > LONG / 2 && grant.remaining <= LONG);
            self.model.drop_dead();
            if at.is_some() {
                self.model.queue.remove(0);
            }
            let first = grant.token.get();
            self.model.token = first + tokens - 1;
            let last = self.model.token;
            let holder = Holder { id: id.clone(), mode, first, last, live: true, kept: false, alone: false };
            self.model.holders.push(holder);
            self.model.theirs = None;
            return;
        }
        let Reply::Busy(busy) = reply else { panic!("it does not fit: {reply:?}") };
        if with_ticket && at.is_none() {
            self.model.queue.push(Waiting { id: id.clone(), mode, tokens });
        }
        match (with_ticket || at.is_some(), busy.standing) {
            (true, QueueStanding::Queued { ahead }) => assert_eq!(ahead as usize, position),
            (false, QueueStanding::NotQueued) => {}
            other => panic!("{other:?}"),
        }
        assert!(busy.token.unwrap().get() <= self.model.token, "R18");
    }

    /// Grants to the head of the queue.
    fn grant_run(&mut self, changed: &Document) {
        while let Some(head) = self.model.queue.first().cloned()
            && self.model.fits(head.mode)
        {
            self.model.queue.remove(0);
            // The tokens are checked with the record.
            let of = |id: &str| -> Option<u64> {
                if changed.get_str("lockId").ok() == Some(id) {
                    return changed.get_i64("fencingToken").ok().map(|token| token as u64);
                }
                let holders = changed.get_array("holders").ok()?;
                let found = holders
                    .iter()
                    .filter_map(Bson::as_document)
                    .find(|one| one.get_str("id").is_ok_and(|of| of == id))?;
                found.get_i64("token").ok().map(|token| token as u64)
            };
            let last = of(head.id.as_str()).unwrap_or_else(|| panic!("{} is not granted: {changed}", head.id));
            let first = last + 1 - head.tokens;
            assert!(first > self.model.token, "C5: {first} after {}", self.model.token);
            self.model.token = last;
            let Waiting { id, mode, .. } = head;
            self.model.holders.push(Holder { id, mode, first, last, live: true, kept: false, alone: false });
        }
    }

    async fn release(&mut self, slot: usize) {
        let (claim, _) = self.claims[slot].clone();
        let hold = fastrand::u8(0..6) == 0 && !claim.mode().is_exclusive();
        self.log.note(format!("release {slot} {} {} hold={hold}", claim.id(), claim.mode()));
        // Without what its acquisition has met, another path is tried.
        let releasing = if fastrand::bool() { claim.clone() } else { twin(&claim).with_mode(claim.mode()) };
        let mut release = Release::new(releasing);
        if hold {
            release = release.with_hold_at_least(LONG * 2);
        }
        let withdraws = !hold && fastrand::u8(0..4) == 0;
        let outcome = if withdraws {
            // Alone, or beside one of another key. A batch leaves records alone that have nothing
            // of its claims, and so grants nothing there.
            let waits = self.model.queue.iter().any(|waiting| waiting.id == *claim.id());
            let has_something = waits || self.model.own(claim.id()).is_some();
            if !has_something || fastrand::bool() {
                self.store.withdraw(&claim, LONG).await.expect("an answer");
            } else {
                let claims = [claim.clone(), self::claim(&key())];
                let answers = self.store.withdraw_many(&claims, LONG).await;
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            }
            None
        } else {
            Some(self.store.release(&release).await.expect("an answer"))
        };
        let own = self.model.own(claim.id()).cloned();
        if let Some(outcome) = outcome {
            assert_eq!(outcome, if own.is_some() { Released } else { AlreadyLost });
        }
        self.past.push(claim.clone());
        self.claims[slot] = self.new_claim();
        let changed = record(&self.world, &self.name, &self.key).await;
        self.model.queue.retain(|waiting| waiting.id != *claim.id());
        // An expired one that has no new holder is also dropped.
        let had = self.model.holders.iter().any(|holder| holder.id == *claim.id() && !holder.kept);
        if had {
            let kept = own.filter(|_| hold);
            self.model.holders.retain(|holder| holder.id != *claim.id() || holder.kept);
            self.model.drop_dead();
            if let Some(mut kept) = kept {
                (kept.kept, kept.alone) = (true, false);
                self.model.holders.push(kept);
            }
        }
        let beside = self.model.live().iter().any(|holder| !holder.as_held().is_exclusive());
        if had || beside {
            let before = self.model.holders.len();
            self.grant_run(&changed);
            if self.model.holders.len() > before {
                self.model.drop_dead();
            }
        }
    }

    async fn repeat_past(&mut self) {
        if self.past.is_empty() {
            return;
        }
        let claim = self.past[fastrand::usize(0..self.past.len())].clone();
        self.log.note(format!("stale {}", claim.id()));
        let renewal = Renewal::lease(claim.clone(), distlock_api::FencingToken::new(self.model.token), LONG);
        let standing = self.store.renew(&renewal).await.unwrap();
        assert!(matches!(standing, Standing::Gone(_)), "{standing:?}");
    }

    async fn renew(&mut self, slot: usize) {
        let (claim, _) = self.claims[slot].clone();
        self.log.note(format!("renew {slot} {}", claim.id()));
        match self.model.own(claim.id()).cloned() {
            Some(own) => {
                let token = |token| distlock_api::FencingToken::new(token);
                let renewal = Renewal::lease(twin(&claim).with_mode(claim.mode()), token(own.last), LONG);
                let standing = self.store.renew(&renewal).await.unwrap();
                assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
                let renewal = Renewal::lease(claim, token(own.last + 1), LONG);
                let standing = self.store.renew(&renewal).await.unwrap();
                assert!(matches!(standing, Standing::Gone(_)), "{standing:?}");
            }
            None => {
                let renewal = Renewal::ticket(claim.clone(), ticket());
                let standing = self.store.renew(&renewal).await.unwrap();
                let at = self.model.queue.iter().position(|waiting| waiting.id == *claim.id());
                match (at, &standing) {
                    (Some(at), Standing::Waiting(busy)) => {
                        assert_eq!(busy.standing, QueueStanding::Queued { ahead: at as u32 });
                        let first = self.model.queue[0].mode;
                        let fits = !self.model.live().is_empty() && self.model.fits(first);
                        assert!(!fits || at > 0 || busy.holder_remaining == Some(Duration::ZERO), "{busy:?}");
                    }
                    (None, Standing::Gone(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    async fn edit(&self, edit: impl FnOnce(&mut Document)) {
        let mut found = record(&self.world, &self.name, &self.key).await;
        edit(&mut found);
        self.world.raw(&self.name).replace_one(doc! { "_id": self.key.as_str() }, found).await.unwrap();
    }

    /// Ends one lease as if its time had passed.
    async fn expire(&mut self) {
        let live: Vec<usize> = (0..self.model.holders.len()).filter(|at| self.model.holders[*at].live).collect();
        if live.is_empty() {
            return;
        }
        let at = live[fastrand::usize(0..live.len())];
        let holder = self.model.holders[at].clone();
        self.log.note(format!("expire {}", holder.id));
        self.model.holders[at].live = false;
        let past = DateTime::from_millis(DateTime::now().timestamp_millis() - 5);
        self.edit(|found| {
            if found.get_str("lockId").is_ok_and(|id| id == holder.id.as_str()) {
                found.insert("expiresAt", past);
                return;
            }
            let mut latest = past;
            for one in found.get_array_mut("holders").unwrap() {
                let one = one.as_document_mut().unwrap();
                if one.get_str("id").is_ok_and(|id| id == holder.id.as_str()) {
                    one.insert("expiresAt", past);
                }
                latest = latest.max(*one.get_datetime("expiresAt").unwrap());
            }
            found.insert("expiresAt", latest);
        })
        .await;
    }

    async fn kill_ticket(&mut self) {
        if self.model.queue.is_empty() {
            return;
        }
        let dead = self.model.queue.remove(fastrand::usize(0..self.model.queue.len()));
        self.log.note(format!("dead ticket {}", dead.id));
        self.edit(|found| {
            for one in found.get_array_mut("queue").unwrap().iter_mut().filter_map(Bson::as_document_mut) {
                if one.get_str("id").is_ok_and(|id| id == dead.id.as_str()) {
                    one.insert("seen", DateTime::from_millis(0));
                }
            }
        })
        .await;
        for slot in 0..self.claims.len() {
            if self.claims[slot].0.id() == &dead.id {
                self.claims[slot] = self.new_claim();
            }
        }
    }

    async fn force(&mut self, one: bool) {
        let live: Vec<Holder> = self.model.live().into_iter().cloned().collect();
        if live.is_empty() {
            return;
        }
        let victim = live[fastrand::usize(0..live.len())].clone();
        self.log.note(format!("force {} one={one}", victim.id));
        let admin = admin(&self.store);
        let info = if one {
            admin.force_release_holder(&self.key, &victim.id, "test").await.unwrap()
        } else {
            admin.force_release(&self.key, "test").await.unwrap()
        };
        let info = info.expect("it was held");
        let is_multiple = live.iter().any(|holder| !holder.as_held().is_exclusive());
        assert_eq!(info.holders.len(), if is_multiple { live.len() } else { 0 }, "{info:?}");
        self.model.token += 1;
        self.model.drop_dead();
        if one {
            self.model.holders.retain(|holder| holder.id != victim.id);
        } else {
            self.model.holders.clear();
        }
        if let Some(gone) =
            self.claims.iter().find(|(claim, _)| *claim.id() == victim.id).map(|(claim, _)| claim.clone())
        {
            let renewal = Renewal::lease(gone, distlock_api::FencingToken::new(victim.last), LONG);
            let standing = self.store.renew(&renewal).await.unwrap();
            assert_eq!(standing, Standing::Gone(distlock_api::Loss::ForceReleased), "C22");
        }
    }

    /// A process without modes frees the key by force, or takes it over.
    async fn older(&mut self, before: &Before) {
        if let Some(theirs) = self.model.theirs.take() {
            let own = self.model.own(theirs.id()).cloned();
            if own.is_none() {
                return;
            }
            self.log.note("old release".into());
            assert!(before.release(&theirs).await);
            self.model.holders.clear();
            if !self.model.queue.is_empty() {
                let head = self.model.queue.remove(0);
                let changed = record(&self.world, &self.name, &self.key).await;
                assert_eq!(changed.get_str("lockId").unwrap(), head.id.as_str());
                let last = changed.get_i64("fencingToken").unwrap() as u64;
                let Waiting { id, mode, tokens } = head;
                let holder = Holder { id, mode, first: last + 1 - tokens, last, live: true, kept: false, alone: true };
                assert!(holder.first > self.model.token);
                self.model.token = last;
                self.model.holders.push(holder);
            }
            return;
        }
        let live = self.model.live().len();
        if live > 0 && fastrand::bool() {
            self.log.note("old force".into());
            self.edit(|found| {
                found.remove("lockId");
                let token = found.get_i64("fencingToken").unwrap() + 1;
                found.extend(doc! { "fencingToken": token, "tokens": 1, "expiresAt": DateTime::now() });
                found.insert("revoked", "shared");
            })
            .await;
            self.model.token += 1;
            self.model.holders.clear();
        } else if live == 0 && self.model.queue.is_empty() && self.model.token > 0 {
            self.log.note("old take".into());
            let theirs = claim(&self.key);
            self.edit(|found| {
                let token = found.get_i64("fencingToken").unwrap() + 1;
                let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000);
                found.extend(doc! {
                    "lockId": theirs.id().as_str(), "fencingToken": token, "tokens": 1, "expiresAt": later,
                    "acquiredAt": DateTime::now(), "ttl": 60_000_i64,
                });
                found.remove("queue");
                found.remove("passed");
            })
            .await;
            self.model.token += 1;
            let token = self.model.token;
            let (id, mode) = (theirs.id().clone(), Mode::Exclusive);
            self.model.holders =
                vec![Holder { id, mode, first: token, last: token, live: true, kept: false, alone: false }];
            self.model.theirs = Some(theirs);
        }
    }

    async fn check(&self) {
        if self.model.token == 0 {
            return;
        }
        let found = record(&self.world, &self.name, &self.key).await;
        let now = DateTime::now();
        let is_over = found.get_datetime("expiresAt").is_ok_and(|end| *end <= now);
        let live = self.model.live();
        match found.get_str("lockId").ok() {
            _ if is_over => assert!(live.is_empty(), "held by the model: {found}"),
            None => assert!(live.is_empty(), "held by the model: {found}"),
            Some("shared") => {
                let holders: Vec<&Document> =
                    found.get_array("holders").unwrap().iter().map(|one| one.as_document().unwrap()).collect();
                let ends = holders.iter().map(|one| *one.get_datetime("expiresAt").unwrap());
                assert_eq!(ends.max().as_ref(), found.get_datetime("expiresAt").ok(), "R26: {found}");
                let there: Vec<_> = holders
                    .iter()
                    .filter(|one| *one.get_datetime("expiresAt").unwrap() > now)
                    .map(|one| (one.get_str("id").unwrap(), one.get_i64("token").unwrap() as u64))
                    .collect();
                let expected: Vec<_> = live.iter().map(|one| (one.id.as_str(), one.last)).collect();
                assert_eq!(there, expected, "{found}");
            }
            Some(id) => {
                assert_eq!(live.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [id], "{found}");
            }
        }
        let queue = found.get_array("queue").cloned().unwrap_or_default();
        let tickets = queue.iter().filter_map(Bson::as_document).filter(|place| !place.is_empty());
        let alive = tickets.filter(|one| one.get_datetime("seen").unwrap().timestamp_millis() > 0);
        let alive: Vec<_> = alive.map(|one| one.get_str("id").unwrap()).collect();
        assert_eq!(alive, self.model.queue.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), "{found}");
        assert_eq!(found.get_i64("fencingToken").unwrap() as u64, self.model.token, "{found}");
        assert!(!found.contains_key("step"));
    }
}

/// The operations so far, which are printed if the check fails.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.0.lock().unwrap());
        }
    }
}

async fn random_operations_follow_the_rules(world: World) {
    let default = if Level::from_env().expect("a level") < Level::Standard { 4 } else { 12 };
    let keys = std::env::var("RANDOM_KEYS").ok().and_then(|keys| keys.parse().ok()).unwrap_or(default);
    for _ in 0..keys {
        let (store, name) = world.named_store();
        let before = Before::new(&world, &name);
        let mut run = Run {
            world: world.clone(),
            name,
            store,
            key: key(),
            claims: Vec::new(),
            past: Vec::new(),
            model: Model::default(),
            log: Log::default(),
        };
        run.claims = (0..8).map(|_| run.new_claim()).collect();
        run.attempt(0, false).await;
        for _ in 0..120 {
            let slot = fastrand::usize(0..8);
            match fastrand::u8(0..100) {
                0..45 => {
                    let with_ticket = fastrand::u8(0..5) > 0;
                    run.attempt(slot, with_ticket).await;
                }
                45..72 => run.release(slot).await,
                72..82 => run.renew(slot).await,
                82..84 => run.repeat_past().await,
                84..89 => run.expire().await,
                89..93 => run.kill_ticket().await,
                93..95 => run.force(true).await,
                95..96 => run.force(false).await,
                _ => run.older(&before).await,
            }
            run.check().await;
        }
    }
}
