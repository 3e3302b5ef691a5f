//! The form of the commands. Their effect is tested on servers.

use std::num::NonZeroU32;

use distlock_api::{LockKey, Mode};
use distlock_engine::store::{Attempt, Claim, ProviderId, Ticket, Used};

use super::*;

const CLUSTER: Clock = Clock { source: Source::ClusterTime, floor: 0 };
const WALL: Clock = Clock { source: Source::WallTime, floor: 7 };
const HOUR: Duration = Duration::from_secs(3600);

fn attempt(text: &str) -> Attempt {
    let holder = Holder::default().with_owner(text).with_metadata(text, text);
    let claim = Claim::new(LockKey::new("k").unwrap(), AcquisitionId::new(text));
    Attempt::new(claim, HOUR).with_holder(holder).with_tokens(NonZeroU32::new(7).unwrap())
}

fn queueing(text: &str) -> Attempt {
    attempt(text).with_ticket(Ticket::new(HOUR, HOUR, 8))
}

/// A shared attempt that queues.
fn reading(text: &str) -> Attempt {
    let mut attempt = queueing(text);
    attempt.claim = attempt.claim.with_mode(Mode::Shared);
    attempt
}

fn leaving(id: &AcquisitionId, used: Used, hold_at_least: Option<Duration>) -> Leaving {
    Leaving::new(id, Mode::Exclusive, used, hold_at_least)
}

fn everything(layout: &Layout, clock: Clock) -> String {
    let id = AcquisitionId::new("$id");
    let key = LockKey::new("$key").unwrap();
    let identity = layout.identity(&key).unwrap();
    let (ttl, is_exclusive) = (HOUR, true);
    let lease = Extension { key: key.clone(), identity: identity.clone(), id: id.clone(), token: 7, ttl, is_exclusive };
    let short = Extension { ttl: HOUR / 2, ..lease.clone() };
    let tickets = [KeyTicket { key: key.clone(), identity: identity.clone(), id: id.clone() }];
    let write = WriteId { acquisition: &id, number: 1 };
    let (first_attempt, identities) = (attempt("$id"), [identity.clone()]);
    let shared = |hold| Leaving::new(&id, Mode::Shared, Used::Unknown, hold);
    let together = Claim::new(key.clone(), id.clone());
    let pipelines = [
        layout.acquire(&attempt("$id"), clock),
        layout.acquire(&queueing("$id"), clock),
        layout.acquire(&reading("$id"), clock),
        layout.take_together(&[&first_attempt], &identities, BatchTokens::From(7)),
        layout.take_together(&[&first_attempt], &identities, BatchTokens::Clock(clock)),
        layout.take_new(&[&first_attempt], &identities, BatchTokens::From(7), HOUR, "locks"),
        layout.take_together(&[&reading("$id")], &identities, BatchTokens::Clock(clock)),
        layout.take_new(&[&reading("$id")], &identities, BatchTokens::From(7), HOUR, "locks"),
        layout.free_together(Held::Beside, &[(&id, Used::None)]),
        vec![layout.all_held_without_waiters(Held::Beside, identities.to_vec(), &["$id"])],
        vec![layout.all_unused(&identities, BatchTokens::From(7), HOUR), layout.taken_together(&["$id"], &["$id"])],
        layout.release(&leaving(&id, Used::None, Some(HOUR)), NextHolders::OfAnyMode, clock),
        layout.release(&shared(Some(HOUR)), NextHolders::OfAnyMode, clock),
        layout.release(&shared(None), NextHolders::Exclusive, clock),
        layout.release(&Leaving::together(&[&together], &identities), NextHolders::OfAnyMode, clock),
        vec![layout.records_with(identities.to_vec(), &["$id"])],
        layout.pass(&id, Used::None, Some(HOUR), NextHolders::OfAnyMode, clock),
        layout.pass(&id, Used::None, Some(HOUR), NextHolders::Exclusive, clock),
        vec![
            layout.held_before(NextHolders::Exclusive, identity.clone(), &id),
            layout.held_beside(identity.clone(), &id),
        ],
        vec![
            layout.renewable_beside_others(std::slice::from_ref(&lease), HOUR),
            layout.acquisition(&reading("$id"), true),
        ],
        layout.renew_beside_others(&[lease.clone(), short.clone()]),
        layout.renew(std::slice::from_ref(&lease)),
        layout.renew(&[lease.clone(), short]),
        layout.force_release("$why", Victims::All),
        vec![layout.acquisition(&queueing("$id"), true), layout.released(&id), layout.state(), layout.keyed_state()],
        vec![layout.renewable(&[lease], HOUR), layout.purge_index().0, layout.waiters()],
        layout.committed(write, Used::Unknown, None, clock),
        vec![layout.writable(identity, write), layout.wrote_before(write, true)],
        vec![layout.refreshable(&tickets, HOUR), layout.refresh(), layout.ticket_states(&tickets)],
    ];
    pipelines.concat().iter().map(ToString::to_string).collect()
}

/// Returns whether a pipeline contains the path or the value of a field.
fn mentions(text: &str, field: &str) -> bool {
    text.contains(&format!("\"{field}\"")) || text.contains(&format!("\"${field}\""))
}

