use super::*;
use crate::state::local_queue::tests::NoLease;
use crate::state::time::Sleep;
use crate::store::ProviderId;
use crate::test_kit::ms;

fn lease(remaining: Duration, sent: Instant, now: Instant) -> Option<Arc<Lease<NoLease>>> {
    let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let terms = distlock_api::LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).terms().unwrap();
    let deadline = deadline(sent, remaining, &terms);
    let grant = Grant::new(FencingToken::new(7), remaining);
    let home_id = tokio::runtime::Handle::current().id();
    let origin = Origin { home: (), home_id, in_group: false };
    Lease::granted(claim, &grant, (terms, Holder::new()), (sent, deadline), &now.into(), origin, None).ok()
}

#[tokio::test(start_paused = true)]
async fn c3_the_deadline_counts_from_the_sending_and_ends_before_the_margin() {
    let sent = Instant::now();
    let lease = lease(ms(1000), sent, sent + ms(300)).expect("in time");
    assert_eq!(lease.deadline(&sent.into()), sent + ms(900));
    assert_eq!(lease.view(&(sent + ms(899)).into()), LeaseView::HeldUntil(sent + ms(900)));
    assert_eq!(lease.view(&(sent + ms(900)).into()), LeaseView::Lost { loss: Loss::Expired, fresh: true });
    assert_eq!(
        lease.view(&(sent).into()),
        LeaseView::Lost { loss: Loss::Expired, fresh: false },
        "final, and noticed once"
    );
}

#[tokio::test(start_paused = true)]
async fn c4_a_machine_that_slept_beyond_the_deadline_finds_the_lease_lost_when_it_wakes() {
    let sent = Instant::now();
    let after = |slept: u64| {
        let sleep = Sleep { noticed: sent + ms(5), slept: ms(slept) };
        Now::new(sent + ms(10), Some(vec![sleep].into()))
    };
    let [viewed, renewed, committed, handed] = [(); 4].map(|()| lease(ms(1000), sent, sent).unwrap());
    assert_eq!(viewed.view(&after(500)), LeaseView::HeldUntil(sent + ms(400)), "half of it has passed");
    let now = after(1000);
    assert_eq!(viewed.view(&now), LeaseView::Lost { loss: Loss::Expired, fresh: true });
    assert!(viewed.deadline(&now) <= now.instant());
    assert!(renewed.held_until(&now).is_some_and(|end| end <= now.instant()));
    // The answer to a request sent before the sleep.
    let answer = Standing::Held { remaining: ms(1000) };
    assert_eq!(renewed.renewed(sent, answer, || now.clone()), Renewed::Lost(Loss::Expired));
    assert!(!committed.begin_commit(&now));
    assert!(handed.hand_on(&now, &HandOff::new(), true).is_none());
    let again = lease(ms(1000), now.instant(), now.instant()).unwrap();
    assert_eq!(again.view(&now), LeaseView::HeldUntil(now.instant() + ms(900)), "sent after the sleep");
}

#[tokio::test(start_paused = true)]
async fn r10_a_grant_that_arrives_after_its_deadline_is_no_lease() {
    let sent = Instant::now();
    assert!(lease(ms(1000), sent, sent + ms(900)).is_none());
    assert!(lease(ms(50), sent, sent).is_none());
    assert!(lease(Duration::MAX, sent, sent).is_some());
}

#[tokio::test(start_paused = true)]
async fn c4_no_answer_revives_a_lease_whose_deadline_has_passed() {
    let sent = Instant::now();
    let lease = lease(ms(1000), sent, sent).unwrap();
    tokio::time::advance(ms(900)).await;
    assert_eq!(
        lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }, || Instant::now().into()),
        Renewed::Lost(Loss::Expired)
    );
    assert_eq!(
        lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }, || Instant::now().into()),
        Renewed::TooLate
    );
}

#[tokio::test(start_paused = true)]
async fn c4_a_lease_ends_with_its_maximum_hold_whatever_its_renewals_say() {
    let sent = Instant::now();
    let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let options = distlock_api::LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).max_hold(ms(1500));
    let (terms, grant) = (options.terms().unwrap(), Grant::new(FencingToken::new(7), ms(1000)));
    let origin = Origin { home: (), home_id: tokio::runtime::Handle::current().id(), in_group: false };
    let times = (sent, deadline(sent, ms(1000), &terms));
    let granted = Lease::<NoLease>::granted(claim, &grant, (terms, Holder::new()), times, &sent.into(), origin, None);
    let lease = granted.unwrap_or_else(|_| panic!("in time"));
    assert!(!lease.reaches_max_hold(&sent.into()));
    tokio::time::advance(ms(800)).await;
    let held = Standing::Held { remaining: ms(1000) };
    assert_eq!(lease.renewed(sent + ms(800), held, || Instant::now().into()), Renewed::Extended);
    assert!(lease.reaches_max_hold(&(sent + ms(800)).into()));
    let end = sent + ms(1500);
    assert_eq!(lease.view(&(end - ms(1)).into()), LeaseView::HeldUntil(end));
    assert_eq!(lease.expiry(&end.into()), sent + ms(1800), "the store has it for longer");
    assert_eq!(lease.view(&end.into()), LeaseView::Lost { loss: Loss::HeldTooLong, fresh: true });
}

#[tokio::test(start_paused = true)]
async fn a_renewal_never_shortens() {
    let sent = Instant::now();
    let lease = lease(ms(1000), sent, sent).unwrap();
    assert_eq!(lease.renewed(sent, Standing::Held { remaining: ms(200) }, || Instant::now().into()), Renewed::Extended);
    assert_eq!(lease.deadline(&sent.into()), sent + ms(900));
}

#[tokio::test(start_paused = true)]
async fn c12_a_releasing_lease_is_neither_renewed_nor_lost() {
    let sent = Instant::now();
    let lease = lease(ms(1000), sent, sent).unwrap();
    assert!(matches!(lease.begin_release(), ReleaseStart::Releasing));
    assert_eq!(lease.renewed(sent, Standing::Gone(Loss::Gone), || Instant::now().into()), Renewed::TooLate);
    assert!(!lease.lose(Loss::Gone));
    assert_eq!(lease.view(&(sent + ms(5000)).into()), LeaseView::Over);
}
