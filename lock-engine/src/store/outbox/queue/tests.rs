use super::*;

const MS: Duration = Duration::from_millis(1);
/// As many requests as one call of a batch takes.
const MOST: usize = 3;

/// A queue, and the time.
struct World {
    queue: Queue<u32>,
    now: Instant,
    provider: ProviderId,
}

impl World {
    fn new(at_once: usize) -> Self {
        Self { queue: Queue::new(at_once), now: Instant::now(), provider: ProviderId::random() }
    }

    fn home(&self, kind: Option<&'static str>) -> Home {
        Home { provider: self.provider, runtime: runtime::Handle::current().id(), kind }
    }

    fn alone(&self, lane: Lane) -> Entry {
        let home = self.home(None);
        Entry { lane, home, most: 1, deadline: None, is_refusable: false, in_group: false }
    }

    fn together(&self) -> Entry {
        Entry { home: self.home(Some("acquisitions")), most: MOST, ..self.alone(Lane::Acquire) }
    }

    fn within(&self, entry: Entry, millis: u32) -> Entry {
        Entry { deadline: Some(self.now + MS * millis), ..entry }
    }

    fn starts(&mut self, entry: Entry) -> bool {
        self.queue.enter(entry, self.now, || unreachable!("a permit is free")) == Enter::Start
    }

    fn wait(&mut self, entry: Entry, jobs: impl IntoIterator<Item = u32>) {
        for job in jobs {
            self.waits(entry, job);
        }
    }

    fn waits(&mut self, entry: Entry, job: u32) -> (Rank, Instant) {
        match self.queue.enter(entry, self.now, || job) {
            Enter::InLine { rank, due } => (rank, due),
            other => panic!("{other:?}"),
        }
    }

    /// Uses all permits of a lane. Returns how many there were.
    fn fill(&mut self, lane: Lane) -> usize {
        let home = self.home(None);
        (0..).take_while(|_| self.queue.try_start(lane, home, self.now)).count()
    }

    fn ended(&mut self, entry: Entry, took: u32) {
        self.queue.ended(entry.lane, entry.home, Ended::After(MS * took));
    }

