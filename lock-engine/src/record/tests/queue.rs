//! The queue, and releases that grant to its first waiter.

use super::*;

const WINDOW: Duration = Duration::from_millis(200);
const CLAIM_TTL: Duration = Duration::from_secs(1);
/// Expires after 15 s without a refresh; there is room for three.
const TICKET: Ticket = Ticket::new(Duration::from_secs(15), CLAIM_TTL, 3);

/// Opens the key.
type Opens = fn(&mut Record, &Claim);

/// Returns an attempt that waits.
fn waiting_attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), TTL).with_ticket(TICKET).with_turn_window(WINDOW)
}

fn busy(reply: Reply) -> BusyReply {
    match reply {
        Reply::Busy(busy) => busy,
        granted => panic!("expected to wait, got {granted:?}"),
    }
}

fn queue_up(record: &mut Record, now: Duration, claim: &Claim) -> QueueStanding {
    busy(record.try_acquire(now, &waiting_attempt(claim))).standing
}

const fn ahead(ahead: u32) -> QueueStanding {
    QueueStanding::Queued { ahead }
}

fn refresh(record: &mut Record, now: Duration, claim: &Claim) -> Standing {
    record.renew(now, &Renewal::ticket(claim.clone(), TICKET))
}

fn give_up(record: &mut Record, now: Duration, claim: &Claim) -> ReleaseEffect {
    effect_of(record, now, &Release::new(claim.clone()), true)
}

/// The effect of a release that grants to no waiter.
fn freed() -> ReleaseEffect {
    ReleaseEffect { ended: true, ..ReleaseEffect::new(ReleaseOutcome::Released) }
}

/// The effect of the release of a claim without a lease.
fn nothing(outcome: ReleaseOutcome) -> ReleaseEffect {
    ReleaseEffect::new(outcome)
}

fn next_holder(mut effect: ReleaseEffect) -> NextHolder {
    assert!(effect.ended && effect.granted.len() == 1, "expected a hand-over, got {effect:?}");
    effect.granted.remove(0)
}

fn waiting(record: &Record, now: Duration) -> Vec<&AcquisitionId> {
    record.waiting(now).collect()
}

/// A record that one claim holds since the beginning, while others wait.
fn held<const N: usize>() -> (Record, Claim, [Claim; N]) {
    let (mut record, holder, waiters) = (Record::default(), claim(), std::array::from_fn(|_| claim()));
    let _ = granted(&mut record, SEC(0), &holder);
    for (position, waiter) in (0..).zip(&waiters) {
        assert_eq!(queue_up(&mut record, SEC(0), waiter), ahead(position));
    }
    (record, holder, waiters)
}

#[test]
fn c15_a_release_grants_to_the_first_waiter_what_its_ticket_requests() {
    let (mut record, holder, []) = held();
    let (first, second) = (claim(), claim());
    let block = NonZeroU32::new(4).unwrap();
    let about = Holder::new().with_owner("first");
    let attempt = waiting_attempt(&first).with_tokens(block).with_holder(about.clone());
    assert_eq!(busy(record.try_acquire(SEC(1), &attempt)).standing, ahead(0));
    assert_eq!(queue_up(&mut record, SEC(1), &second), ahead(1));

    let grant = Grant::new(FencingToken::new(2), CLAIM_TTL).with_tokens(block);
    let expected = NextHolder {
        id: first.id().clone(),
        mode: Mode::Exclusive,
        holder: about,
        grant: grant.clone(),
        expires_at: SEC(3),
    };
    assert_eq!(next_holder(give_up(&mut record, SEC(2), &holder)), expected);
    assert_eq!(record.token(), 5, "the whole block");
    let info = record.describe(&key(), SEC(2)).unwrap();
    assert_eq!((info.owner.as_deref(), info.remaining), (Some("first"), CLAIM_TTL));
    assert_eq!(waiting(&record, SEC(2)), [second.id()]);
    // It has the lease like any other holder.
    assert_eq!(refresh(&mut record, SEC(2), &first), Standing::Held { remaining: CLAIM_TTL });
    assert_eq!(renew(&mut record, SEC(2), &first, FencingToken::new(5)), Standing::Held { remaining: TTL });
    assert_eq!(
        record.try_acquire(SEC(2), &attempt),
        Reply::Granted(Grant::new(grant.token, TTL).with_tokens(block)),
        "C10: the same grant"
    );
    assert_eq!(give_up(&mut record, SEC(2), &holder), nothing(ReleaseOutcome::Released), "C10: answered once more");
    assert_eq!(next_holder(give_up(&mut record, SEC(3), &first)).id, *second.id());
    assert_eq!(give_up(&mut record, SEC(3), &second), freed());
    assert_eq!(record.describe(&key(), SEC(3)), None);
}

