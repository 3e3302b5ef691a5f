use std::time::Duration;

use super::*;

fn lanes(at_once: usize) -> Lanes {
    Lanes::new(NonZeroUsize::new(at_once).unwrap())
}

fn in_line(lanes: &Lanes, lane: Lane, deadline: Option<Instant>) -> InLine {
    match lanes.enter(lane, deadline, false) {
        PermitReply::Later(in_line) => in_line,
        PermitReply::Now(_) | PermitReply::Refused(_) => panic!("no permit is free, and none is refused"),
    }
}

fn permits(lanes: &Lanes, lane: Lane) -> Vec<Permit> {
    std::iter::from_fn(|| lanes.try_enter(lane)).collect()
}

const SOON: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn c14_acquisitions_leave_room_for_releases_and_both_for_renewals() {
    for (at_once, acquisitions, releases, renewals) in
        [(1, 1, 0, 0), (2, 1, 0, 1), (4, 3, 0, 1), (8, 6, 1, 1), (64, 48, 8, 8)]
    {
        let lanes = lanes(at_once);
        let all = [Lane::Acquire, Lane::Release, Lane::Renew].map(|lane| permits(&lanes, lane));
        assert_eq!(all.each_ref().map(Vec::len), [acquisitions, releases, renewals], "{lanes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c14_the_most_urgent_goes_next_whenever_it_came() {
    let lanes = lanes(1);
    let first = lanes.try_enter(Lane::Acquire).unwrap();
    let acquire = in_line(&lanes, Lane::Acquire, None);
    let release = in_line(&lanes, Lane::Release, None);
    let renew = in_line(&lanes, Lane::Renew, None);
    drop(first);
    let permit = renew.permit().await.unwrap();
    let mut release = Box::pin(release.permit());
    assert!(tokio::time::timeout(SOON, &mut release).await.is_err(), "one at a time");
    drop(permit);
    drop(release.await.unwrap());
    drop(acquire.permit().await.unwrap());
    assert_eq!(permits(&lanes, Lane::Renew).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn acquisitions_never_overtake_releases() {
    let lanes = lanes(8);
    let mut acquisitions = permits(&lanes, Lane::Acquire);
    let mut releases = permits(&lanes, Lane::Release);
    assert!(lanes.try_enter(Lane::Acquire).is_none(), "what is left is for renewals");
    let in_line: Vec<_> = (0..20).map(|_| in_line(&lanes, Lane::Release, None)).collect();
    for release in in_line {
        drop(acquisitions.pop().or_else(|| releases.pop()));
        assert!(lanes.try_enter(Lane::Acquire).is_none(), "a release waits: {lanes:?}");
        releases.push(release.permit().await.unwrap());
    }
    assert_eq!(permits(&lanes, Lane::Renew).len(), 1, "{lanes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_releases_leaves_waiting_acquisitions_a_quarter() {
    for (at_once, acquisitions) in [(2, 0), (4, 1), (9, 2), (64, 16)] {
        let lanes = lanes(at_once);
        let before = permits(&lanes, Lane::Release);
        let releases: Vec<_> = (0..at_once).map(|_| in_line(&lanes, Lane::Release, None)).collect();
        let waiting: Vec<_> = (0..at_once).map(|_| in_line(&lanes, Lane::Acquire, None)).collect();
        drop(before);
        let in_flight = |lane| lanes.state().load(lane).0;
        let most = at_once - (at_once / 8).max(1);
        assert_eq!(in_flight(Lane::Acquire), acquisitions, "{lanes:?}");
        assert_eq!(in_flight(Lane::Release), most - acquisitions, "{lanes:?}");
        drop(waiting);
        assert_eq!(in_flight(Lane::Release), most, "no acquisition waits now: {lanes:?}");
        drop(releases);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_set_aside_is_for_no_call() {
    let lanes = lanes(2);
    let (stream, another) = (lanes.set_aside(), lanes.set_aside());
    assert_eq!(lanes.at_once(), 1, "never less than one");
    let first = lanes.try_enter(Lane::Renew).unwrap();
    let second = in_line(&lanes, Lane::Renew, None);
    drop(another);
    let mut second = Box::pin(second.permit());
    assert!(tokio::time::timeout(SOON, &mut second).await.is_err());
    drop(stream);
    assert!(second.await.is_some());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_passed_over_before_and_after_the_permit_was_sent() {
    let lanes = lanes(1);
    let first = lanes.try_enter(Lane::Acquire).unwrap();
    let (early, late, stays) = (
        in_line(&lanes, Lane::Acquire, None),
        in_line(&lanes, Lane::Acquire, None),
        in_line(&lanes, Lane::Acquire, None),
    );
    assert_eq!(early.position().leave().map(|overload| overload.in_line), Some(2));
    assert!(early.permit().await.is_none());
    drop(first);
    assert!(late.position().leave().is_none(), "its permit was sent");
    drop(late);
    assert!(stays.permit().await.is_some());
    assert_eq!(permits(&lanes, Lane::Acquire).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_that_would_be_answered_too_late() {
    let lanes = lanes(1);
    let slow = lanes.try_enter(Lane::Acquire).unwrap();
    tokio::time::advance(Duration::from_millis(500)).await;
    drop(slow);
    // A free permit is used however short the time is: the answer shows how fast the store is now.
    let PermitReply::Now(second) = lanes.enter(Lane::Acquire, Some(Instant::now() + SOON), true) else {
        panic!("free")
    };
    let hasty = in_line(&lanes, Lane::Acquire, Some(Instant::now() + Duration::from_millis(1100)));
    let patient = in_line(&lanes, Lane::Acquire, Some(Instant::now() + Duration::from_millis(1200)));
    tokio::time::advance(Duration::from_millis(500)).await;
    drop(second);
    assert!(hasty.permit().await.is_none());
    assert!(patient.permit().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn overload_is_reported_at_once_with_the_length_of_the_line() {
    let lanes = lanes(4);
    let deadline = |ms| Some(Instant::now() + Duration::from_millis(ms));
    // Three acquisitions at once, 300 ms each: one per 100 ms.
    let mut in_flight = permits(&lanes, Lane::Acquire);
    tokio::time::advance(Duration::from_millis(300)).await;
    in_flight.clear();
    let _in_flight = permits(&lanes, Lane::Acquire);
    let waiting: Vec<_> = (0..5).map(|_| in_line(&lanes, Lane::Acquire, None)).collect();
    let PermitReply::Refused(overload) = lanes.enter(Lane::Acquire, deadline(900), true) else { panic!("too late") };
    assert_eq!((overload.in_line, overload.at_once), (5, 4));
    assert_eq!(overload.wait, Duration::from_millis(600));
    assert!(matches!(lanes.enter(Lane::Acquire, deadline(1000), true), PermitReply::Later(_)));
    assert!(
        matches!(lanes.enter(Lane::Acquire, None, true), PermitReply::Later(_)),
        "without a deadline there is no hurry"
    );
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn a_permit_without_a_call_says_nothing_about_durations() {
    let lanes = lanes(4);
    let call = lanes.try_enter(Lane::Acquire).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(call);
    let needs = lanes.needs(Lane::Acquire);
    assert!(needs > Duration::from_secs(1));
    lanes.try_enter(Lane::Acquire).unwrap().unused();
    assert_eq!(lanes.needs(Lane::Acquire), needs);
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_others_that_are_not_in_line_yet_is_refused_like_one_in_line() {
    let lanes = lanes(4);
    let soon = |ms| Instant::now() + Duration::from_millis(ms);
    let mut in_flight = permits(&lanes, Lane::Acquire);
    tokio::time::advance(Duration::from_millis(300)).await;
    in_flight.clear();
    assert!(lanes.refusal(Lane::Acquire, 0, soon(1)).is_none(), "a permit is free");
    let _in_flight = permits(&lanes, Lane::Acquire);
    let refused = lanes.refusal(Lane::Acquire, 5, soon(900)).unwrap();
    assert_eq!((refused.in_line, refused.wait), (5, Duration::from_millis(600)));
    assert!(lanes.refusal(Lane::Acquire, 5, soon(1000)).is_none());
}

#[tokio::test(start_paused = true)]
async fn debug_shows_the_load() {
    let lanes = lanes(2);
    let _permit = lanes.try_enter(Lane::Acquire).unwrap();
    let _in_line = in_line(&lanes, Lane::Acquire, None);
    let shown = format!("{lanes:?}");
    assert!(shown.contains("acquire: 1 in flight, 1 in line") && shown.contains("at_once: 2"), "{shown}");
}
