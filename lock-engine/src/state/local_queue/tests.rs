use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

async fn take<C: CarriedLease<Requirements = ()>>(turns: &Arc<LocalQueues<C>>, key: &LockKey) -> Turn<C> {
    match turns.take(key, ()).await {
        Delivery::Turn(turn) => turn,
        Delivery::Joined(_) => panic!("no lease is shared here"),
    }
}

/// In tests, turns carry no lease.
#[derive(Debug)]
pub(crate) enum NoLease {}

impl CarriedLease for NoLease {
    type Home = ();

    fn id(&self) -> &AcquisitionId {
        match *self {}
    }

    type Requirements = ();
    type Joined = ();

    fn meets(&self, (): &()) -> bool {
        match *self {}
    }

    fn is_shared((): &()) -> bool {
        false
    }

    fn return_turn(self, _: Turn<Self>) {
        match self {}
    }
}

fn turns() -> (Arc<LocalQueues<NoLease>>, LockKey) {
    (Arc::default(), LockKey::new("k").unwrap())
}

#[test]
fn first_come_first_served_and_nothing_left_behind() {
    let (turns, key) = turns();
    let Found::Turn(first) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    let (mut a, mut b) = (pin!(take(&turns, &key)), pin!(take(&turns, &key)));
    assert!(poll(a.as_mut()).is_pending() && poll(b.as_mut()).is_pending());
    assert!(matches!(turns.try_take(&key, &()), Found::Acquiring));
    first.mark_held(&AcquisitionId::new("a"));
    assert!(matches!(turns.try_take(&key, &()), Found::Held));
    drop(first);
    assert!(poll(b.as_mut()).is_pending(), "the other came first");
    let Poll::Ready(turn) = poll(a.as_mut()) else { panic!("a is next") };
    assert!(matches!(turns.try_take(&key, &()), Found::Acquiring), "a new turn does not count as held");
    drop(turn);
    assert!(poll(b.as_mut()).is_ready());
    assert_eq!(turns.keys(), 0);
}

#[test]
fn a_caller_that_leaves_is_passed_over_before_and_after_the_turn_was_sent() {
    let (turns, key) = turns();
    let Found::Turn(first) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    let mut last = pin!(async {
        let mut leaves_early = Box::pin(take(&turns, &key));
        let mut leaves_late = Box::pin(take(&turns, &key));
        assert!(poll(leaves_early.as_mut()).is_pending() && poll(leaves_late.as_mut()).is_pending());
        let mut stays = Box::pin(take(&turns, &key));
        assert!(poll(stays.as_mut()).is_pending());
        drop(leaves_early);
        drop(first); // the turn is sent to `leaves_late`
        drop(leaves_late);
        stays.await
    });
    assert!(poll(last.as_mut()).is_ready());
    assert_eq!(turns.keys(), 0);
}

/// A search from the front would take minutes.
#[test]
fn each_of_many_callers_can_leave() {
    const MANY: usize = 100_000;

    let (turns, key) = turns();
    let Found::Turn(first) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    let mut waiting: Vec<_> = (0..MANY).map(|_| Box::pin(take(&turns, &key))).collect();
    assert!(waiting.iter_mut().all(|waiter| poll(waiter.as_mut()).is_pending()));
    let begun = std::time::Instant::now();
    while let Some(last) = waiting.pop() {
        drop(last);
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(first);
    assert_eq!(turns.keys(), 0);
}

#[test]
fn a_parked_lease_goes_to_the_next_caller_or_to_the_one_that_unparks_it() {
    let (turns, key): (Arc<LocalQueues<Parcel>>, _) = (Arc::default(), LockKey::new("k").unwrap());
    let (parcel, until) = (|| Parcel(AcquisitionId::new("a")), Instant::now());
    let Found::Turn(mut turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    for _ in 0..2 {
        turn.park(parcel(), until).unwrap();
        assert_eq!(turns.parked_until(&key, parcel().id()), Some(until));
        assert!(turns.parked_until(&key, &AcquisitionId::new("b")).is_none());
        let Found::Turn(mut next) = turns.try_take(&key, &()) else { panic!("it is parked") };
        assert!(next.take_lease().is_some() && turns.parked_until(&key, parcel().id()).is_none());
        turn = next;
    }
    let mut waits = pin!(take(&turns, &key));
    assert!(poll(waits.as_mut()).is_pending());
    let turn = turn.park(parcel(), until).expect_err("a caller waits");
    drop(turn);
    let Poll::Ready(turn) = poll(waits.as_mut()) else { panic!("it is next") };
    turn.park(parcel(), until).unwrap();
    let Poll::Ready(mut turn) = poll(pin!(take(&turns, &key))) else { panic!("it is parked") };
    assert!(turn.take_lease().is_some());
    turn.park(parcel(), until).unwrap();
    assert!(turns.unpark(&key, &AcquisitionId::new("b")).is_none());
    let mut turn = turns.unpark(&key, parcel().id()).expect("it is parked");
    assert!(turn.take_lease().is_some());
    drop(turn);
    assert_eq!(turns.keys(), 0);
}

/// A lease that suits every caller.
#[derive(Debug)]
struct Parcel(AcquisitionId);

impl CarriedLease for Parcel {
    type Home = ();
    type Requirements = ();
    type Joined = ();

    fn id(&self) -> &AcquisitionId {
        &self.0
    }

    fn meets(&self, (): &()) -> bool {
        true
    }

    fn is_shared((): &()) -> bool {
        false
    }

    fn return_turn(self, _: Turn<Self>) {}
}

#[test]
fn c26_the_callers_at_the_head_leave_with_a_shared_lease_and_the_others_stay() {
    let (turns, key) = turns();
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    assert!(!turn.next_meets(|()| true) && turn.deliver((), |()| true).is_err(), "no caller waits");
    let [mut leaves, mut first, mut second] = [(); 3].map(|()| Box::pin(turns.take(&key, ())));
    assert!([&mut leaves, &mut first, &mut second].into_iter().all(|caller| poll(caller.as_mut()).is_pending()));
    drop(leaves);
    assert!(turn.next_meets(|()| true) && turn.deliver((), |()| true).is_ok());
    assert!(matches!(poll(first.as_mut()), Poll::Ready(Delivery::Joined(()))));
    assert!(turn.deliver((), |()| false).is_err(), "it has other requirements");
    assert!(poll(second.as_mut()).is_pending());
    drop(turn);
    assert!(matches!(poll(second.as_mut()), Poll::Ready(Delivery::Turn(_))));
}

#[test]
fn c11_a_caller_that_leaves_with_a_shared_lease_takes_no_place_from_a_later_one() {
    let (turns, key) = turns();
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    let mut leaves = Box::pin(turns.take(&key, ()));
    assert!(poll(leaves.as_mut()).is_pending());
    assert!(turn.deliver((), |()| true).is_ok());
    // The line ends, and another one begins.
    drop(turn);
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("it is free") };
    let mut waits = Box::pin(turns.take(&key, ()));
    assert!(poll(waits.as_mut()).is_pending());
    drop(leaves);
    drop(turn);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Delivery::Turn(_))));
}

