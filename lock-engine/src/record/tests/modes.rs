//! Several holders: shared locks, permits, and the one queue of all modes.

use super::*;

const WINDOW: Duration = Duration::from_millis(200);
const CLAIM_TTL: Duration = Duration::from_secs(1);
const TICKET: Ticket = Ticket::new(Duration::from_secs(60), CLAIM_TTL, 100);
const EXCLUSIVE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

fn claim_in(mode: Mode) -> Claim {
    claim().with_mode(mode)
}

fn attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), TTL).with_ticket(TICKET).with_turn_window(WINDOW)
}

/// Makes an attempt that is granted. Returns the token.
fn takes(record: &mut Record, now: Duration, claim: &Claim) -> u64 {
    match record.try_acquire(now, &attempt(claim)) {
        Reply::Granted(grant) => grant.token.get(),
        busy => panic!("expected a grant, got {busy:?}"),
    }
}

/// Makes an attempt that queues.
fn waits(record: &mut Record, now: Duration, claim: &Claim) -> BusyReply {
    match record.try_acquire(now, &attempt(claim)) {
        Reply::Busy(busy) => busy,
        granted => panic!("expected to wait, got {granted:?}"),
    }
}

fn gives_up(record: &mut Record, now: Duration, claim: &Claim) -> ReleaseEffect {
    effect_of(record, now, &Release::new(claim.clone()), true)
}

/// Returns the claims to which the release has granted a lease, and their tokens.
fn passes_to(record: &mut Record, now: Duration, claim: &Claim) -> Vec<(AcquisitionId, u64)> {
    granted_ids(&gives_up(record, now, claim))
}

fn granted_ids(effect: &ReleaseEffect) -> Vec<(AcquisitionId, u64)> {
    effect.granted.iter().map(|next| (next.id.clone(), next.grant.token.get())).collect()
}

fn ids<const N: usize>(granted: [(&Claim, u64); N]) -> Vec<(AcquisitionId, u64)> {
    granted.map(|(claim, token)| (claim.id().clone(), token)).to_vec()
}

fn ahead(reply: &BusyReply) -> u32 {
    match reply.standing {
        QueueStanding::Queued { ahead } => ahead,
        other => panic!("expected a position, got {other:?}"),
    }
}

#[test]
fn c26_readers_hold_together_and_a_writer_alone() {
    let (mut record, readers, writer) = (Record::default(), [SHARED; 3].map(claim_in), claim_in(EXCLUSIVE));
    let tokens = readers.each_ref().map(|reader| takes(&mut record, SEC(0), reader));
    assert_eq!(tokens, [1, 2, 3], "C5: each its own");
    for mode in [EXCLUSIVE, permits(1, 9)] {
        let Reply::Busy(busy) = record.clone().try_acquire(SEC(4), &attempt(&claim_in(mode))) else {
            panic!("readers hold it")
        };
        assert_eq!(busy.holder_remaining, Some(SEC(6)), "{mode}");
    }
    assert_eq!(ahead(&waits(&mut record, SEC(4), &writer)), 0);
    assert_eq!(passes_to(&mut record, SEC(4), &readers[1]), []);
    assert_eq!(passes_to(&mut record, SEC(4), &readers[0]), []);
    assert_eq!(passes_to(&mut record, SEC(4), &readers[2]), ids([(&writer, 4)]), "C28: with the last one");
    let Reply::Busy(_) = record.try_acquire(SEC(4), &attempt(&readers[0])) else { panic!("a writer holds it") };
}

#[test]
fn c27_permits_are_counted_by_each_requests_own_number() {
    let mut record = Record::default();
    let [two, one] = [permits(2, 4), permits(1, 4)].map(claim_in);
    takes(&mut record, SEC(0), &two);
    takes(&mut record, SEC(1), &one);
    let fits =
        |mode| matches!(record.clone().try_acquire(SEC(1), &Attempt::new(claim_in(mode), TTL)), Reply::Granted(_));
    assert!(fits(permits(1, 4)) && !fits(permits(2, 4)) && fits(permits(2, 5)) && !fits(permits(1, 3)));
    assert!(!fits(SHARED) && !fits(EXCLUSIVE));
    let busy = waits(&mut record, SEC(2), &claim_in(permits(2, 4)));
    assert_eq!(busy.holder_remaining, Some(SEC(8)), "when the first of the permits ends");
}