#[test]
fn a_prefix_moves_every_field() {
    let (top, within) = (Layout::new(""), Layout::new("lock."));
    let (top, within) = (everything(&top, CLUSTER), everything(&within, CLUSTER));
    let fields = [
        TOKEN,
        TOKENS,
        ACQUIRED_AT,
        EXPIRES_AT,
        TTL,
        QUEUE,
        PASSED,
        CLOSED_UNTIL,
        LAST_RELEASED,
        RELEASED,
        WRITTEN,
        REVOKED,
        AUDIT,
        HOLDERS,
        holders::GRANTS,
        STEP,
        DO,
    ];
    for field in fields {
        assert!(mentions(&top, field), "{field} is not used");
        assert!(mentions(&within, &format!("lock.{field}")), "{field} did not move");
        assert!(!within.contains(&format!("\"${field}\"")), "{field} is read from the top");
    }
}

#[test]
fn the_tokens_of_a_batch_follow_the_clock() {
    let epoch = Duration::from_secs(EPOCH.unsigned_abs());
    assert_eq!(token_at(epoch), 0);
    let later = token_at(epoch + Duration::from_millis(1_500));
    assert_eq!(later, SECOND + 500 * MILLISECOND);
    assert!(time_of(later).timestamp_millis() <= (EPOCH + 1) * 1_000 + 500);
    assert_eq!(last_of(later, &attempt("a")), later + 6);
}

#[test]
fn a_standalone_never_uses_the_cluster_time() {
    let layout = Layout::new("");
    assert!(everything(&layout, CLUSTER).contains("$$CLUSTER_TIME"));
    assert!(!everything(&layout, WALL).contains("$$CLUSTER_TIME"));
}

#[test]
fn no_pipeline_replaces_a_whole_record() {
    let layout = Layout::new("");
    let id = AcquisitionId::new("id");
    let pipelines = [
        layout.acquire(&queueing("id"), CLUSTER),
        layout.acquire(&reading("id"), CLUSTER),
        layout.release(&leaving(&id, Used::Unknown, None), NextHolders::OfAnyMode, CLUSTER),
        layout.release(&leaving(&id, Used::Unknown, None), NextHolders::Exclusive, CLUSTER),
        layout.renew_beside_others(&[]),
        layout.force_release("why", Victims::All),
        layout.force_release("why", Victims::Owner("owner")),
    ];
    for stage in pipelines.concat() {
        let name = stage.keys().next().unwrap();
        assert!(matches!(name.as_str(), "$set" | "$unset"), "{stage}");
    }
}

#[test]
fn values_of_callers_are_literal() {
    let layout = Layout::new("");
    let id = AcquisitionId::new("$$ROOT");
    let mut stages = layout.acquire(&queueing("$$ROOT"), CLUSTER);
    stages.extend(layout.acquire(&reading("$$ROOT"), CLUSTER));
    for next in [NextHolders::Exclusive, NextHolders::OfAnyMode] {
        stages.extend(layout.release(&leaving(&id, Used::Unknown, Some(HOUR)), next, CLUSTER));
        stages.extend(layout.pass(&id, Used::Unknown, Some(HOUR), next, CLUSTER));
    }
    stages.extend([layout.acquisition(&queueing("$$ROOT"), false), layout.released(&id)]);
    for stage in stages {
        let text = stage.to_string();
        // One literal contains all remarks.
        let remarks = "{ \"$literal\": [{ \"k\": \"$$ROOT\", \"v\": \"$$ROOT\" }] }";
        let text = text.replace(remarks, "");
        assert_eq!(text.matches("$$ROOT").count(), text.matches("{ \"$literal\": \"$$ROOT\" }").count(), "{text}");
    }
}

#[test]
fn the_times_of_a_ticket_are_bounded() {
    let endless = Ticket::new(Duration::MAX, Duration::MAX, u32::MAX);
    let attempt = attempt("id").with_ticket(endless).with_turn_window(Duration::MAX);
    let text = format!("{:?}", Layout::new("").acquire(&attempt, CLUSTER));
    assert!(!text.contains(&i64::MAX.to_string()), "{text}");
}

#[test]
fn the_decoder_reads_every_field_where_it_is() {
    let provider = ProviderId::random();
    let text: String = Subject::pipeline(&[Subject::new("c", Layout::new("lock."), provider)])
        .iter()
        .map(ToString::to_string)
        .collect();
    for field in
        [LOCK_ID, TOKEN, PASSED, EXPIRES_AT, LAST_RELEASED, REVOKED, EXPIRED, CLOSED_UNTIL, AUDIT, holders::GRANTS]
    {
        assert!(text.contains(&format!("\"lock.{field}\"")), "{field} by its path");
        assert!(text.contains(&format!("\"$fullDocument.lock.{field}\"")), "{field} of a whole document");
    }
    assert!(text.contains(&format!("^(?:{provider})-")));
}

/// The server applies only the first stage to its log, and makes an event of what it leaves.
#[test]
fn grants_to_others_are_left_out_at_the_log() {
    let provider = ProviderId::random();
    let stages = Subject::pipeline(&[Subject::new("c", Layout::new(""), provider)]);
    let first = stages[0].to_string();
    for (field, own) in [(LOCK_ID, "^"), (holders::GRANTS, "(?:^|;)")] {
        let set = format!("\"updateDescription.updatedFields.{field}\": {{ \"$in\": [");
        let conditions: Vec<&str> = first.split(&set).skip(1).collect();
        assert_eq!(conditions.len(), 1, "{field}: {first}");
        assert!(
            conditions[0].split(']').next().unwrap().contains(&format!("{own}(?:{provider})-")),
            "{field}: {first}"
        );
    }
}

#[test]
fn a_reason_is_cut_between_characters() {
    assert_eq!(cut("short", 1024), "short");
    assert_eq!(cut("éé", 3), "é");
    assert_eq!(cut("é", 1), "");
}