#[test]
fn c15_no_claim_overtakes_when_a_lease_expires() {
    let (mut record, _, [first, second]) = held();
    let newcomer = claim();
    let cases = [(&newcomer, SEC(10) + 2 * WINDOW), (&second, SEC(10) + WINDOW), (&first, SEC(10))];
    for (waiter, turn) in cases {
        let without_ticket = Attempt::new(waiter.clone(), TTL).with_turn_window(WINDOW);
        let just_before = turn - Duration::from_nanos(1);
        let at = |now| record.clone().try_acquire(now, &without_ticket);
        let reply = busy(at(just_before));
        assert_eq!(reply.holder_remaining, Some(Duration::from_nanos(1)));
        assert_eq!((reply.now, reply.token), (Some(StoreTime::since_origin(just_before)), Some(FencingToken::new(1))));
        assert_eq!(busy(at(SEC(3))).holder_remaining, Some(turn - SEC(3)), "while the lease is held, too");
        assert!(matches!(at(turn), Reply::Granted(_)));
    }
    let _ = granted(&mut record, SEC(10), &first);
    assert_eq!(waiting(&record, SEC(10)), [second.id()], "a granted claim no longer waits");
}

#[test]
fn c15_the_windows_count_from_when_the_lease_became_free() {
    let patient = [claim(), claim()];
    let without_hand_over = |record: &mut Record, holder: &Claim| {
        assert_eq!(effect_of(record, SEC(4), &Release::new(holder.clone()), false), freed());
    };
    let with_a_minimum_hold = |record: &mut Record, holder: &Claim| {
        let hold = Release::new(holder.clone()).with_hold_at_least(SEC(7));
        assert_eq!(effect_of(record, SEC(4), &hold, true), freed(), "R13: nothing is granted");
    };
    let by_force = |record: &mut Record, _: &Claim| drop(force(record, SEC(4), None));
    let opened: [(_, Opens, _); 4] = [
        ("a release that hands nothing over", without_hand_over, SEC(4)),
        ("the end of a minimum hold", with_a_minimum_hold, SEC(7)),
        ("force", by_force, SEC(4)),
        ("expiry", |_, _| {}, SEC(10)),
    ];
    for (how, open, since) in opened {
        let (mut record, holder, []) = held();
        let places = patient.each_ref().map(|claim| queue_up(&mut record, SEC(1), claim));
        assert_eq!(places, [ahead(0), ahead(1)]);
        open(&mut record, &holder);
        for (position, waiter) in (0..).zip(&patient) {
            let turn = since + position * WINDOW;
            let mut early = record.clone();
            let reply = busy(early.try_acquire(turn - Duration::from_nanos(1), &waiting_attempt(waiter)));
            assert_eq!(reply.standing, ahead(position), "{how}");
            assert!(matches!(record.clone().try_acquire(turn, &waiting_attempt(waiter)), Reply::Granted(_)), "{how}");
        }
    }
}

#[test]
fn c15_a_dead_first_waiter_costs_one_window_and_then_its_position() {
    let (mut record, holder, [dead, second, third]) = held();
    // Until its ticket has expired it is granted the lease, and the others wait for the end of its
    // short claim.
    let mut early = record.clone();
    assert_eq!(next_holder(give_up(&mut early, SEC(1), &holder)).id, *dead.id());
    let reply = busy(early.try_acquire(SEC(1), &waiting_attempt(&second)));
    assert_eq!((reply.standing, reply.holder_remaining), (ahead(0), Some(CLAIM_TTL)));
    // Or the lease expires, and the second takes it one window later.
    let turn = SEC(10) + WINDOW;
    assert!(matches!(record.clone().try_acquire(turn, &waiting_attempt(&second)), Reply::Granted(_)));

    for alive in [&second, &third] {
        assert!(matches!(refresh(&mut record, SEC(9), alive), Standing::Waiting(_)));
    }
    let extended = Attempt::new(holder.clone(), SEC(60));
    assert!(matches!(record.try_acquire(SEC(9), &extended), Reply::Granted(_)));
    let last = SEC(15) - Duration::from_nanos(1);
    assert_eq!(waiting(&record, last), [dead.id(), second.id(), third.id()]);
    assert_eq!(waiting(&record, SEC(15)), [second.id(), third.id()]);
    assert_eq!(queue_up(&mut record.clone(), last, &third), ahead(2));
    assert_eq!(queue_up(&mut record.clone(), SEC(15), &third), ahead(1));
    let Standing::Waiting(reply) = refresh(&mut record.clone(), SEC(15), &third) else { panic!("it waits") };
    assert_eq!(reply.standing, ahead(1));
    assert_eq!(next_holder(give_up(&mut record.clone(), SEC(15), &holder)).id, *second.id());
    // A dead one that comes back stands at the end.
    assert_eq!(queue_up(&mut record, SEC(15), &dead), ahead(2));
}

