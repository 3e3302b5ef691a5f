//! The wait as tables: a history of answers and updates, and what the caller does after each.

use distlock_api::{FencingToken, LeaseOptions, Loss};

use super::*;
use crate::state::claim::PushedGrant;
use crate::store::StoreTime;
use crate::test_kit::ms;

fn ticket() -> Ticket {
    Ticket::new(ms(15_000), ms(2000), 64)
}

/// A paused clock, and a wait that began now.
struct World {
    start: Instant,
    wait: Wait,
    stream_open: bool,
    ticket: Option<Ticket>,
    can_resolve: bool,
    cut_off: bool,
}

impl World {
    fn new(limit: impl FnOnce(Instant) -> Limit) -> Self {
        Self::with(limit, |_| ())
    }

    fn with(limit: impl FnOnce(Instant) -> Limit, change: impl FnOnce(&mut Settings)) -> Self {
        let start = Instant::now();
        let mut settings = Settings {
            limit: limit(start),
            terms: LeaseOptions::new().ttl(ms(30_000)).safety_margin(ms(1000)).terms().unwrap(),
            poll: Poll { first: ms(10), longest: ms(250) },
            refuses_when_full: false,
            needs_answer: false,
        };
        change(&mut settings);
        let wait = Wait::new(settings, None, &start.into());
        Self { start, wait, stream_open: true, ticket: Some(ticket()), can_resolve: false, cut_off: false }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + ms(millis)
    }

    fn answer(&mut self, at: u64, answer: Result<Reply>) -> String {
        let Self { stream_open, ticket, can_resolve, cut_off, .. } = *self;
        let (now, circumstances) = (self.at(at), Circumstances { ticket, stream_open, can_resolve, cut_off });
        let next = self.wait.on_answer(&now.into(), answer.map(|reply| (now, reply)), circumstances, 0.0);
        self.show(next)
    }

    fn updates(&mut self, at: u64, updates: Updates) -> String {
        let next = self.wait.on_updates(&self.at(at).into(), updates, self.stream_open, 0.0);
        self.show(next)
    }

    fn timer(&mut self, at: u64) -> String {
        let next = self.wait.on_timer(&self.at(at).into());
        self.show(next)
    }

    /// Instants as milliseconds since the start.
    fn show(&self, next: Next) -> String {
        let since = |instant: Instant| instant.saturating_duration_since(self.start).as_millis();
        match next {
            Next::Attempt => "attempt".into(),
            Next::AttemptUnderNewClaim => "attempt under a new claim".into(),
            Next::Sleep(until) => format!("sleep until {}", since(until)),
            Next::Start(Start { sent, deadline, answered, .. }) => {
                let how = if answered { "answered" } else { "pushed" };
                format!("start, {how}, sent {}, deadline {}", since(sent), since(deadline))
            }
            Next::Return(Ok(busy)) => format!("busy, ahead {:?}", busy.ahead),
            Next::Return(Err(error)) => format!("{:?}, {:?}", error.kind(), error.disposition()),
        }
    }
}

fn granted(remaining: u64) -> Result<Reply> {
    Ok(Reply::Granted(Grant::new(FencingToken::new(8), ms(remaining))))
}

/// A reply to a queued waiter, behind a lease with token 7 that ends after `remaining`. The store's
/// clock is at 5,000.
fn reply(ahead: u32, remaining: u64) -> BusyReply {
    let mut reply = BusyReply::new().with_anchor(StoreTime::since_origin(ms(5000)), FencingToken::new(7));
    reply.standing = QueueStanding::Queued { ahead };
    reply.holder_remaining = Some(ms(remaining));
    reply
}

fn busy(ahead: u32, remaining: u64) -> Result<Reply> {
    Ok(Reply::Busy(reply(ahead, remaining)))
}

fn pushed(token: u64, expires_at: u64) -> Updates {
    let pushed = PushedGrant {
        grant: Grant::new(FencingToken::new(token), ms(0)),
        expires_at: StoreTime::since_origin(ms(expires_at)),
    };
    Updates { pushed: Some(pushed), ..Updates::default() }
}

fn refreshed(world: &World, at: u64, standing: Standing) -> Updates {
    Updates { refreshed: Some(RefreshAnswer { sent: world.at(at), standing }), ..Updates::default() }
}

fn unknown() -> LockError {
    LockError::timeout(Phase::Request, "no answer").outcome_unknown()
}

fn never(_: Instant) -> Limit {
    Limit::Never
}

