//! The events of an operator, from changes in the forms of different servers.

use super::*;
use crate::bson::{from_document, to_bson};

struct Events(Watcher);

impl Events {
    fn new(prefix: &'static str) -> Self {
        Self(Watcher::new(Layout::new(prefix)))
    }

    fn change(&mut self, kind: &str, id: impl Into<Bson>, more: Document) -> Vec<String> {
        let mut change = doc! { "_id": { "_data": "00" }, "operationType": kind, "documentKey": { "_id": id.into() } };
        change.extend(more);
        let change: ChangeStreamEvent<Document> = from_document(change).unwrap();
        let word = |event: LockEvent| match event {
            LockEvent::Granted { id, token, owner, mode: Mode::Exclusive, .. } => {
                format!("granted {id} {token} {owner:?}")
            }
            LockEvent::Granted { id, token, owner, mode, .. } => format!("granted {id} {token} {owner:?} {mode}"),
            event => event.id().map_or("gap".into(), |id| format!("{} {id}", event.as_str())),
        };
        self.0.events(&change).into_iter().map(word).collect()
    }

    fn update(&mut self, updated: Document, removed: &[&str]) -> Vec<String> {
        let update = doc! { "updatedFields": updated, "removedFields": to_bson(removed).unwrap() };
        self.change("update", "k", doc! { "updateDescription": update })
    }

    fn replace(&mut self, full: Document) -> Vec<String> {
        self.change("replace", "k", doc! { "fullDocument": full })
    }
}

#[test]
fn updates_report_the_life_of_a_lease() {
    let mut watcher = Events::new("");
    // Older processes make the records of new keys before they take them (R24).
    let unused = doc! { "_id": "k", "fencingToken": 0_i64, "tokens": 1 };
    assert!(watcher.change("insert", "k", doc! { "fullDocument": unused }).is_empty());
    let first = doc! { "_id": "k", "lockId": "a", "fencingToken": 7_i64, "owner": "o" };
    assert_eq!(watcher.change("insert", "k", doc! { "fullDocument": first }), ["granted a 7 Some(\"o\")"]);
    let taken_over = doc! { "lockId": "b", "fencingToken": 8_i64, "expired": "a" };
    assert_eq!(watcher.update(taken_over, &[]), ["expired a", "granted b 8 Some(\"o\")"]);
    assert_eq!(watcher.update(doc! { "lastReleased": "b" }, &["lockId", "owner", "expired"]), ["released b"]);
    assert_eq!(watcher.update(doc! { "lockId": "c", "fencingToken": 9_i64 }, &[]), ["granted c 9 None"]);
    let forced = doc! { "revoked": "c", "fencingToken": 10_i64, "audit.0.lockId": "c" };
    assert_eq!(watcher.update(forced, &["lockId"]), ["force_released c"]);
}

#[test]
fn a_writer_does_not_have_the_owner_of_the_reader_before() {
    let mut watcher = Events::new("");
    let reader = doc! { "id": "a", "token": 7_i64, "shared": true, "owner": "o" };
    let shared = doc! { "lockId": "shared", "fencingToken": 7_i64, "grants": "+a 7 1 5000 s;", "holders": [reader] };
    assert_eq!(watcher.update(shared, &[]), ["granted a 7 Some(\"o\") shared"]);
    let handed = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "a" };
    assert_eq!(watcher.update(handed, &["holders", "grants"]), ["released a", "granted b 8 None"]);
}

#[test]
fn a_hand_over_is_a_release_and_a_grant() {
    let mut watcher = Events::new("");
    let handed = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "a" };
    assert_eq!(watcher.update(handed.clone(), &[]), ["released a", "granted b 8 None"]);
    let mut watcher = Events::new("");
    assert_eq!(watcher.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(watcher.replace(handed.clone()), ["released a", "granted b 8 None"]);
    // Without an earlier change: `passed` distinguishes a grant by a release from one after it.
    assert_eq!(Events::new("").replace(handed.clone()), ["granted b 8 None"]);
    let mut passed = handed;
    passed.insert("passed", 8_i64);
    assert_eq!(Events::new("").replace(passed), ["released a", "granted b 8 None"]);
}

#[test]
fn a_replaced_record_is_read_by_its_previous_state() {
    let mut watcher = Events::new("");
    let held = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "z", "revoked": "y", "expired": "a" };
    assert_eq!(watcher.replace(held.clone()), ["expired a", "granted b 8 None"]);
    assert!(watcher.replace(held).is_empty(), "the lease has not changed");
    let forced = doc! { "fencingToken": 9_i64, "lastReleased": "z", "revoked": "b", "audit": [{ "token": 8_i64 }] };
    assert_eq!(watcher.replace(forced.clone()), ["force_released b"]);
    // Without an earlier change: the token distinguishes a forced release from an earlier one.
    assert_eq!(Events::new("").replace(forced.clone()), ["force_released b"]);
    let mut released = forced;
    released.insert("fencingToken", 11_i64);
    released.insert("lastReleased", "c");
    assert_eq!(Events::new("").replace(released), ["released c"]);
}