#[test]
fn a_bounded_queue_refuses_one_more_and_makes_room_again() {
    let (mut record, _, waiters) = held::<3>();
    let newcomer = claim();
    assert_eq!(queue_up(&mut record, SEC(1), &newcomer), QueueStanding::Full);
    assert_eq!(refresh(&mut record, SEC(1), &newcomer), Standing::Gone(Loss::Gone));
    assert_eq!(queue_up(&mut record, SEC(1), &waiters[2]), ahead(2), "a queued claim stays queued");
    assert_eq!(give_up(&mut record, SEC(1), &waiters[1]), nothing(ReleaseOutcome::AlreadyLost));
    assert_eq!(queue_up(&mut record, SEC(1), &newcomer), ahead(2));
    assert_eq!(waiting(&record, SEC(1)), [&waiters[0], &waiters[2], &newcomer].map(Claim::id));
    // Expired tickets take no room.
    assert_eq!(queue_up(&mut record, SEC(5), &newcomer), ahead(2));
    let _ = granted(&mut record, SEC(16), &newcomer);
    assert_eq!(queue_up(&mut record, SEC(16), &claim()), ahead(0));
}

#[test]
fn an_attempt_refreshes_its_ticket_where_it_is() {
    let (mut record, holder, [first, second]) = held();
    assert_eq!(queue_up(&mut record, SEC(9), &first), ahead(0));
    let block = NonZeroU32::new(9).unwrap();
    assert_eq!(busy(record.try_acquire(SEC(9), &waiting_attempt(&second).with_tokens(block))).standing, ahead(1));
    // Without a ticket nothing changes, for a claim that waits and for one that does not.
    assert_eq!(busy(acquire(&mut record, SEC(9), &first)).standing, ahead(0));
    assert_eq!(busy(acquire(&mut record, SEC(9), &claim())).standing, QueueStanding::NotQueued);
    assert!(matches!(
        record.renew(SEC(9), &Renewal::lease(holder.clone(), FencingToken::new(1), SEC(60))),
        Standing::Held { .. }
    ));
    assert_eq!(waiting(&record, SEC(23)), [first.id(), second.id()]);
    assert_eq!(give_up(&mut record, SEC(23), &first), nothing(ReleaseOutcome::AlreadyLost));
    assert_eq!(
        next_holder(give_up(&mut record, SEC(23), &holder)).grant.tokens,
        block,
        "as its last attempt requested"
    );
}

#[test]
fn r15_a_refresh_never_adds_a_ticket_and_never_grants() {
    let (mut record, holder, [first, second]) = held();
    let Standing::Waiting(reply) = refresh(&mut record, SEC(2), &second) else { panic!("it waits") };
    assert_eq!((reply.standing, reply.holder_remaining), (ahead(1), Some(SEC(8) + WINDOW)));
    assert_eq!((reply.now, reply.token), (Some(StoreTime::since_origin(SEC(2))), Some(FencingToken::new(1))));
    assert_eq!(refresh(&mut record, SEC(2), &holder), Standing::Held { remaining: SEC(8) });
    let stranger = claim();
    assert_eq!(refresh(&mut record, SEC(2), &stranger), Standing::Gone(Loss::Gone));
    assert_eq!(waiting(&record, SEC(2)), [first.id(), second.id()]);
    // It may take the lease, by an attempt.
    let Standing::Waiting(reply) = refresh(&mut record, SEC(12), &first) else { panic!("it waits") };
    assert_eq!((reply.standing, reply.holder_remaining), (ahead(0), Some(Duration::ZERO)));
    assert_eq!(record.describe(&key(), SEC(12)), None);
    // Not even one that has only just expired.
    assert_eq!(refresh(&mut record, SEC(17), &second), Standing::Gone(Loss::Gone));
    assert_eq!(waiting(&record, SEC(17)), [first.id()]);
    // Granted, and taken away before the waiter learned of it.
    let _ = granted(&mut record, SEC(17), &first);
    let _ = force(&mut record, SEC(17), None);
    assert_eq!(refresh(&mut record, SEC(17), &first), Standing::Gone(Loss::ForceReleased));
}

