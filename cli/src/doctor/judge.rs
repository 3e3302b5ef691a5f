//! What the facts of an examination mean. No I/O.

use std::time::Duration;

use distlock::mongodb::mongodb::bson::Document;

use super::finding::Finding;
use crate::duration::show;

/// The kind of a deployment, as `hello` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Standalone,
    ReplicaSet { members: usize, arbiters: usize },
    Sharded,
}

/// Judges the kind of the deployment, and says which of its members can be reached.
pub(crate) fn deployment(kind: Kind, clocks: &[MemberClock], unreachable: &[String]) -> Finding {
    let kind_alone = of_kind(kind);
    if !matches!(kind, Kind::ReplicaSet { .. }) {
        return kind_alone;
    }
    let reached: Vec<&str> = clocks.iter().map(|clock| &*clock.member).collect();
    let found = format!("{}; reached from here: {}", kind_alone.found, listed(&reached));
    if unreachable.is_empty() {
        return Finding { found, ..kind_alone };
    }
    let unreachable: Vec<&str> = unreachable.iter().map(|member| &**member).collect();
    let found = format!("{found}; not reached: {}", listed(&unreachable));
    let advice = "see that these members are up, and can be reached from here: no lock is granted without a majority \
                  of the members";
    Finding::warning(kind_alone.check, found, advice)
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn of_kind(kind: Kind) -> Finding {
    let check = "deployment";
    match kind {
        Kind::Standalone => Finding::warning(
            check,
            "a standalone server",
            "convert it to a replica set, of one member at least: waiters must poll here, operators cannot watch, and \
             there is no fail-over",
        ),
        Kind::Sharded => Finding::warning(
            check,
            "a sharded cluster",
            "keep the lock collection unsharded, or sharded by _id; locks on sharded clusters are not tested",
        ),
        Kind::ReplicaSet { members, arbiters: 1.. } => Finding::warning(
            check,
            format!("a replica set of {members} members with data and an arbiter"),
            "replace the arbiter by a member with data: while one member with data is down, no lock can be granted",
        ),
        Kind::ReplicaSet { members: members @ ..3, .. } => Finding::warning(
            check,
            format!("a replica set of {members} member{}", if members == 1 { "" } else { "s" }),
            "use three members: with fewer, locks stop whenever one of them is down",
        ),
        Kind::ReplicaSet { members, .. } => Finding::ok(check, format!("a replica set of {members} members")),
    }
}

/// Judges the version of the server.
pub(crate) fn version(text: &str) -> Finding {
    let check = "version";
    let found = format!("MongoDB {text}");
    let release = text.split(['-', '+']).next().unwrap_or_default();
    let mut parts = release.split('.').map_while(|part| part.parse::<u32>().ok());
    let (Some(major), minor, patch) = (parts.next(), parts.next().unwrap_or(0), parts.next().unwrap_or(0)) else {
        return Finding::warning(check, found, "the version cannot be read: locks need MongoDB 6.0 or later");
    };
    let mended = advisories(major, minor, patch);
    match (major, minor) {
        (..6, _) => Finding::wrong(check, found, "upgrade to MongoDB 7.0 or later: locks need 6.0 at least"),
        (6, _) => Finding::warning(
            check,
            found,
            "upgrade to MongoDB 7.0.41 or later: locks work, but MongoDB ended its support of 6.0 in July 2025, and \
             CVE-2026-82058 is not mended in it",
        ),
        _ if mended.is_some() => Finding::warning(check, found, mended.unwrap_or_default()),
        (7, _) => Finding::ok(check, format!("{found}, supported until August 2027")),
        (8, 0) => Finding::ok(check, format!("{found}, supported until October 2029")),
        _ => Finding::ok(check, found),
    }
}

/// Returns what to do about an advisory of MongoDB that is not mended in this version.
fn advisories(major: u32, minor: u32, patch: u32) -> Option<String> {
    /// The first versions with both mended.
    const MENDED: [(u32, u32, u32); 3] = [(7, 0, 41), (8, 0, 30), (8, 3, 13)];

    let version = (major, minor, patch);
    // A release between these has no version of its own that is mended.
    let next = MENDED.iter().find(|mended| version < **mended)?;
    if MENDED.iter().any(|mended| (mended.0, mended.1) == (major, minor) && version >= *mended) {
        return None;
    }
    let is_stale = version < (8, 3, 9);
    let is_affected = ((8, 3, 0)..=(8, 3, 12)).contains(&version);
    let names = match (is_stale, is_affected) {
        (true, true) => "CVE-2026-82058 and SERVER-131805 are",
        (true, false) => "CVE-2026-82058 is",
        _ => "SERVER-131805 is",
    };
    Some(format!("upgrade to MongoDB {}.{}.{} or later, in which {names} mended", next.0, next.1, next.2))
}

/// A privilege of locks, and what is missing without it.
struct Privilege {
    action: &'static str,
    is_needed: bool,
    without: &'static str,
}

const PRIVILEGES: [Privilege; 6] = [
    Privilege { action: "find", is_needed: true, without: "nothing works" },
    Privilege { action: "insert", is_needed: true, without: "nothing works" },
    Privilege { action: "update", is_needed: true, without: "nothing works" },
    Privilege { action: "createIndex", is_needed: false, without: "records are not removed" },
    Privilege { action: "changeStream", is_needed: false, without: "waiters poll, and `watch` does not work" },
    Privilege { action: "listIndexes", is_needed: false, without: "a wrong collation or TTL index is not noticed" },
];

/// Judges the privileges, as `connectionStatus` lists them, on a collection of locks or outcomes.
pub(crate) fn privileges(status: &Document, of: &str, database: &str, collection: &str) -> Finding {
    let check = "privileges";
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    if info.get_array("authenticatedUsers").is_ok_and(Vec::is_empty) {
        return Finding::warning(
            check,
            "no user: the server has no access control, or the connection string names no user",
            "give applications a user with the role in the guide `privileges`",
        );
    }
    let listed = info.get_array("authenticatedUserPrivileges").cloned().unwrap_or_default();
    let held = |action: &str| {
        listed.iter().filter_map(|one| one.as_document()).any(|one| {
            let covers = one.get_document("resource").is_ok_and(|resource| covers(resource, database, collection));
            let allowed = one.get_array("actions").is_ok_and(|all| all.iter().any(|one| one.as_str() == Some(action)));
            covers && allowed
        })
    };
    let missing: Vec<&Privilege> = PRIVILEGES.iter().filter(|privilege| !held(privilege.action)).collect();
    if missing.is_empty() {
        return Finding::ok(check, format!("all that {of} need on {database}.{collection}"));
    }
    let named: Vec<_> = missing.iter().map(|one| format!("{} ({})", one.action, one.without)).collect();
    let actions: Vec<_> = missing.iter().map(|one| one.action).collect();
    let found = format!("missing on {database}.{collection}: {}", named.join(", "));
    let advice = format!("grant {} to the user's role", actions.join(", "));
    if missing.iter().any(|privilege| privilege.is_needed) {
        Finding::wrong(check, found, advice)
    } else {
        Finding::warning(check, found, advice)
    }
}

/// Whether the resource of a privilege includes a collection. Empty names mean all.
fn covers(resource: &Document, database: &str, collection: &str) -> bool {
    if resource.get_bool("anyResource").unwrap_or(false) {
        return true;
    }
    let matches = |name: &str, wanted: &str| resource.get_str(name).is_ok_and(|own| own.is_empty() || own == wanted);
    matches("db", database) && matches("collection", collection)
}

/// An index: its name, and its time to live if it removes documents.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) name: String,
    pub(crate) expires: bool,
}