#[test]
fn a_sub_document_is_reported_by_path_or_whole() {
    let mut watcher = Events::new("lock.");
    let by_path = doc! { "lock.lockId": "a", "lock.fencingToken": 7_i64, "lock.owner": "o", "n": 1 };
    assert_eq!(watcher.update(by_path, &[]), ["granted a 7 Some(\"o\")"]);
    let whole = doc! { "lock": { "fencingToken": 7_i64, "lastReleased": "a" } };
    assert_eq!(watcher.update(whole, &[]), ["released a"]);
    let inside = doc! { "lock": { "lockId": "b", "fencingToken": 8_i64 }, "lockId": "of the application" };
    assert_eq!(watcher.replace(inside), ["granted b 8 None"]);
    assert!(Events::new("lock.").replace(doc! { "lock": "of the application" }).is_empty());
}

#[test]
fn an_unexplained_change_is_a_gap_and_a_foreign_one_is_ignored() {
    let mut watcher = Events::new("");
    assert_eq!(watcher.update(doc! { "note": "by hand" }, &["lockId"]), ["gap"]);
    assert_eq!(watcher.change("drop", "k", doc! {}), ["gap"]);
    assert_eq!(watcher.change("invalidate", "k", doc! {}), ["gap"]);
    assert!(watcher.change("insert", 7, doc! { "fullDocument": { "_id": 7, "lockId": "a" } }).is_empty());
    assert!(watcher.change("delete", "k", doc! {}).is_empty());
    assert_eq!(watcher.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(watcher.change("delete", "k", doc! {}), ["expired a"]);
    assert!(watcher.change("delete", "k", doc! {}).is_empty());
}

#[test]
fn updates_report_several_holders() {
    let mut watcher = Events::new("");
    let holder = |id: &str| doc! { "id": id, "token": 7_i64, "shared": true, "owner": "o" };
    let first =
        doc! { "lockId": "shared", "fencingToken": 7_i64, "grants": "+a 7 1 5000 s;", "holders": [holder("a")] };
    assert_eq!(watcher.update(first, &[]), ["granted a 7 Some(\"o\") shared"]);
    let joined = doc! { "fencingToken": 10_i64, "grants": "+b 8 3 5000 s;", "holders.1": holder("b") };
    assert_eq!(watcher.update(joined, &[]), ["granted b 10 Some(\"o\") shared"]);
    assert_eq!(watcher.update(doc! { "lastReleased": "a", "holders": [holder("b")] }, &[]), ["released a"]);
    let run = doc! { "lastReleased": "b", "grants": "c 11 1 5000 1/3;d 12 1 5000 2/3;" };
    assert_eq!(
        watcher.update(run, &[]),
        ["released b", "granted c 11 None 1 of 3 permits", "granted d 12 None 2 of 3 permits"]
    );
    assert_eq!(watcher.update(doc! { "revoked": "c", "fencingToken": 13_i64 }, &[]), ["force_released c"]);
    let kept = doc! { "lastReleased": "d", "grants": "~d;" };
    assert_eq!(watcher.update(kept, &[]), ["released d"]);
    let taken = doc! { "lockId": "e", "fencingToken": 14_i64, "expired": "x;y" };
    assert_eq!(watcher.update(taken, &["holders", "grants"]), ["expired x", "expired y", "granted e 14 None"]);
}

#[test]
fn a_whole_record_tells_which_of_several_holders_is_new_and_which_is_gone() {
    let mut watcher = Events::new("lock.");
    let holder = |id: &str, token: i64| doc! { "id": id, "token": token, "take": 1_i64, "of": 5_i64 };
    let whole = |holders: Vec<Document>, more: Document| {
        let mut lock = doc! { "lockId": "shared", "fencingToken": 9_i64, "holders": holders, "grants": "old 1 1 5 s;" };
        lock.extend(more);
        doc! { "_id": "k", "lock": lock }
    };
    let (a, b, c) = (holder("a", 7), holder("b", 8), holder("c", 9));
    let granted = |id: &str, token: i64| format!("granted {id} {token} None 1 of 5 permits");
    assert_eq!(watcher.replace(whole(vec![a.clone(), b.clone()], doc! {})), [granted("a", 7), granted("b", 8)]);
    assert!(watcher.replace(whole(vec![a.clone(), b.clone()], doc! {})).is_empty(), "renewed");
    let released = doc! { "lastReleased": "a", "released": ["a", "z"] };
    assert_eq!(watcher.replace(whole(vec![b.clone(), c.clone()], released)), ["released a".into(), granted("c", 9)]);
    let mut kept = b;
    kept.insert("kept", true);
    let both = doc! { "lastReleased": "b", "released": ["b"], "revoked": "x;c" };
    assert_eq!(watcher.replace(whole(vec![kept], both)), ["released b", "force_released c"]);
    let whole = doc! { "lock": { "lockId": "d", "fencingToken": 12_i64, "lastReleased": "b" } };
    assert_eq!(watcher.update(whole, &[]), ["granted d 12 None"]);
}
