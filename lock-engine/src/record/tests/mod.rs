use super::*;
use crate::store::{Grant, ProviderId};

mod modes;
mod queue;

const SEC: fn(u64) -> Duration = Duration::from_secs;
const TTL: Duration = Duration::from_secs(10);

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn claim() -> Claim {
    Claim::new(key(), ProviderId::random().acquisition_id())
}

fn acquire(record: &mut Record, now: Duration, claim: &Claim) -> Reply {
    record.try_acquire(now, &Attempt::new(claim.clone(), TTL))
}

fn granted(record: &mut Record, now: Duration, claim: &Claim) -> FencingToken {
    match acquire(record, now, claim) {
        Reply::Granted(grant) => grant.token,
        busy => panic!("expected a grant, got {busy:?}"),
    }
}

fn renew(record: &mut Record, now: Duration, claim: &Claim, token: FencingToken) -> Standing {
    record.renew(now, &Renewal::lease(claim.clone(), token, TTL))
}

fn release(record: &mut Record, now: Duration, claim: &Claim) -> ReleaseOutcome {
    release_with(record, now, &Release::new(claim.clone()))
}

fn release_with(record: &mut Record, now: Duration, release: &Release) -> ReleaseOutcome {
    effect_of(record, now, release, true).outcome
}

/// What a release or withdrawal has changed.
#[derive(Debug, PartialEq, Eq)]
struct ReleaseEffect {
    outcome: ReleaseOutcome,
    /// Whether the claim had a lease until now.
    ended: bool,
    granted: Vec<NextHolder>,
    expired: Vec<AcquisitionId>,
}

impl ReleaseEffect {
    /// A release that has changed no lease.
    fn new(outcome: ReleaseOutcome) -> Self {
        Self { outcome, ended: false, granted: Vec::new(), expired: Vec::new() }
    }
}

/// A waiter to which a release has granted a lease.
#[derive(Debug, PartialEq, Eq)]
struct NextHolder {
    id: AcquisitionId,
    mode: Mode,
    holder: Holder,
    grant: Grant,
    expires_at: Duration,
}

fn effect_of(record: &mut Record, now: Duration, release: &Release, hands_over: bool) -> ReleaseEffect {
    let outcome = if hands_over { record.step(release, now) } else { record.release_to_none(release, now) };
    let mut effect = ReleaseEffect::new(outcome);
    for change in record.take_changes() {
        match change {
            Change::Granted { id, mode, holder, grant, expires_at, handed_over } => {
                assert!(handed_over);
                let expires_at = expires_at.saturating_since(StoreTime::since_origin(Duration::ZERO));
                effect.granted.push(NextHolder { id, mode, holder, grant, expires_at });
            }
            Change::Released { id } => effect.ended = id == *release.claim.id(),
            Change::Expired { id } => effect.expired.push(id),
            Change::Freed => assert!(effect.granted.is_empty()),
            Change::ForceReleased { .. } => panic!("a release is none by force: {change:?}"),
        }
    }
    effect
}

#[test]
fn c1_held_until_the_expiry_and_free_from_it_on() {
    let (mut record, first, second) = (Record::default(), claim(), claim());
    let token = granted(&mut record, SEC(1), &first);
    let just_before = SEC(11) - Duration::from_nanos(1);
    let Reply::Busy(busy) = acquire(&mut record, just_before, &second) else { panic!("still held") };
    assert_eq!(busy.holder_remaining, Some(Duration::from_nanos(1)));
    assert_eq!((busy.now, busy.token), (Some(StoreTime::since_origin(just_before)), Some(token)));
    assert!(granted(&mut record, SEC(11), &second) > token);
}

#[test]
fn c10_a_repeated_attempt_has_the_same_token_and_never_shortens() {
    let (mut record, claim) = (Record::default(), claim());
    let token = granted(&mut record, SEC(0), &claim);
    let shorter = Attempt::new(claim.clone(), SEC(1));
    assert_eq!(record.try_acquire(SEC(2), &shorter), Reply::Granted(Grant::new(token, SEC(8))));
    assert_eq!(acquire(&mut record, SEC(3), &claim), Reply::Granted(Grant::new(token, SEC(10))));
    // Once expired it is a new grant, even for the same claim.
    assert!(granted(&mut record, SEC(13), &claim) > token);
}

#[test]
fn c10_a_block_of_tokens_is_repeated_as_it_was() {
    let (mut record, claim) = (Record::default(), claim());
    let block = NonZeroU32::new(5).unwrap();
    let attempt = Attempt::new(claim.clone(), TTL).with_tokens(block);
    let grant = Grant::new(FencingToken::new(1), TTL).with_tokens(block);
    assert_eq!(record.try_acquire(SEC(0), &attempt), Reply::Granted(grant.clone()));
    assert_eq!(acquire(&mut record, SEC(0), &claim), Reply::Granted(grant));
    assert_eq!(renew(&mut record, SEC(0), &claim, FencingToken::new(1)), Standing::Gone(Loss::Gone));
    assert_eq!(renew(&mut record, SEC(0), &claim, FencingToken::new(5)), Standing::Held { remaining: TTL });
    assert_eq!(record.token(), 5);
}