/// Judges the indexes of the lock collection.
pub(crate) fn indexes(indexes: &[Index]) -> Finding {
    const PURGE: &str = "distlock_purge";
    const OWNER: &str = "distlock_owner";
    // Of keys that are not held exclusively.
    const OWNERS: &str = "distlock_owners";
    let check = "indexes";
    if let Some(other) = expiring(indexes, &[PURGE]) {
        return Finding::wrong(
            check,
            format!("the TTL index {:?} is not of distlock, and may remove records of locks", other.name),
            "drop it: tokens can repeat, and held locks can be lost",
        );
    }
    let create = "give a user createIndex, and take a lock, or create them as the guide `privileges` shows";
    if !missing(indexes, &[PURGE]).is_empty() {
        return Finding::warning(check, format!("{PURGE} is missing: records of locks are not removed"), create);
    }
    let missing = missing(indexes, &[OWNER, OWNERS]);
    if !missing.is_empty() {
        let found = format!("{} is missing: the locks of an owner are found slowly", missing.join(", "));
        return Finding::warning(check, found, create);
    }
    Finding::ok(check, format!("{PURGE}, {OWNER}, {OWNERS}"))
}

/// Judges the indexes of the collection of outcomes.
pub(crate) fn once_indexes(indexes: &[Index]) -> Finding {
    const OURS: [&str; 2] = ["distlock_once_done", "distlock_once_open"];
    let check = "onceIndexes";
    if let Some(other) = expiring(indexes, &OURS) {
        return Finding::wrong(
            check,
            format!("the TTL index {:?} is not of these outcomes, and may remove them", other.name),
            "drop it: work that is done can be done again",
        );
    }
    let missing = missing(indexes, &OURS);
    if missing.is_empty() {
        return Finding::ok(check, OURS.join(", "));
    }
    let found = format!("{} is missing: outcomes are not removed when their time is over", missing.join(", "));
    Finding::warning(check, found, "give a user createIndex, and run a command with `run --once`")
}

