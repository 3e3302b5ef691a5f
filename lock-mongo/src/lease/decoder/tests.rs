//! The events of one provider, from changes in the form of the server's filter.

use mongodb::bson::oid::ObjectId;

use super::*;
use crate::bson::from_document;

struct Events {
    provider: ProviderId,
    decoder: EventDecoder,
}

impl Events {
    fn new() -> Self {
        let provider = ProviderId::random();
        Self { provider, decoder: EventDecoder::new(Layout::new(""), provider) }
    }

    fn own(&self, id: &str) -> String {
        format!("{}-{id}", self.provider)
    }

    fn read(&self, kind: &str, id: impl Into<Bson>, lease: Document) -> Vec<String> {
        let change = doc! { "_id": { "_data": "00" }, "operationType": kind, "documentKey": { "_id": id.into() }, "lease": { Layout::new("").slot(): lease } };
        let change: ReportedChange = from_document(change).unwrap();
        let word = |event: StoreEvent| match event {
            StoreEvent::Freed { key } => format!("freed {key}"),
            StoreEvent::Granted { id, grant, expires_at, .. } => {
                let until = expires_at.saturating_since(StoreTime::since_origin(std::time::Duration::ZERO));
                let id = id.as_str().replace(&self.provider.to_string(), "own");
                format!("granted {id} {} {} until {}", grant.token, grant.tokens, until.as_millis())
            }
            StoreEvent::Gone { id, token, loss, .. } => {
                format!("gone {} {} by {token}", id.as_str().replace(&self.provider.to_string(), "own"), loss.as_str())
            }
            StoreEvent::Gap => "gap".into(),
            _ => "unknown".into(),
        };
        self.decoder.read(&change).into_iter().map(word).collect()
    }
}

fn until(millis: i64) -> DateTime {
    DateTime::from_millis(millis)
}

#[test]
fn a_grant_is_reported_with_its_block_and_end() {
    let events = Events::new();
    let grant = doc! { "holder": events.own("a"), "token": 12_i64, "passed": 10_i64, "expiresAt": until(5000), "released": "b" };
    for kind in [UPDATE, REPLACE] {
        assert_eq!(events.read(kind, "k", grant.clone()), ["granted own-a 10 3 until 5000"]);
    }
    // An end that equals the previous one is missing; then, and if it makes no sense, the waiter
    // queries the store.
    for broken in [
        doc! { "expiresAt": Bson::Null },
        doc! { "passed": 13_i64 },
        doc! { "passed": "$x" },
        doc! { "passed": i64::MIN },
        doc! { "expiresAt": "tomorrow" },
    ] {
        let mut grant = grant.clone();
        grant.extend(broken);
        assert_eq!(events.read(UPDATE, "k", grant), ["freed k"]);
    }
    let mut foreign = grant.clone();
    foreign.insert("holder", "another");
    assert!(events.read(UPDATE, "k", foreign).is_empty());
    let mut taken = grant;
    taken.remove("passed");
    assert!(events.read(UPDATE, "k", taken).is_empty(), "the holder took it itself");
}

#[test]
fn losses_are_reported() {
    let events = Events::new();
    let forced = doc! { "revoked": events.own("a"), "token": 8_i64 };
    assert_eq!(events.read(UPDATE, "k", forced.clone()), ["gone own-a force_released by 8", "freed k"]);
    let mut whole = forced.clone();
    whole.extend(doc! { "released": "b", "lastForced": 7_i64 });
    assert_eq!(events.read(REPLACE, "k", whole.clone()), ["gone own-a force_released by 8", "freed k"]);
    // An earlier loss: others have held the key since.
    whole.insert("token", 11_i64);
    assert_eq!(events.read(REPLACE, "k", whole), ["freed k"]);
    assert_eq!(events.read(UPDATE, "k", doc! { "revoked": "others", "token": 8_i64 }), ["freed k"]);

    let taken_over = doc! { "holder": "b", "token": 9_i64, "expired": events.own("a") };
    assert_eq!(events.read(UPDATE, "k", taken_over), ["gone own-a gone by 9"]);
    let by_hand = doc! { "holder": "b", "expired": events.own("a") };
    assert_eq!(events.read(UPDATE, "k", by_hand), ["gap"]);
}

#[test]
fn grants_to_several_are_reported() {
    let events = Events::new();
    let (a, b) = (events.own("a"), events.own("b"));
    let grants = format!("x-1 9 1 5000 s;{a} 10 3 6000 s;+{b} 13 1 7000 s;");
    let run = doc! { "grants": grants, "token": 13_i64, "released": "c" };
    assert_eq!(events.read(UPDATE, "k", run.clone()), ["granted own-a 10 3 until 6000"]);
    let mut from_exclusive = run;
    from_exclusive.insert("holder", "shared");
    for kind in [UPDATE, REPLACE] {
        assert_eq!(events.read(kind, "k", from_exclusive.clone()), ["granted own-a 10 3 until 6000"]);
    }
    assert_eq!(events.read(UPDATE, "k", doc! { "grants": "~x-1;", "released": "x-1" }), ["freed k"], "a minimum hold");
    assert!(events.read(UPDATE, "k", doc! { "grants": 7 }).is_empty());
}

#[test]
fn losses_of_several_are_reported() {
    let events = Events::new();
    let revoked = format!("x-1;{};{}", events.own("a"), events.own("b"));
    let forced = doc! { "revoked": revoked, "token": 8_i64 };
    let gone = ["gone own-a force_released by 8", "gone own-b force_released by 8", "freed k"];
    assert_eq!(events.read(UPDATE, "k", forced.clone()), gone);
    let mut whole = forced;
    whole.extend(doc! { "holder": "shared", "released": "c", "lastForced": 7_i64 });
    assert_eq!(events.read(REPLACE, "k", whole.clone()), gone, "others stay");
    whole.insert("lastForced", 6_i64);
    assert!(events.read(REPLACE, "k", whole).is_empty(), "an earlier loss");
    let expired = doc! { "holder": "shared", "expired": format!("x-1;{}", events.own("a")), "token": 9_i64, "grants": "+y-1 9 1 5 s;" };
    assert_eq!(events.read(UPDATE, "k", expired), ["gone own-a gone by 9"]);
}

#[test]
fn removed_and_replaced_records_are_reported() {
    let events = Events::new();
    for end in [DROP, RENAME, "dropDatabase", "invalidate"] {
        assert_eq!(events.read(end, "k", doc! {}), ["gap"]);
    }
    assert_eq!(events.read(DELETE, "k", doc! {}), ["freed k"]);
    assert_eq!(events.read(REPLACE, "k", doc! {}), ["freed k"]);
    assert_eq!(events.read(REPLACE, "k", doc! { "token": "seven" }), ["gap"]);
    for id in [Bson::from(7), ObjectId::new().into(), "".into()] {
        assert!(events.read(DELETE, id, doc! {}).is_empty(), "not a key");
    }
}
