//! What changes mean to one provider, in the shapes in which the server's filter sends them.

use mongodb::bson::{from_document, oid::ObjectId};

use super::*;

struct Heard {
    provider: ProviderId,
    hints: Hints,
}

impl Heard {
    fn new() -> Self {
        let provider = ProviderId::random();
        Self { provider, hints: Hints::new(Layout::new(""), provider) }
    }

    fn own(&self, id: &str) -> String {
        format!("{}-{id}", self.provider)
    }

    fn told(&self, kind: &str, id: impl Into<Bson>, lease: Document) -> Vec<String> {
        let change = doc! { "_id": { "_data": "00" }, "operationType": kind, "documentKey": { "_id": id.into() }, "lease": { Layout::new("").slot(): lease } };
        let change: Told = from_document(change).unwrap();
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
        self.hints.read(&change).into_iter().map(word).collect()
    }
}

fn until(millis: i64) -> DateTime {
    DateTime::from_millis(millis)
}

#[test]
fn a_grant_is_told_with_its_block_and_end() {
    let heard = Heard::new();
    let grant =
        doc! { "holder": heard.own("a"), "token": 12_i64, "passed": 10_i64, "expiresAt": until(5000), "released": "b" };
    for kind in [UPDATE, REPLACE] {
        assert_eq!(heard.told(kind, "k", grant.clone()), ["granted own-a 10 3 until 5000"]);
    }
    // An end that is the same as before is not told, and what cannot be is asked about.
    for broken in [
        doc! { "expiresAt": Bson::Null },
        doc! { "passed": 13_i64 },
        doc! { "passed": "$x" },
        doc! { "passed": i64::MIN },
        doc! { "expiresAt": "tomorrow" },
    ] {
        let mut grant = grant.clone();
        grant.extend(broken);
        assert_eq!(heard.told(UPDATE, "k", grant), ["freed k"]);
    }
    let mut foreign = grant.clone();
    foreign.insert("holder", "somebody");
    assert!(heard.told(UPDATE, "k", foreign).is_empty());
    let mut taken = grant;
    taken.remove("passed");
    assert!(heard.told(UPDATE, "k", taken).is_empty(), "who took it knows");
}

#[test]
fn losses_are_told() {
    let heard = Heard::new();
    let forced = doc! { "revoked": heard.own("a"), "token": 8_i64 };
    assert_eq!(heard.told(UPDATE, "k", forced.clone()), ["gone own-a force_released by 8", "freed k"]);
    let mut whole = forced.clone();
    whole.extend(doc! { "released": "b", "lastForced": 7_i64 });
    assert_eq!(heard.told(REPLACE, "k", whole.clone()), ["gone own-a force_released by 8", "freed k"]);
    // Long ago: others have held it since.
    whole.insert("token", 11_i64);
    assert_eq!(heard.told(REPLACE, "k", whole), ["freed k"]);
    assert_eq!(heard.told(UPDATE, "k", doc! { "revoked": "others", "token": 8_i64 }), ["freed k"]);

    let taken_over = doc! { "holder": "b", "token": 9_i64, "expired": heard.own("a") };
    assert_eq!(heard.told(UPDATE, "k", taken_over), ["gone own-a gone by 9"]);
    let by_hand = doc! { "holder": "b", "expired": heard.own("a") };
    assert_eq!(heard.told(UPDATE, "k", by_hand), ["gap"]);
}

#[test]
fn what_is_not_a_record_any_more() {
    let heard = Heard::new();
    for end in [DROP, RENAME, "dropDatabase", "invalidate"] {
        assert_eq!(heard.told(end, "k", doc! {}), ["gap"]);
    }
    assert_eq!(heard.told(DELETE, "k", doc! {}), ["freed k"]);
    assert_eq!(heard.told(REPLACE, "k", doc! {}), ["freed k"]);
    assert_eq!(heard.told(REPLACE, "k", doc! { "token": "seven" }), ["gap"]);
    for id in [Bson::from(7), ObjectId::new().into(), "".into()] {
        assert!(heard.told(DELETE, id, doc! {}).is_empty(), "not a key");
    }
}