/// Returns an index that removes documents, other than these.
fn expiring<'a>(indexes: &'a [Index], besides: &[&str]) -> Option<&'a Index> {
    indexes.iter().find(|index| index.expires && !besides.contains(&index.name.as_str()))
}

/// Returns those of the names that no index has.
fn missing<'a>(indexes: &[Index], names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().filter(|name| indexes.iter().all(|index| index.name != *name)).collect()
}

/// Judges the round trips of `ping`.
pub(crate) fn ping(median: Duration, slowest: Duration) -> Finding {
    let found = format!("p50 {}, p99 {}", show(median), show(slowest));
    if slowest < Duration::from_millis(100) {
        return Finding::ok("ping", found);
    }
    let advice = "bring the servers closer, or look for load: each lock waits for some of these round trips";
    Finding::warning("ping", found, advice)
}

/// Judges majority writes, against the ttl that applications use. A lease is renewed every third of
/// it.
pub(crate) fn writes(median: Duration, slowest: Duration, ttl: Duration) -> Finding {
    let check = "majority";
    let found = format!("majority write p50 {}, p99 {} (ttl {})", show(median), show(slowest), show(ttl));
    let needed = show(slowest * 30);
    if slowest >= ttl / 6 {
        let advice = format!("raise the ttl to {needed} at least, or make the servers faster: renewals come too late");
        Finding::wrong(check, found, advice)
    } else if slowest >= ttl / 30 {
        Finding::warning(check, found, format!("raise the ttl to {needed}, or look for load on the servers"))
    } else {
        Finding::ok(check, found)
    }
}

/// The clock of a member, seen from here.
#[derive(Clone, Debug)]
pub(crate) struct MemberClock {
    pub(crate) member: String,
    /// The member's clock, less ours, in milliseconds.
    pub(crate) offset: f64,
    /// By how much the offset may be wrong, in milliseconds.
    pub(crate) error: f64,
}

/// Judges the distance between the members' clocks, against the safety margin.
pub(crate) fn clocks(clocks: &[MemberClock], unreachable: &[String], margin: Duration) -> Finding {
    let check = "clocks";
    let by_offset = |one: &&MemberClock, other: &&MemberClock| one.offset.total_cmp(&other.offset);
    let (Some(first), Some(last)) = (clocks.iter().min_by(by_offset), clocks.iter().max_by(by_offset)) else {
        return Finding::warning(check, "no member's clock could be read", "allow direct connections to the members");
    };
    let margin_millis = margin.as_secs_f64() * 1e3;
    let (distance, error) = (last.offset - first.offset, first.error + last.error);
    let found = match clocks.len() {
        1 => format!("one clock, that of {}", first.member),
        members => format!("{members} clocks, {distance:.0} ms apart (± {error:.0} ms), margin {margin_millis:.0} ms"),
    };
    let advice = format!(
        "run NTP on {} and {}: two holders can overlap after a fail-over while clocks differ by more than the margin",
        first.member, last.member
    );
    if clocks.len() > 1 && distance - error >= margin_millis {
        return Finding::wrong(check, found, advice);
    }
    if !unreachable.is_empty() {
        let found = format!("{found}; not reached: {}", unreachable.join(", "));
        return Finding::warning(check, found, "see that these members are up, and can be reached from here");
    }
    if clocks.len() > 1 && distance + error >= margin_millis / 2.0 {
        return Finding::warning(check, found, advice);
    }
    Finding::ok(check, found)
}