    fn next(&mut self) -> Vec<u32> {
        self.queue.next(self.now).map(|batch| batch.jobs).unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn c14_acquisitions_leave_room_for_releases_and_both_for_renewals() {
    for (at_once, acquisitions, releases, renewals) in
        [(1, 1, 0, 0), (2, 1, 0, 1), (4, 3, 0, 1), (8, 6, 1, 1), (64, 48, 8, 8)]
    {
        let mut world = World::new(at_once);
        let all = [Lane::Acquire, Lane::Release, Lane::Renew].map(|lane| world.fill(lane));
        assert_eq!(all, [acquisitions, releases, renewals], "{at_once}");
    }
}

#[tokio::test(start_paused = true)]
async fn c14_the_most_urgent_goes_next_whenever_it_came() {
    let mut world = World::new(1);
    let [acquire, release, renew] = [Lane::Acquire, Lane::Release, Lane::Renew].map(|lane| world.alone(lane));
    assert!(world.starts(acquire));
    for (entry, job) in [(acquire, 1), (release, 2), (renew, 3)] {
        world.waits(entry, job);
    }
    assert_eq!(world.next(), [0; 0], "one at a time");
    for (ends, job) in [(acquire, 3), (renew, 2), (release, 1)] {
        world.ended(ends, 1);
        assert_eq!(world.next(), [job]);
    }
}

#[tokio::test(start_paused = true)]
async fn acquisitions_never_overtake_releases() {
    let mut world = World::new(8);
    let [acquire, release] = [Lane::Acquire, Lane::Release].map(|lane| world.alone(lane));
    assert_eq!((world.fill(Lane::Acquire), world.fill(Lane::Release)), (6, 1));
    for job in 0..5 {
        world.waits(release, job);
    }
    for job in 0..5 {
        world.ended(acquire, 1);
        assert_eq!(world.next(), [job]);
        assert!(!world.queue.has_room(Lane::Acquire), "what is left is for renewals");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_releases_leaves_waiting_acquisitions_a_quarter() {
    for (at_once, acquisitions) in [(2, 0), (4, 1), (9, 2), (64, 16)] {
        let mut world = World::new(at_once);
        let [acquire, release] = [Lane::Acquire, Lane::Release].map(|lane| world.alone(lane));
        let before = world.fill(Lane::Release);
        world.wait(release, (0..at_once).map(|_| 0));
        let waiting: Vec<Rank> = (0..at_once).map(|_| world.waits(acquire, 0).0).collect();
        (0..before).for_each(|_| world.ended(release, 1));
        while !world.next().is_empty() {}
        let most = at_once - (at_once / 8).max(1);
        let in_flight = |world: &World, lane| world.queue.load(lane).0;
        assert_eq!(in_flight(&world, Lane::Acquire), acquisitions, "{at_once}");
        assert_eq!(in_flight(&world, Lane::Release), most - acquisitions, "{at_once}");
        for rank in waiting {
            if world.queue.leave(Lane::Acquire, acquire.home, rank).is_none() {
                world.ended(acquire, 1);
            }
        }
        while !world.next().is_empty() {}
        assert_eq!(in_flight(&world, Lane::Release), most, "no acquisition waits now: {at_once}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_set_aside_is_for_no_call() {
    let mut world = World::new(2);
    world.queue.set_aside();
    world.queue.set_aside();
    assert_eq!((world.queue.at_once(), world.fill(Lane::Renew)), (1, 1), "never less than one");
    world.waits(world.alone(Lane::Renew), 1);
    world.queue.return_set_aside();
    assert_eq!(world.next(), [0; 0]);
    world.queue.return_set_aside();
    assert_eq!(world.next(), [1]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_when_a_permit_is_free_goes_together() {
    let mut world = World::new(1);
    let entry = world.together();
    assert!(world.starts(entry), "alone");
    world.wait(entry, 10..14);
    world.ended(entry, 1);
    assert_eq!(world.next(), [10, 11, 12], "in the order of their arrival");
    world.waits(entry, 14);
    world.ended(entry, 1);
    assert_eq!(world.next(), [13, 14]);
    world.ended(entry, 1);
    assert!(world.starts(entry));
}

#[tokio::test(start_paused = true)]
async fn only_requests_of_one_home_go_together() {
    let mut world = World::new(1);
    let (here, alone) = (world.together(), world.alone(Lane::Acquire));
    let there = Entry { home: Home { provider: ProviderId::random(), ..here.home }, ..here };
    assert!(world.starts(here));
    for (entry, job) in [(here, 1), (there, 2), (alone, 3), (here, 4), (alone, 5), (there, 6)] {
        world.waits(entry, job);
    }
    let mut ends = here;
    for (batch, home) in [(&[1, 4][..], here), (&[2, 6], there), (&[3], alone), (&[5], alone)] {
        world.ended(ends, 1);
        assert_eq!(world.next(), batch);
        ends = home;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_company_while_two_calls_of_their_home_are_under_way() {
    let mut world = World::new(64);
    let entry = world.together();
    assert!(world.starts(entry) && world.starts(entry));
    let first = world.waits(entry, 1).0;
    world.wait(entry, 2..=4);
    assert_eq!(world.next(), [0; 0]);
    assert!(world.starts(world.alone(Lane::Acquire)), "it waits for no company");
    world.queue.overdue(Lane::Acquire, entry.home, first);
    assert_eq!((world.next(), world.next()), (vec![1, 2, 3], vec![]), "the others are not overdue");
    world.ended(entry, 1);
    assert_eq!(world.next(), [0; 0], "two are still under way");
    world.ended(entry, 1);
    assert_eq!(world.next(), [4]);
}

#[tokio::test(start_paused = true)]
async fn a_group_goes_together_when_all_have_arrived() {
    let mut world = World::new(64);
    let entry = Entry { in_group: true, ..world.together() };
    world.wait(entry, 0..5);
    assert_eq!(world.next(), [0; 0]);
    world.queue.arrived(Lane::Acquire, entry.home);
    assert_eq!([world.next(), world.next(), world.next()], [vec![0, 1, 2], vec![3, 4], vec![]]);
    world.waits(entry, 5);
    assert_eq!(world.next(), [0; 0], "another group");
}

#[tokio::test(start_paused = true)]
async fn a_hurried_caller_goes_first_and_a_patient_one_is_not_overtaken_for_ever() {
    let mut world = World::new(1);
    let entry = world.alone(Lane::Acquire);
    assert!(world.starts(entry));
    world.waits(entry, 1);
    world.waits(world.within(entry, 60_000), 2);
    world.waits(world.within(entry, 3000), 3);
    world.waits(world.within(entry, 900), 4);
    world.now += MS * 500;
    world.waits(world.within(entry, 900), 5);
    for job in [4, 1, 2, 3, 5] {
        world.ended(entry, 1);
        assert_eq!(world.next(), [job]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_passed_over() {
    let mut world = World::new(1);
    let entry = world.together();
    assert!(world.starts(entry));
    let [first, _, third] = [1, 2, 3].map(|job| world.waits(entry, job).0);
    assert_eq!(world.queue.leave(Lane::Acquire, entry.home, first), Some(1));
    assert_eq!(world.queue.leave(Lane::Acquire, entry.home, first), None);
    world.queue.overdue(Lane::Acquire, entry.home, first);
    world.ended(entry, 1);
    assert_eq!(world.next(), [2, 3]);
    assert_eq!(world.queue.leave(Lane::Acquire, entry.home, third), None, "its call has been sent");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_that_would_be_answered_too_late() {
    let mut world = World::new(1);
    let entry = world.alone(Lane::Acquire);
    assert!(world.starts(entry));
    world.ended(entry, 500);
    // A free permit is used however short the time is: the answer shows how fast the store is now.
    assert!(world.starts(world.within(entry, 10)));
    world.waits(world.within(entry, 1100), 1);
    world.waits(world.within(entry, 1200), 2);
    world.now += MS * 500;
    world.ended(entry, 500);
    let next = world.queue.next(world.now).unwrap();
    assert_eq!((next.jobs, next.late), (vec![2], vec![1]));
}

#[tokio::test(start_paused = true)]
async fn overload_is_reported_at_once_with_the_length_of_the_line() {
    let mut world = World::new(4);
    let entry = Entry { is_refusable: true, ..world.alone(Lane::Acquire) };
    // Three acquisitions at once, 300 ms each: one per 100 ms.
    world.fill(Lane::Acquire);
    world.now += MS * 300;
    (0..3).for_each(|_| world.ended(entry, 300));
    world.fill(Lane::Acquire);
    world.wait(entry, 0..8);
    let late = world.within(entry, 1200);
    let Enter::Refused(overload) = world.queue.enter(late, world.now, || 0) else { panic!("too late") };
    assert_eq!((overload.in_line, overload.at_once, overload.wait), (8, 4, MS * 900));
    world.waits(world.within(entry, 1300), 0);
    world.waits(entry, 0);
    world.waits(world.within(entry, 500), 0);
}

/// A batch serves many callers: a wait that the next call can end is no overload.
#[tokio::test(start_paused = true)]
async fn c18_the_estimate_knows_how_many_callers_a_call_serves() {
    let mut world = World::new(2);
    let entry = Entry { most: 64, is_refusable: true, ..world.together() };
    assert!(world.starts(entry));
    world.now += MS * 1000;
    world.ended(entry, 1000);
    assert!(world.starts(entry));
    world.wait(world.within(entry, 3000), 0..60);
    assert_eq!(
        world.queue.enter(world.within(entry, 3000), world.now, || 60),
        Enter::InLine { rank: (world.now + HURRY, 61), due: world.now + MS * 875 }
    );
    world.wait(world.within(entry, 9000), 61..192);
    let refused = world.queue.enter(world.within(entry, 3000), world.now, || 0);
    let Enter::Refused(overload) = refused else { panic!("{refused:?}") };
    assert_eq!((overload.in_line, overload.wait), (3, MS * 4000));
}

#[tokio::test(start_paused = true)]
async fn a_permit_without_a_call_says_nothing_about_durations() {
    let mut world = World::new(4);
    let entry = world.alone(Lane::Acquire);
    assert!(world.starts(entry));
    world.ended(entry, 1000);
    assert!(world.queue.lane(Lane::Acquire).needs() > MS * 1000);
    assert!(world.starts(entry));
    world.queue.ended(entry.lane, entry.home, Ended::Unused);
    assert_eq!(world.queue.lane(Lane::Acquire).needs(), MS * 1250);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_left_says_only_that_calls_take_longer() {
    let mut world = World::new(4);
    let entry = world.alone(Lane::Acquire);
    let needs = |world: &World| world.queue.lane(Lane::Acquire).needs();
    world.fill(Lane::Acquire);
    world.queue.ended(entry.lane, entry.home, Ended::Unanswered(MS * 400));
    assert_eq!(needs(&world), MS * 500);
    world.queue.ended(entry.lane, entry.home, Ended::Unanswered(MS));
    assert_eq!(needs(&world), MS * 500);
}

/// It takes two to show that the store is slow.
#[tokio::test(start_paused = true)]
async fn one_slow_call_makes_nothing_late() {
    let mut world = World::new(1);
    let entry = Entry { is_refusable: true, ..world.alone(Lane::Acquire) };
    let mut takes = |millis: u32| {
        assert!(world.starts(entry));
        world.now += MS * millis;
        world.ended(entry, millis);
        world.queue.lane(Lane::Acquire).needs()
    };
    for _ in 0..10 {
        takes(4);
    }
    assert_eq!([takes(10_000), takes(4), takes(10_000)], [MS * 5; 3]);
    assert!(takes(10_000) > MS * 5000);
    assert_eq!(takes(4), MS * 5, "an improvement counts at once");
}

/// A line begins to move when it begins, not when the call before it did.
#[tokio::test(start_paused = true)]
async fn the_time_without_a_line_says_nothing_about_its_pace() {
    let mut world = World::new(2);
    let entry = Entry { is_refusable: true, ..world.alone(Lane::Acquire) };
    assert!(world.starts(entry));
    world.ended(entry, 10);
    world.now += MS * 60_000;
    let renew = world.alone(Lane::Renew);
    assert_eq!(world.fill(Lane::Renew), 2);
    world.waits(world.within(entry, 1000), 1);
    world.waits(world.within(entry, 1000), 2);
    world.now += MS * 50;
    world.ended(renew, 50);
    assert_eq!(world.next(), [1]);
    assert_eq!(world.queue.lane(Lane::Acquire).interval.mean, None);
    world.now += MS * 10;
    world.ended(entry, 10);
    assert_eq!(world.next(), [2]);
    assert_eq!(world.queue.lane(Lane::Acquire).interval.mean, Some(MS * 10));
}

#[tokio::test(start_paused = true)]
async fn c14_refreshes_leave_a_permit_to_renewals() {
    for (at_once, renewals) in [(1, 0), (2, 1), (8, 1), (64, 8)] {
        let mut world = World::new(at_once);
        assert_eq!((world.fill(Lane::Refresh), world.fill(Lane::Renew)), (at_once - renewals, renewals));
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_company_follows_the_calls_within_bounds() {
    let mut world = World::new(64);
    let entry = world.together();
    let company = |world: &mut World, deadline: Option<u32>| {
        let entry = deadline.map_or(entry, |millis| world.within(entry, millis));
        let (rank, due) = world.waits(entry, 0);
        world.queue.leave(entry.lane, entry.home, rank);
        due - world.now
    };
    assert!(world.starts(entry) && world.starts(entry) && world.fill(Lane::Acquire) > 0);
    assert_eq!(company(&mut world, None), COMPANY.0);
    let calls = world.alone(Lane::Acquire);
    (0..40).for_each(|_| world.ended(calls, 40));
    assert_eq!(company(&mut world, None), MS * 40);
    assert_eq!(company(&mut world, Some(80)), MS * 15, "of a caller with little time");
    assert_eq!(company(&mut world, Some(1)), Duration::ZERO);
    world.ended(calls, 4000);
    world.ended(calls, 4000);
    assert_eq!(company(&mut world, None), MS * 3010 / 48, "the calls spread over the permits");
    world.ended(calls, 1);
    assert_eq!(company(&mut world, None), COMPANY.0, "an improvement counts at once");
}

#[tokio::test(start_paused = true)]
async fn a_home_without_requests_is_forgotten() {
    let mut world = World::new(1);
    let entry = world.together();
    assert!(world.starts(entry));
    let (rank, _) = world.waits(entry, 1);
    world.queue.leave(entry.lane, entry.home, rank);
    world.ended(entry, 1);
    assert!(world.queue.lanes.iter().all(|lane| lane.homes.is_empty()));
}