#[test]
fn c12_a_renewal_extends_but_never_revives() {
    let (mut record, claim) = (Record::default(), claim());
    let token = granted(&mut record, SEC(0), &claim);
    assert_eq!(renew(&mut record, SEC(4), &claim, token), Standing::Held { remaining: TTL });
    let shorter = Renewal::lease(claim.clone(), token, SEC(1));
    assert_eq!(record.renew(SEC(5), &shorter), Standing::Held { remaining: SEC(9) });
    assert_eq!(renew(&mut record, SEC(5), &claim, FencingToken::new(99)), Standing::Gone(Loss::Gone));
    assert_eq!(
        renew(&mut record, SEC(14), &claim, token),
        Standing::Gone(Loss::Gone),
        "expired, though no claim took it"
    );
    assert_eq!(record.describe(&key(), SEC(14)), None);
}

#[test]
fn c8_a_past_holder_changes_nothing() {
    let (mut record, past, present) = (Record::default(), claim(), claim());
    let token = granted(&mut record, SEC(0), &past);
    let _ = granted(&mut record, SEC(10), &present);
    let before = record.describe(&key(), SEC(11));
    assert_eq!(release(&mut record, SEC(11), &past), ReleaseOutcome::AlreadyLost);
    assert_eq!(renew(&mut record, SEC(11), &past, token), Standing::Gone(Loss::Gone));
    assert_eq!(record.describe(&key(), SEC(11)), before);
}

#[test]
fn c9_c10_a_repeated_release_gets_the_first_answer() {
    let (mut record, claim) = (Record::default(), claim());
    assert_eq!(release(&mut record, SEC(0), &claim), ReleaseOutcome::AlreadyLost, "never granted");
    let _ = granted(&mut record, SEC(0), &claim);
    assert_eq!(release(&mut record, SEC(1), &claim), ReleaseOutcome::Released);
    // Others hold and release the key in between, one fewer than the record remembers.
    for _ in 1..REMEMBERED {
        let other = self::claim();
        let _ = granted(&mut record, SEC(2), &other);
        assert_eq!(release(&mut record, SEC(1), &claim), ReleaseOutcome::Released);
        assert_eq!(release(&mut record, SEC(2), &other), ReleaseOutcome::Released);
    }
    let last = self::claim();
    let _ = granted(&mut record, SEC(2), &last);
    let _ = release(&mut record, SEC(2), &last);
    assert_eq!(record.ended.len(), REMEMBERED, "the memory is bounded");
}

#[test]
fn c22_a_force_release_skips_a_token_and_the_victim_learns_of_it() {
    let (mut record, victim, next) = (Record::default(), claim(), claim());
    let token = granted(&mut record, SEC(0), &victim);
    assert_eq!(force(&mut record, SEC(1), None), [victim.id().clone()]);
    assert_eq!(renew(&mut record, SEC(1), &victim, token), Standing::Gone(Loss::ForceReleased));
    assert_eq!(release(&mut record, SEC(1), &victim), ReleaseOutcome::AlreadyLost);
    assert_eq!(granted(&mut record, SEC(1), &next).get(), token.get() + 2);
    // A free key: nothing to take, no token to skip.
    let mut free = Record::above(7);
    assert!(force(&mut free, SEC(0), None).is_empty());
    assert_eq!(free.token(), 7);
}

#[test]
fn c25_a_minimum_hold_counts_from_the_grant_and_keeps_every_claim_out() {
    let (mut record, claim) = (Record::default(), claim());
    let _ = granted(&mut record, SEC(5), &claim);
    let hold = Release::new(claim.clone()).with_hold_at_least(SEC(20));
    assert_eq!(release_with(&mut record, SEC(6), &hold), ReleaseOutcome::Released);
    let closed = record.describe(&key(), SEC(6)).unwrap();
    assert_eq!((closed.id, closed.remaining), (None, SEC(19)));
    assert!(matches!(acquire(&mut record, SEC(24), &claim), Reply::Busy(_)), "its own claim included");
    assert!(matches!(acquire(&mut record, SEC(25), &claim), Reply::Granted(_)));
}

#[test]
fn c5_tokens_continue_above_the_floor() {
    let (mut record, claim) = (Record::above(41), claim());
    assert_eq!(granted(&mut record, SEC(0), &claim), FencingToken::new(42));
}