#[cfg(test)]
mod tests {
    use distlock::mongodb::mongodb::bson::doc;

    use super::super::finding::Verdict::{self, Ok, Warning, Wrong};
    use super::*;

    #[test]
    fn versions() {
        for (text, verdict, part) in [
            ("5.0.31", Wrong, "6.0"),
            ("6.0.5", Warning, "July 2025"),
            ("7.0.28", Warning, "7.0.41 or later, in which CVE-2026-82058 is"),
            ("7.0.40", Warning, "7.0.41"),
            ("7.0.41", Ok, "2027"),
            ("8.0.4", Warning, "8.0.30 or later, in which CVE-2026-82058 is"),
            ("8.0.30", Ok, "2029"),
            ("8.2.0-rc1", Warning, "8.3.13 or later, in which CVE-2026-82058 is"),
            ("8.3.0", Warning, "8.3.13 or later, in which CVE-2026-82058 and SERVER-131805 are"),
            ("8.3.8", Warning, "CVE-2026-82058 and"),
            ("8.3.9", Warning, "in which SERVER-131805 is"),
            ("8.3.12", Warning, "in which SERVER-131805 is"),
            ("8.3.13", Ok, "8.3.13"),
            ("8.4.0", Ok, "8.4"),
            ("9.0.1", Ok, "9.0"),
            ("unknown", Warning, "cannot be read"),
        ] {
            let finding = version(text);
            assert_eq!(finding.verdict, verdict, "{text}");
            assert!(finding.lines().contains(part), "{finding:?}");
        }
    }

    #[test]
    fn deployments() {
        for (kind, verdict) in [
            (Kind::ReplicaSet { members: 3, arbiters: 0 }, Ok),
            (Kind::ReplicaSet { members: 5, arbiters: 0 }, Ok),
            (Kind::ReplicaSet { members: 1, arbiters: 0 }, Warning),
            (Kind::ReplicaSet { members: 2, arbiters: 1 }, Warning),
            (Kind::Standalone, Warning),
            (Kind::Sharded, Warning),
        ] {
            assert_eq!(of_kind(kind).verdict, verdict, "{kind:?}");
        }
    }

    #[test]
    fn members_that_cannot_be_reached_are_named() {
        let clock = |member: &str| MemberClock { member: member.to_owned(), offset: 0.0, error: 1.0 };
        let kind = Kind::ReplicaSet { members: 3, arbiters: 0 };
        let all = deployment(kind, &[clock("a:1"), clock("b:1"), clock("c:1")], &[]);
        assert_eq!((all.verdict, &*all.found), (Ok, "a replica set of 3 members; reached from here: a:1, b:1, c:1"));
        let two = deployment(kind, &[clock("a:1"), clock("b:1")], &["c:1".to_owned()]);
        assert_eq!(two.verdict, Warning);
        assert!(two.found.ends_with("reached from here: a:1, b:1; not reached: c:1"), "{}", two.found);
        let alone = deployment(Kind::Standalone, &[clock("the server")], &[]);
        assert_eq!(alone.found, "a standalone server");
    }

    fn status(resource: Document, actions: &[&str]) -> Document {
        let privilege = doc! { "resource": resource, "actions": actions.to_vec() };
        doc! { "authInfo": { "authenticatedUsers": [{ "user": "u" }], "authenticatedUserPrivileges": [privilege] } }
    }