#[test]
fn c11_leaving_with_a_grant_in_transit_hands_it_over() {
    let (mut record, holder, [first, second]) = held();
    assert_eq!(next_holder(give_up(&mut record, SEC(1), &holder)).id, *first.id());
    // The first does not know of it yet, and gives up.
    let inherited = next_holder(give_up(&mut record, SEC(1), &first));
    assert_eq!((inherited.id, inherited.grant.token), (second.id().clone(), FencingToken::new(3)));
    // A grant that has expired by then is not handed over.
    assert_eq!(queue_up(&mut record, SEC(1), &holder), ahead(0));
    assert_eq!(give_up(&mut record, SEC(2), &second), nothing(ReleaseOutcome::AlreadyLost));
    assert_eq!(waiting(&record, SEC(2)), [holder.id()]);
}

#[test]
fn r12_no_claim_hands_a_lease_over_to_itself() {
    let (mut record, claim) = (Record::default(), claim());
    let _ = granted(&mut record, SEC(0), &claim);
    // A ticket of the holder, which no attempt leaves behind.
    let _ = record.queue.enqueue(SEC(0), &waiting_attempt(&claim));
    assert_eq!(give_up(&mut record, SEC(0), &claim), freed());
    assert!(waiting(&record, SEC(0)).is_empty());
}

#[test]
fn c25_a_minimum_hold_that_is_over_keeps_no_claim_out() {
    let (mut record, holder, [first, second]) = held();
    let hold = Release::new(holder).with_hold_at_least(SEC(3));
    assert_eq!(next_holder(effect_of(&mut record, SEC(3), &hold, true)).id, *first.id());
    // One that is not over closes the key to all, and the waiters continue by polling.
    let hold = Release::new(first).with_hold_at_least(SEC(3));
    assert_eq!(effect_of(&mut record, SEC(4) - WINDOW, &hold, true), freed());
    let reply = busy(record.try_acquire(SEC(5), &waiting_attempt(&second)));
    assert_eq!((reply.standing, reply.holder_remaining), (ahead(0), Some(SEC(1))));
    assert!(matches!(record.try_acquire(SEC(6), &waiting_attempt(&second)), Reply::Granted(_)));
}

#[test]
fn a_process_without_the_queue_neither_queues_nor_hands_over() {
    let (mut record, _, [first]) = held();
    let old = Attempt::new(claim(), TTL).with_turn_window(Duration::ZERO);
    assert!(matches!(record.try_acquire(SEC(9), &old), Reply::Busy(_)));
    assert!(matches!(record.try_acquire(SEC(10), &old), Reply::Granted(_)));
    assert_eq!(queue_up(&mut record, SEC(10), &first), ahead(0));
    assert_eq!(effect_of(&mut record, SEC(11), &Release::new(old.claim.clone()), false), freed());
    assert!(matches!(record.try_acquire(SEC(11), &waiting_attempt(&first)), Reply::Granted(_)));
}

#[test]
fn nothing_in_the_queue_overflows() {
    let (mut record, holder, []) = held();
    let endless = Ticket::new(Duration::MAX, Duration::MAX, u32::MAX);
    let waiters = [claim(), claim(), claim()];
    for (position, waiter) in (0..).zip(&waiters) {
        let attempt = waiting_attempt(waiter).with_ticket(endless).with_turn_window(Duration::MAX);
        let reply = busy(record.try_acquire(SEC(1), &attempt));
        assert_eq!(reply.standing, ahead(position));
        assert!(matches!(record.renew(SEC(1), &Renewal::ticket(waiter.clone(), endless)), Standing::Waiting(_)));
    }
    assert_eq!(next_holder(give_up(&mut record, SEC(2), &holder)).expires_at, Duration::MAX);
}