#[test]
fn c28_no_claim_overtakes_the_queue() {
    let mut record = Record::default();
    let [reader, late, last] = [SHARED; 3].map(claim_in);
    let [writer, other] = [EXCLUSIVE; 2].map(claim_in);
    takes(&mut record, SEC(0), &reader);
    assert_eq!(ahead(&waits(&mut record, SEC(1), &writer)), 0);
    let busy = waits(&mut record, SEC(1), &late);
    assert_eq!((ahead(&busy), busy.holder_remaining), (1, Some(WINDOW)), "it would fit, but the writer is ahead");
    let without_ticket = Attempt::new(claim_in(SHARED), TTL);
    assert!(matches!(record.try_acquire(SEC(1), &without_ticket), Reply::Busy(_)));
    assert_eq!(ahead(&waits(&mut record, SEC(1), &last)), 2);
    assert_eq!(ahead(&waits(&mut record, SEC(1), &other)), 3);
    assert_eq!(passes_to(&mut record, SEC(2), &reader), ids([(&writer, 2)]));
    assert_eq!(passes_to(&mut record, SEC(2), &writer), ids([(&late, 3), (&last, 4)]), "all that fit, in one step");
    assert_eq!(passes_to(&mut record, SEC(2), &late), []);
    assert_eq!(passes_to(&mut record, SEC(2), &last), ids([(&other, 5)]));
}

#[test]
fn c28_small_permits_do_not_overtake_large_ones() {
    let mut record = Record::default();
    let [first, second] = [permits(1, 3); 2].map(claim_in);
    let (large, small) = (claim_in(permits(3, 3)), claim_in(permits(1, 3)));
    takes(&mut record, SEC(0), &first);
    takes(&mut record, SEC(0), &second);
    waits(&mut record, SEC(0), &large);
    assert_eq!(ahead(&waits(&mut record, SEC(0), &small)), 1);
    assert_eq!(passes_to(&mut record, SEC(1), &first), []);
    assert_eq!(passes_to(&mut record, SEC(1), &second), ids([(&large, 3)]));
    assert_eq!(passes_to(&mut record, SEC(1), &large), ids([(&small, 4)]));
}

#[test]
fn c28_a_waiter_that_leaves_makes_room_for_those_behind_it() {
    let mut record = Record::default();
    let [reader, behind] = [SHARED; 2].map(claim_in);
    let writer = claim_in(EXCLUSIVE);
    takes(&mut record, SEC(0), &reader);
    waits(&mut record, SEC(0), &writer);
    waits(&mut record, SEC(0), &behind);
    let effect = gives_up(&mut record, SEC(1), &writer);
    assert!(!effect.ended && effect.outcome == ReleaseOutcome::AlreadyLost);
    assert_eq!(effect.granted.len(), 1, "in the step in which the writer leaves");
    assert_eq!((&effect.granted[0].id, effect.granted[0].mode), (behind.id(), SHARED));
    // Beside an exclusive holder nothing is granted, and neither of a free key.
    let mut record = Record::default();
    let [holder, leaves, waits_on] = [EXCLUSIVE; 3].map(claim_in);
    takes(&mut record, SEC(0), &holder);
    waits(&mut record, SEC(0), &leaves);
    waits(&mut record, SEC(0), &waits_on);
    let mut free = record.clone();
    assert_eq!(passes_to(&mut record, SEC(1), &leaves), []);
    assert_eq!(passes_to(&mut free, SEC(10), &leaves), []);
}

#[test]
fn c28_a_block_of_tokens_follows_the_one_before() {
    let mut record = Record::default();
    let writer = claim_in(EXCLUSIVE);
    takes(&mut record, SEC(0), &writer);
    let readers = [SHARED; 2].map(claim_in);
    let block = NonZeroU32::new(10).unwrap();
    for reader in &readers {
        assert!(matches!(record.try_acquire(SEC(0), &attempt(reader).with_tokens(block)), Reply::Busy(_)));
    }
    assert_eq!(passes_to(&mut record, SEC(1), &writer), ids([(&readers[0], 2), (&readers[1], 12)]));
    assert_eq!(record.token(), 21);
    let renewal = Renewal::lease(readers[0].clone(), FencingToken::new(11), TTL);
    assert_eq!(record.renew(SEC(1), &renewal), Standing::Held { remaining: TTL }, "R29: by its own last token");
}

