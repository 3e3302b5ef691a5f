//! The shape of what is sent; what it does is tested on servers.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn everything(layout: &Layout, clock: Clock) -> String {
    let id = AcquisitionId::new("$id");
    let lease = Extension { key: "$key".into(), id: id.clone(), token: 7, ttl: HOUR };
    let short = Extension { ttl: HOUR / 2, ..lease.clone() };
    let pipelines = [
        layout.acquire(&id, HOUR, 1, &Holder::default(), clock),
        layout.release(&id, Some(HOUR)),
        layout.renew(std::slice::from_ref(&lease)),
        layout.renew(&[lease.clone(), short]),
        layout.force_release("$why"),
        vec![layout.acquisition(&id), layout.released(&id), layout.state(), layout.keyed_state()],
        vec![layout.renewable(&[lease]), layout.purge_index()],
    ];
    pipelines.concat().iter().map(ToString::to_string).collect()
}

/// The path or value of a field as it stands in a pipeline.
fn mentions(text: &str, field: &str) -> bool {
    text.contains(&format!("\"{field}\"")) || text.contains(&format!("\"${field}\""))
}

#[test]
fn a_prefix_moves_every_field() {
    let (top, within) = (Layout::new(""), Layout::new("lock."));
    let (top, within) = (everything(&top, Clock::ClusterTime), everything(&within, Clock::ClusterTime));
    for field in
        [TOKEN, TOKENS, ACQUIRED_AT, EXPIRES_AT, TTL, CLOSED_UNTIL, LAST_RELEASED, RELEASED, REVOKED, AUDIT, STEP]
    {
        assert!(mentions(&top, field), "{field} is not used");
        assert!(mentions(&within, &format!("lock.{field}")), "{field} did not move");
        assert!(!within.contains(&format!("\"${field}\"")), "{field} is read from the top");
    }
}

#[test]
fn a_standalone_never_asks_for_the_cluster_time() {
    let layout = Layout::new("");
    assert!(everything(&layout, Clock::ClusterTime).contains("$$CLUSTER_TIME"));
    assert!(!everything(&layout, Clock::WallTime).contains("$$CLUSTER_TIME"));
}

#[test]
fn nothing_replaces_a_whole_record() {
    let layout = Layout::new("");
    let id = AcquisitionId::new("id");
    let pipelines = [
        layout.acquire(&id, HOUR, 1, &Holder::default(), Clock::ClusterTime),
        layout.release(&id, None),
        layout.force_release("why"),
    ];
    for stage in pipelines.concat() {
        let name = stage.keys().next().unwrap();
        assert!(matches!(name.as_str(), "$set" | "$unset"), "{stage}");
    }
}

#[test]
fn what_a_caller_says_is_literal() {
    let said = Holder::default();
    let text = Layout::new("").acquire(&AcquisitionId::new("$$ROOT"), HOUR, 1, &said, Clock::ClusterTime);
    for stage in text {
        let text = stage.to_string();
        assert_eq!(text.matches("$$ROOT").count(), text.matches("{ \"$literal\": \"$$ROOT\" }").count(), "{text}");
    }
}

#[test]
fn a_reason_is_cut_between_characters() {
    assert_eq!(cut("short", 1024), "short");
    assert_eq!(cut("éé", 3), "é");
    assert_eq!(cut("é", 1), "");
}