#[test]
fn a_nudge_is_kept_until_the_caller_sleeps() {
    let (turns, key) = turns();
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    // Between the store's answer and the first sleep.
    turns.nudge(&key);
    let nudged = turn.nudged();
    assert!(poll(pin!(nudged.notified())).is_ready());
    turns.nudge(&key);
    assert!(poll(pin!(nudged.notified())).is_ready());
    assert!(poll(pin!(nudged.notified())).is_pending());
}

#[test]
fn a_nudge_is_kept_by_a_caller_whose_lease_is_lost() {
    let (turns, key) = turns();
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    turn.mark_held(&AcquisitionId::new("lost"));
    turns.nudge(&key);
    let nudged = turn.nudged();
    assert!(poll(pin!(nudged.notified())).is_ready(), "it has to ask the store");
}

#[test]
fn a_nudge_ends_with_its_turn() {
    let (turns, key) = turns();
    let Found::Turn(turn) = turns.try_take(&key, &()) else { panic!("no caller wants it yet") };
    let mut next = pin!(take(&turns, &key));
    assert!(poll(next.as_mut()).is_pending());
    let before = turn.nudged();
    turns.nudge(&key);
    drop(turn);
    let Poll::Ready(turn) = poll(next.as_mut()) else { panic!("it is next") };
    let nudged = turn.nudged();
    assert!(poll(pin!(nudged.notified())).is_pending());
    before.notify_one(); // by code that has the notification of the previous turn
    assert!(poll(pin!(nudged.notified())).is_pending());
    turns.nudge(&key);
    assert!(poll(pin!(nudged.notified())).is_ready());
}

/// Callers that may share the key, and others.
#[derive(Debug)]
enum NoSharedLease {}

impl CarriedLease for NoSharedLease {
    type Home = ();
    type Requirements = bool;
    type Joined = ();

    fn id(&self) -> &AcquisitionId {
        match *self {}
    }

    fn meets(&self, _: &bool) -> bool {
        match *self {}
    }

    fn is_shared(requirements: &bool) -> bool {
        *requirements
    }

    fn return_turn(self, _: Turn<Self>) {
        match self {}
    }
}

#[test]
fn a_reader_is_beside_one_that_has_just_come_while_no_caller_waits() {
    let (turns, key) = (Arc::<LocalQueues<NoSharedLease>>::default(), LockKey::new("k").unwrap());
    let found = |is_shared| match turns.try_take(&key, &is_shared) {
        Found::AcquiringBeside => "beside",
        Found::Acquiring => "acquiring",
        Found::Held => "held",
        Found::Turn(_) => "free",
    };
    let Found::Turn(first) = turns.try_take(&key, &true) else { panic!("no caller wants it yet") };
    assert_eq!([found(true), found(false)], ["beside", "acquiring"]);
    let mut writer = Box::pin(turns.take(&key, false));
    assert!(poll(writer.as_mut()).is_pending());
    assert_eq!(found(true), "acquiring", "a writer waits");
    drop(writer);
    assert_eq!(found(true), "beside");
    let mut second = Box::pin(turns.take(&key, true));
    assert!(poll(second.as_mut()).is_pending());
    first.mark_waiting();
    drop(first);
    assert_eq!(found(true), "acquiring", "the turn was passed on, and its caller came before");
    let Poll::Ready(Delivery::Turn(second)) = poll(second.as_mut()) else { panic!("it is next") };
    assert_eq!(found(true), "acquiring");
    drop(second);

    let Found::Turn(first) = turns.try_take(&key, &true) else { panic!("no caller wants it") };
    first.mark_waiting();
    assert_eq!(found(true), "acquiring", "the one that has the turn waits in the store");
    drop(first);
    let Found::Turn(_writer) = turns.try_take(&key, &false) else { panic!("no caller wants it") };
    assert_eq!(found(true), "acquiring", "a writer has the turn");
}