#[test]
fn c29_each_holder_has_its_own_expiry() {
    let mut record = Record::default();
    let [dead, alive] = [SHARED; 2].map(claim_in);
    let (writer, behind) = (claim_in(EXCLUSIVE), claim_in(SHARED));
    takes(&mut record, SEC(0), &dead);
    let token = FencingToken::new(takes(&mut record, SEC(3), &alive));
    assert_eq!(record.describe(&key(), SEC(4)).unwrap().remaining, SEC(9), "until the last one ends");
    assert_eq!(renew(&mut record, SEC(9), &alive, token), Standing::Held { remaining: TTL });
    waits(&mut record, SEC(9), &writer);
    waits(&mut record, SEC(9), &behind);
    // The dead one has ended: it keeps no one out, and its late calls change nothing.
    assert_eq!(record.describe(&key(), SEC(11)).unwrap().holders.len(), 1);
    assert_eq!(renew(&mut record, SEC(11), &dead, FencingToken::new(1)), Standing::Gone(Loss::Gone));
    let effect = gives_up(&mut record, SEC(11), &alive);
    assert_eq!(granted_ids(&effect), ids([(&writer, 3)]), "granted beside the dead one's record");
    assert_eq!(effect.expired, [dead.id().clone()]);
    assert_eq!(gives_up(&mut record, SEC(11), &dead).outcome, ReleaseOutcome::AlreadyLost);
}

#[test]
fn c29_the_turns_count_from_the_end_of_the_last_holder() {
    let mut record = Record::default();
    let [first, second] = [SHARED; 2].map(claim_in);
    takes(&mut record, SEC(0), &first);
    takes(&mut record, SEC(5), &second);
    let [writer, other] = [EXCLUSIVE; 2].map(claim_in);
    waits(&mut record, SEC(6), &writer);
    let busy = waits(&mut record, SEC(6), &other);
    assert_eq!(busy.holder_remaining, Some(SEC(4) + WINDOW), "the second one may be gone by then");
    let before = |turn: Duration| turn - Duration::from_nanos(1);
    assert!(matches!(record.clone().try_acquire(before(SEC(15)), &attempt(&writer)), Reply::Busy(_)));
    assert!(matches!(record.clone().try_acquire(SEC(15), &attempt(&writer)), Reply::Granted(_)));
    assert!(matches!(record.clone().try_acquire(before(SEC(15) + WINDOW), &attempt(&other)), Reply::Busy(_)));
    assert!(matches!(record.try_acquire(SEC(15) + WINDOW, &attempt(&other)), Reply::Granted(_)));
}

#[test]
fn c10_a_repeated_attempt_beside_others_has_the_same_token() {
    let mut record = Record::default();
    let [first, second] = [SHARED; 2].map(claim_in);
    assert_eq!(takes(&mut record, SEC(0), &first), 1);
    assert_eq!(takes(&mut record, SEC(0), &second), 2);
    waits(&mut record, SEC(1), &claim_in(EXCLUSIVE));
    assert_eq!(takes(&mut record, SEC(2), &first), 1, "it holds already, although others wait");
    assert_eq!(gives_up(&mut record, SEC(2), &first).outcome, ReleaseOutcome::Released);
    let again = gives_up(&mut record, SEC(2), &first);
    assert_eq!((again.outcome, again.ended), (ReleaseOutcome::Released, false));
}

#[test]
fn c31_a_holder_that_requests_again_is_another_claim() {
    let mut record = Record::default();
    let (reader, upgrade) = (claim_in(SHARED), claim_in(EXCLUSIVE));
    takes(&mut record, SEC(0), &reader);
    waits(&mut record, SEC(0), &upgrade);
    assert_eq!(record.describe(&key(), SEC(1)).unwrap().mode(), SHARED);
    assert_eq!(passes_to(&mut record, SEC(1), &reader), ids([(&upgrade, 2)]));
}

#[test]
fn c22_force_takes_all_holders_or_only_one() {
    let mut record = Record::default();
    let readers = [SHARED; 3].map(claim_in);
    for reader in &readers {
        takes(&mut record, SEC(0), reader);
    }
    waits(&mut record, SEC(0), &claim_in(EXCLUSIVE));
    let stranger = claim();
    assert!(force(&mut record, SEC(1), Some(stranger.id())).is_empty());
    assert_eq!((record.token(), record.history().count()), (3, 0));
    let [first, second, third] = readers.each_ref().map(|reader| reader.id().clone());
    let only = Some(&second);
    assert_eq!(force(&mut record, SEC(1), only), std::slice::from_ref(&second));
    assert_eq!(record.token(), 4);
    assert_eq!(renew(&mut record, SEC(1), &readers[1], FencingToken::new(2)), Standing::Gone(Loss::ForceReleased));
    assert_eq!(renew(&mut record, SEC(1), &readers[0], FencingToken::new(1)), Standing::Held { remaining: TTL });
    assert_eq!(force(&mut record, SEC(2), None), [first.clone(), third.clone()]);
    assert_eq!(record.token(), 5);
    let victims: Vec<_> = record.history().map(|entry| entry.id.unwrap()).collect();
    assert_eq!(victims, [second, first, third]);
    assert_eq!((record.describe(&key(), SEC(2)), record.waiting(SEC(2)).count()), (None, 1), "nothing is granted");
}