    #[test]
    fn privileges_are_those_of_the_collection() {
        let all = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes"];
        let of = |db: &str, collection: &str| doc! { "db": db, "collection": collection };
        for (status, verdict, part) in [
            (status(of("app", "locks"), &all), Ok, "all"),
            (status(of("app", ""), &all), Ok, "all"),
            (status(of("", ""), &all), Ok, "all"),
            (status(doc! { "anyResource": true }, &all), Ok, "all"),
            (status(doc! { "cluster": true }, &all), Wrong, "find"),
            (status(of("other", "locks"), &all), Wrong, "find"),
            (status(of("app", "locks"), &all[1..]), Wrong, "find (nothing works)"),
            (status(of("app", "locks"), &all[..4]), Warning, "changeStream"),
            (doc! { "authInfo": { "authenticatedUsers": [] } }, Warning, "no user"),
        ] {
            let finding = privileges(&status, "locks", "app", "locks");
            assert_eq!(finding.verdict, verdict, "{status}");
            assert!(finding.found.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn indexes_that_remove_records_are_wrong() {
        let index = |name: &str, expires| Index { name: name.into(), expires };
        let (id, purge, other) = (index("_id_", false), index("distlock_purge", true), index("mine", true));
        let (owner, owners) = (index("distlock_owner", false), index("distlock_owners", false));
        for (list, verdict, named) in [
            (vec![&id, &purge, &owner, &owners], Ok, "distlock_owners"),
            (vec![&id, &owner, &owners], Warning, "distlock_purge"),
            (vec![&id, &purge, &owners], Warning, "distlock_owner is missing"),
            (vec![&id, &purge, &owner], Warning, "distlock_owners is missing"),
            (vec![&id, &purge], Warning, "distlock_owner, distlock_owners"),
            (vec![&id, &purge, &owner, &owners, &other], Wrong, "mine"),
            (vec![], Warning, "distlock_purge"),
        ] {
            let list: Vec<Index> = list.into_iter().cloned().collect();
            let finding = indexes(&list);
            assert_eq!(finding.verdict, verdict, "{list:?}");
            assert!(finding.found.contains(named), "{finding:?}");
        }
    }

    #[test]
    fn indexes_that_remove_outcomes_are_wrong() {
        let index = |name: &str, expires| Index { name: name.into(), expires };
        let (done, open) = (index("distlock_once_done", true), index("distlock_once_open", true));
        for (list, verdict, named) in [
            (vec![&done, &open], Ok, "distlock_once_open"),
            (vec![&done], Warning, "distlock_once_open is missing"),
            (vec![], Warning, "distlock_once_done, distlock_once_open"),
            (vec![&done, &open, &index("distlock_purge", true)], Wrong, "distlock_purge"),
        ] {
            let list: Vec<Index> = list.into_iter().cloned().collect();
            let finding = once_indexes(&list);
            assert_eq!(finding.verdict, verdict, "{list:?}");
            assert!(finding.found.contains(named), "{finding:?}");
        }
    }

    #[test]
    fn writes_are_compared_with_the_ttl() {
        let (ms, ttl) = (Duration::from_millis, Duration::from_secs(30));
        for (slowest, verdict) in [(999, Ok), (1_000, Warning), (4_999, Warning), (5_000, Wrong)] {
            assert_eq!(writes(ms(5), ms(slowest), ttl).verdict, verdict, "{slowest}");
        }
        assert_eq!(ping(ms(1), ms(99)).verdict, Ok);
        assert_eq!(ping(ms(1), ms(100)).verdict, Warning);
    }

    #[test]
    fn clocks_are_compared_with_the_margin() {
        let clock = |offset, error| MemberClock { member: format!("m{offset}"), offset, error };
        let none: &[String] = &[];
        let down = &["m3".to_owned()][..];
        let cases: [(&[MemberClock], &[String], Verdict); 7] = [
            (&[clock(0.0, 1.0), clock(3.0, 1.0), clock(-4.0, 1.0)], none, Ok),
            (&[clock(0.0, 1.0), clock(600.0, 1.0)], none, Warning),
            (&[clock(0.0, 1.0), clock(1_100.0, 1.0)], none, Wrong),
            // Too imprecise to be sure.
            (&[clock(0.0, 300.0), clock(1_100.0, 300.0)], none, Warning),
            (&[clock(0.0, 1.0)], none, Ok),
            (&[clock(0.0, 1.0), clock(3.0, 1.0)], down, Warning),
            (&[], none, Warning),
        ];
        for (list, unreachable, verdict) in cases {
            assert_eq!(clocks(list, unreachable, Duration::from_secs(1)).verdict, verdict, "{list:?}");
        }
    }
}