#[test]
fn expiry_by_hand_opens_the_key_at_once() {
    let (mut record, claim) = (Record::default(), claim());
    let token = granted(&mut record, SEC(0), &claim);
    record.expire(SEC(1));
    assert_eq!(renew(&mut record, SEC(1), &claim, token), Standing::Gone(Loss::Gone));
    assert!(granted(&mut record, SEC(1), &self::claim()) > token);
}

#[test]
fn nothing_overflows() {
    let (mut record, claim) = (Record::default(), claim());
    let attempt = Attempt::new(claim.clone(), Duration::MAX);
    assert!(matches!(record.try_acquire(SEC(1), &attempt), Reply::Granted(_)));
    let hold = Release::new(claim).with_hold_at_least(Duration::MAX);
    assert_eq!(release_with(&mut record, SEC(2), &hold), ReleaseOutcome::Released);
}

/// Takes leases away, and returns the acquisitions that had them.
fn force(record: &mut Record, now: Duration, only: Option<&AcquisitionId>) -> Vec<AcquisitionId> {
    let mut request = ForceRelease::new(key(), SystemTime::UNIX_EPOCH, "test");
    request.holder = only.cloned();
    let _ = record.step(&request, now);
    let victims = record.take_changes().into_iter().filter_map(|change| match change {
        Change::ForceReleased { id, .. } => Some(id),
        _ => None,
    });
    victims.collect()
}

#[test]
fn the_changes_are_those_of_the_last_step() {
    let (mut record, first, second) = (Record::default(), claim(), claim());
    record.step(&Attempt::new(first.clone(), TTL), SEC(0));
    assert_eq!(record.take_changes().len(), 1);
    assert_eq!(record.take_changes(), []);
    record.step(&Attempt::new(second.clone(), TTL), SEC(10));
    let _ = record.step(&Release::new(second.clone()), SEC(11));
    assert_eq!(record.take_changes(), [Change::Released { id: second.id().clone() }, Change::Freed]);
}

#[cfg(feature = "serde")]
#[test]
fn a_record_that_was_saved_answers_as_before() {
    let (mut record, [holder, waiter, past]) = (Record::above(7), [(); 3].map(|()| claim()));
    let holder_of = |owner: &str| Holder::new().with_owner(owner).with_metadata("a", "b");
    record.step(&Attempt::new(past.clone(), TTL), SEC(0));
    let _ = record.step(&Release::new(past.clone()), SEC(0));
    record.step(&Attempt::new(past.clone(), TTL), SEC(1));
    record.step(&ForceRelease::new(key(), SystemTime::now(), "test"), SEC(1));
    let block = NonZeroU32::new(3).unwrap();
    record.step(&Attempt::new(holder.clone(), TTL).with_tokens(block).with_holder(holder_of("x")), SEC(1));
    let ticket = Ticket::new(TTL, TTL, 8);
    let shared = waiter.clone().with_mode(Mode::Shared);
    record.step(&Attempt::new(shared, TTL).with_ticket(ticket).with_holder(Holder::new()), SEC(2));
    let mut saved: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    record.take_changes();
    assert_eq!(saved, record);
    assert_eq!(saved.step(&Release::new(holder.clone()), SEC(3)), record.step(&Release::new(holder), SEC(3)));
    assert_eq!(saved.take_changes(), record.take_changes());
    assert_eq!(saved, record);
}

#[cfg(feature = "serde")]
#[test]
fn c5_a_record_whose_tokens_could_run_out_is_not_read() {
    let (mut record, block) = (Record::above(7), NonZeroU32::MAX);
    record.step(&Attempt::new(claim(), TTL).with_tokens(block), SEC(1));
    let text = serde_json::to_string(&record).unwrap();
    let read = |field: &str, from: u64, to: u64| {
        let [from, to] = [from, to].map(|token| format!("\"{field}\":{token}"));
        serde_json::from_str::<Record>(&text.replacen(&from, &to, 1))
    };
    for (field, token) in [("token", record.token()), ("first_token", 8)] {
        for foreign in [1 << 63, u64::MAX] {
            let error = read(field, token, foreign).expect_err("a foreign token");
            assert!(error.to_string().contains(&format!("{foreign} is the token of a foreign hand")), "{error}");
        }
    }
    // From the greatest one on there are tokens for each step that comes.
    let mut last = read("token", record.token(), i64::MAX.cast_unsigned()).unwrap();
    let Reply::Granted(grant) = last.step(&Attempt::new(claim(), TTL).with_tokens(block), SEC(60)) else {
        panic!("the key is free")
    };
    assert_eq!(grant.token.get(), 1 << 63);
    assert_eq!(last.token(), (1 << 63) - 1 + u64::from(u32::MAX));
}