#[test]
fn c25_a_minimum_hold_of_a_reader_stays_beside_the_others() {
    let mut record = Record::default();
    let [reader, other] = [SHARED; 2].map(claim_in);
    let writer = claim_in(EXCLUSIVE);
    takes(&mut record, SEC(5), &reader);
    takes(&mut record, SEC(5), &other);
    waits(&mut record, SEC(5), &writer);
    let hold = Release::new(reader.clone()).with_hold_at_least(SEC(20));
    assert_eq!(release_with(&mut record, SEC(6), &hold), ReleaseOutcome::Released);
    assert_eq!(release_with(&mut record, SEC(6), &hold), ReleaseOutcome::Released, "C10");
    assert_eq!(renew(&mut record, SEC(6), &reader, FencingToken::new(1)), Standing::Gone(Loss::Gone));
    let info = record.describe(&key(), SEC(6)).unwrap();
    assert_eq!((info.holders.len(), info.remaining), (2, SEC(19)));
    assert_eq!(passes_to(&mut record, SEC(7), &other), []);
    assert!(matches!(record.try_acquire(SEC(24), &attempt(&writer)), Reply::Busy(_)));
    assert!(matches!(record.try_acquire(SEC(25), &attempt(&writer)), Reply::Granted(_)));
    let is_expiry = |change: &Change| matches!(change, Change::Expired { .. });
    assert!(!record.take_changes().iter().any(is_expiry), "it was released");
}

#[test]
fn c10_force_ends_a_minimum_hold_and_the_release_before_stays_known() {
    let (mut record, reader) = (Record::default(), claim_in(SHARED));
    takes(&mut record, SEC(0), &reader);
    let hold = Release::new(reader.clone()).with_hold_at_least(SEC(20));
    assert_eq!(release_with(&mut record, SEC(1), &hold), ReleaseOutcome::Released);
    force(&mut record, SEC(2), None);
    assert_eq!(record.describe(&key(), SEC(2)), None);
    assert_eq!(release_with(&mut record, SEC(3), &hold), ReleaseOutcome::Released);
}

#[test]
fn a_key_has_a_largest_number_of_holders() {
    let mut record = Record::default();
    let mut readers: Vec<_> = (0..Mode::MAX_HOLDERS).map(|_| claim_in(SHARED)).collect();
    for reader in &readers {
        takes(&mut record, SEC(0), reader);
    }
    let one_more = claim_in(SHARED);
    assert_eq!(waits(&mut record, SEC(1), &one_more).holder_remaining, Some(SEC(9)));
    assert_eq!(passes_to(&mut record, SEC(1), &readers.swap_remove(7)).len(), 1);
}

#[test]
fn a_refresh_shows_when_there_may_be_room() {
    let mut record = Record::default();
    let reader = claim_in(SHARED);
    takes(&mut record, SEC(0), &reader);
    let (writer, behind) = (claim_in(EXCLUSIVE), claim_in(SHARED));
    waits(&mut record, SEC(0), &writer);
    waits(&mut record, SEC(0), &behind);
    let mut remaining = |claim: &Claim| match record.renew(SEC(1), &Renewal::ticket(claim.clone(), TICKET)) {
        Standing::Waiting(busy) => busy.holder_remaining,
        other => panic!("it waits: {other:?}"),
    };
    assert_eq!(remaining(&writer), Some(SEC(9)));
    assert_eq!(remaining(&behind), Some(WINDOW));
}

#[test]
fn without_the_queue_a_release_grants_nothing_and_each_claim_has_its_turn() {
    let mut record = Record::default();
    let [first, second] = [SHARED; 2].map(claim_in);
    takes(&mut record, SEC(0), &first);
    waits(&mut record, SEC(0), &claim_in(EXCLUSIVE));
    let without_queue = Attempt::new(second, TTL).with_turn_window(Duration::ZERO);
    assert!(matches!(record.try_acquire(SEC(0), &without_queue), Reply::Granted(_)));
    let effect = effect_of(&mut record, SEC(0), &Release::new(first), false);
    assert!(effect.ended && effect.granted.is_empty());
}