fn within(millis: u64) -> impl FnOnce(Instant) -> Limit {
    move |start| Limit::Until(start + ms(millis))
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_counts_from_the_sending() {
    let mut world = World::new(never);
    assert_eq!(world.answer(5, granted(30_000)), "start, answered, sent 5, deadline 29005");
    assert_eq!(world.answer(5, granted(90_000)), "start, answered, sent 5, deadline 29005", "no more than the ttl");
}

#[tokio::test(start_paused = true)]
async fn a_queued_caller_sleeps_until_its_turn_if_it_gets_events_and_polls_otherwise() {
    for (stream_open, ticket, expected) in [
        (true, Some(ticket()), "sleep until 20001"),
        (false, Some(ticket()), "sleep until 10"),
        // The store reports the position. Without a ticket it is only not refreshed.
        (true, None, "sleep until 20001"),
    ] {
        let mut world = World::new(never);
        (world.stream_open, world.ticket) = (stream_open, ticket);
        assert_eq!(world.answer(0, busy(0, 20_000)), expected, "stream {stream_open}, {ticket:?}");
    }
    let mut polling = World::new(never);
    let mut not_queued = reply(0, 20_000);
    not_queued.standing = QueueStanding::NotQueued;
    for expected in [10, 20, 40, 80, 160, 250, 250] {
        assert_eq!(polling.answer(0, Ok(Reply::Busy(not_queued.clone()))), format!("sleep until {expected}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_ends_the_wait_with_what_is_known() {
    let mut once = World::new(|_| Limit::Once { batched: false });
    assert_eq!(once.answer(0, busy(3, 20_000)), "busy, ahead Some(3)");
    let mut world = World::new(within(100));
    assert_eq!(world.answer(0, busy(3, 20_000)), "sleep until 100", "no longer than the caller waits");
    assert_eq!(world.timer(99), "attempt");
    assert_eq!(world.answer(99, Err(unknown())), "sleep until 100");
    assert_eq!(world.timer(100), "Timeout, OutcomeUnknown");
    let mut world = World::new(within(100));
    world.answer(0, busy(3, 20_000));
    assert_eq!(world.answer(100, Err(unknown())), "busy, ahead Some(3)", "cut off by the limit");
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_permanent_ones_returned_and_overload_means_busy_to_a_waiter() {
    let mut world = World::new(never);
    assert_eq!(world.answer(0, Err(LockError::invalid_options("no"))), "InvalidOptions, Permanent");
    let corrupt = LockError::new(ErrorKind::Corrupt, "odd").outcome_unknown();
    assert_eq!(world.answer(0, Err(corrupt)), "Corrupt, OutcomeUnknown");
    let overloaded = || LockError::overloaded(7, "too much");
    assert_eq!(world.answer(0, Err(overloaded())), "Overloaded, Retryable");
    let unavailable = || LockError::new(ErrorKind::Unavailable, "away");
    for expected in [20, 40, 80] {
        assert!(world.wait.admission() == (expected == 20));
        assert_eq!(world.answer(0, Err(unavailable())), format!("sleep until {expected}"));
        assert_eq!(world.timer(expected), "attempt");
    }
    assert_eq!(world.answer(0, busy(1, 20_000)), "sleep until 20001");
    assert_eq!(world.answer(0, Err(overloaded())), "busy, ahead Some(1)");
}

#[tokio::test(start_paused = true)]
async fn c10_an_unknown_outcome_is_resolved_at_once_and_once() {
    let mut world = World::new(never);
    world.can_resolve = true;
    assert_eq!(world.answer(0, Err(unknown())), "attempt");
    assert_eq!(world.answer(0, Err(unknown())), "sleep until 40");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_store_outlasts_a_time_out() {
    let mut world = World::new(within(1000));
    world.answer(0, Err(LockError::new(ErrorKind::Unavailable, "away")));
    world.cut_off = true;
    assert_eq!(world.answer(1000, Err(unknown())), "Unavailable, OutcomeUnknown");
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_busy_replaces_an_earlier_error() {
    let mut world = World::new(within(60_000));
    world.answer(0, Err(LockError::new(ErrorKind::Unavailable, "away")));
    world.answer(20, busy(1, 20_000));
    world.cut_off = true;
    world.answer(30_000, Err(unknown()));
    assert_eq!(world.timer(60_000), "Timeout, OutcomeUnknown", "not that the store was away a minute ago");
}

#[tokio::test(start_paused = true)]
async fn c16_refreshes_do_not_postpone_a_poll() {
    let mut world = World::with(never, |settings| settings.poll = Poll { first: ms(100), longest: ms(30_000) });
    world.stream_open = false;
    let mut at = 0;
    // Until the pause is longer than the time between two refreshes.
    for _ in 0..8 {
        world.answer(at, busy(0, 60_000));
        at += 10;
    }
    assert_eq!(world.answer(at, busy(0, 60_000)), "sleep until 25680");
    for refresh in [5_000, 10_000, 15_000, 20_000, 25_000] {
        let waiting = refreshed(&world, refresh, Standing::Waiting(reply(0, 60_000)));
        assert_eq!(world.updates(refresh, waiting), "sleep until 25680");
    }
    let mut queued = World::new(never);
    queued.answer(0, busy(0, 9_000));
    let waiting = refreshed(&queued, 5_000, Standing::Waiting(reply(0, 9_000)));
    assert_eq!(queued.updates(5_000, waiting), "sleep until 14001", "its turn by itself has moved");
}

#[tokio::test(start_paused = true)]
async fn r10_a_late_grant_is_an_error_and_a_late_push_leads_to_an_attempt() {
    let mut world = World::new(never);
    let next = world.wait.on_late(&world.at(0).into(), true, 0.0);
    assert_eq!(world.show(next), "sleep until 40");
    let next = world.wait.on_late(&world.at(0).into(), false, 0.0);
    assert_eq!(world.show(next), "attempt");
    let mut once = World::new(|_| Limit::Once { batched: false });
    let next = once.wait.on_late(&once.at(0).into(), true, 0.0);
    assert_eq!(once.show(next), "Timeout, Retryable");
}

#[tokio::test(start_paused = true)]
async fn r18_r19_a_pushed_grant_starts_on_its_claim_if_an_older_answer_dates_it() {
    // The answer of instant 0 read the store's clock at 5,000.
    for (history, expected) in [
        (pushed(8, 7100), "start, pushed, sent 100, deadline 1100"),
        // No longer than the claim, whatever the store reports.
        (pushed(8, 90_000), "start, pushed, sent 100, deadline 1100"),
        // An older grant of the same id.
        (pushed(7, 7100), "attempt"),
        // Less than half of the claim is left.
        (pushed(8, 6500), "attempt"),
        (Updates { missed: true, ..pushed(8, 7100) }, "attempt"),
        (Updates { lost: true, ..pushed(8, 7100) }, "attempt under a new claim"),
    ] {
        let mut world = World::new(never);
        world.answer(0, busy(0, 20_000));
        assert_eq!(world.updates(100, history), expected);
    }
    let mut unanswered = World::new(never);
    assert_eq!(unanswered.updates(100, pushed(8, 7100)), "attempt", "nothing to compare it with");
    let mut brings = World::with(never, |settings| settings.needs_answer = true);
    brings.answer(0, busy(0, 20_000));
    assert_eq!(brings.updates(100, pushed(8, 7100)), "attempt", "an answer brings more than the lease");
}

#[tokio::test(start_paused = true)]
async fn a_refreshed_ticket_moves_the_turn_and_the_anchor() {
    let mut world = World::new(never);
    world.answer(0, busy(4, 20_000));
    let waiting = refreshed(&world, 5000, Standing::Waiting(reply(2, 9000)));
    assert_eq!(world.updates(5000, waiting), "sleep until 14001");
    // The refresh dates the push now: the store's clock stood at 5,000 then.
    assert_eq!(world.updates(6000, pushed(8, 7100)), "attempt", "too little of the claim is left");
    let mut world = World::new(never);
    world.answer(0, busy(4, 20_000));
    let waiting = refreshed(&world, 5000, Standing::Waiting(reply(2, 9000)));
    world.updates(5000, waiting);
    assert_eq!(world.updates(5100, pushed(8, 7100)), "start, pushed, sent 5100, deadline 6100");
}

#[tokio::test(start_paused = true)]
async fn a_position_lost_without_a_grant_ends_the_trust_in_the_stream() {
    for standing in [Standing::Gone(Loss::Gone), Standing::Held { remaining: ms(2000) }] {
        let mut world = World::new(never);
        world.answer(0, busy(0, 20_000));
        let gone = refreshed(&world, 5000, standing);
        assert_eq!(world.updates(5000, gone), "attempt");
        assert_eq!(world.answer(5000, busy(0, 20_000)), "sleep until 5020", "polls from now on");
    }
    let mut world = World::new(never);
    world.answer(0, busy(1, 20_000));
    assert_eq!(world.answer(10, busy(3, 20_000)), "sleep until 30", "further back is another position");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_refused_or_polled() {
    let full = || {
        let mut reply = BusyReply::new();
        reply.standing = QueueStanding::Full;
        Ok(Reply::Busy(reply))
    };
    let mut polling = World::new(never);
    let pauses: Vec<_> = (0..12).map(|_| polling.answer(0, full())).collect();
    assert_eq!((&*pauses[0], &*pauses[11]), ("sleep until 10", "sleep until 2000"));
    let mut refusing = World::with(never, |settings| settings.refuses_when_full = true);
    assert_eq!(refusing.answer(0, full()), "QueueFull, Retryable");
}
