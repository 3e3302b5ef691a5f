//! What is wrong with single records. No I/O.

use distlock::mongodb::mongodb::bson::{Bson, Document};

use super::finding::Finding;

/// How many records a finding names.
const NAMED: usize = 10;
/// A lease ends within 25 days, and a token follows the clock.
const FAR_AHEAD_MILLIS: i64 = 366 * 24 * 60 * 60 * 1000;
/// Tokens count from the beginning of 2025, by 2²¹ per second.
const EPOCH_MILLIS: i64 = 1_735_689_600_000;
const TOKENS_PER_SECOND: i64 = 1 << 21;
/// The longest time that a ticket or a lease can have.
const LONGEST_MILLIS: f64 = i32::MAX as f64;

/// The records of a collection, examined one by one.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    count: usize,
    unreadable: Named,
    far_ahead: Named,
}

/// The first records with a fault, and the number of all.
#[derive(Debug, Default)]
struct Named {
    count: usize,
    first: Vec<String>,
}

impl Named {
    fn push(&mut self, id: &Bson, why: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            let id = id.as_str().map_or_else(|| id.to_string(), |id| format!("{id:?}"));
            self.first.push(format!("{id} ({why})"));
        }
    }

    fn list(&self) -> String {
        let more = self.count - self.first.len();
        let first = self.first.join("; ");
        if more == 0 { first } else { format!("{first}; and {more} more") }
    }
}

impl Examined {
    /// Examines a record: a document, or the field of one. `now` is in milliseconds since 1970.
    pub(crate) fn add(&mut self, id: &Bson, record: &Document, now: i64) {
        self.count += 1;
        if let Some(why) = unreadable(record) {
            self.unreadable.push(id, &why);
        }
        if let Some(why) = far_ahead(record, now) {
            self.far_ahead.push(id, &why);
        }
    }

    /// Judges all of them, of locks or of outcomes.
    pub(crate) fn findings(&self, check: &'static str, namespace: &str) -> Vec<Finding> {
        let Self { count, unreadable, far_ahead } = self;
        let mut findings = Vec::new();
        if unreadable.count > 0 {
            findings.push(Finding::wrong(
                check,
                format!("{} of {count} records of {namespace} cannot be read: {}", unreadable.count, unreadable.list()),
                "find the program that changes them; when no process uses their keys, delete these documents",
            ));
        }
        if far_ahead.count > 0 {
            findings.push(Finding::wrong(
                check,
                format!(
                    "{} of {count} records of {namespace} are more than a year ahead: {}",
                    far_ahead.count,
                    far_ahead.list()
                ),
                "look for a token floor, or tokens, of another scale: such a record is never removed, and a resource \
                 that has seen its token refuses smaller ones. Give the locks a new collection",
            ));
        }
        if findings.is_empty() {
            findings.push(Finding::ok(check, format!("{count} records of {namespace} can be read")));
        }
        findings
    }
}

/// Returns what no record has in this form.
fn unreadable(record: &Document) -> Option<String> {
    match record.get("fencingToken") {
        Some(Bson::Int64(token)) if *token >= 0 => {}
        Some(Bson::Int64(token)) => return Some(format!("`fencingToken` is {token}")),
        None => return Some("it has no `fencingToken`, and is no lock record".to_owned()),
        Some(other) => return Some(wrong_type("fencingToken", other, "a long: it is no lock record")),
    }
    let dates = ["expiresAt", "acquiredAt", "closedUntil"];
    let is_held = record.contains_key("lockId");
    for name in dates {
        match record.get(name) {
            Some(Bson::DateTime(_)) => {}
            None if name != "expiresAt" || !is_held => {}
            None => return Some(format!("it has a holder and no `{name}`")),
            Some(other) => return Some(wrong_type(name, other, "a date")),
        }
    }
    for name in ["lockId", "owner"] {
        match record.get(name) {
            None | Some(Bson::String(_)) => {}
            Some(other) => return Some(wrong_type(name, other, "a string")),
        }
    }
    if let Some(why) = record.get("ttl").and_then(|ttl| odd_time("ttl", ttl)) {
        return Some(why);
    }
    for (list, date, times) in [("queue", "seen", &["ttl", "claim"][..]), ("holders", "expiresAt", &["ttl"])] {
        let entries = match record.get(list) {
            None => continue,
            Some(Bson::Array(entries)) => entries,
            Some(other) => return Some(wrong_type(list, other, "an array")),
        };
        for (at, entry) in entries.iter().enumerate() {
            let name = |field: &str| format!("{list}.{at}.{field}");
            let Bson::Document(entry) = entry else {
                return Some(wrong_type(&format!("{list}.{at}"), entry, "a document"));
            };
            // An empty place of the queue.
            if entry.is_empty() {
                continue;
            }
            match entry.get(date) {
                Some(Bson::DateTime(_)) => {}
                None => return Some(format!("`{}` is missing", name(date))),
                Some(other) => return Some(wrong_type(&name(date), other, "a date")),
            }
            let odd = |field: &&str| entry.get(*field).and_then(|time| odd_time(&name(field), time));
            if let Some(why) = times.iter().find_map(odd) {
                return Some(why);
            }
        }
    }
    None
}

fn wrong_type(name: &str, found: &Bson, wanted: &str) -> String {
    format!("`{name}` is of type {:?}, not {wanted}", found.element_type())
}

/// Returns why a number of milliseconds is none.
fn odd_time(name: &str, time: &Bson) -> Option<String> {
    let millis = match time {
        Bson::Int32(millis) => f64::from(*millis),
        Bson::Int64(millis) => *millis as f64,
        Bson::Double(millis) => *millis,
        other => return Some(wrong_type(name, other, "a number of milliseconds")),
    };
    (!(0.0..=LONGEST_MILLIS).contains(&millis)).then(|| format!("`{name}` is {millis} ms"))
}

/// Returns which date of the record, or which time of its token, lies far ahead.
fn far_ahead(record: &Document, now: i64) -> Option<String> {
    let is_far = |millis: i64| millis > now.saturating_add(FAR_AHEAD_MILLIS);
    for name in ["expiresAt", "closedUntil"] {
        if let Some(Bson::DateTime(date)) = record.get(name)
            && is_far(date.timestamp_millis())
        {
            return Some(format!("`{name}` is in the year {}", year(date.timestamp_millis())));
        }
    }
    let Some(Bson::Int64(token)) = record.get("fencingToken") else { return None };
    let time = (token / TOKENS_PER_SECOND).saturating_mul(1000).saturating_add(EPOCH_MILLIS);
    is_far(time).then(|| format!("the token {token} stands for the year {}", year(time)))
}

fn year(millis: i64) -> i64 {
    const MEAN_YEAR_MILLIS: i64 = 31_556_952_000;
    1970 + millis.div_euclid(MEAN_YEAR_MILLIS)
}

#[cfg(test)]
mod tests {
    use distlock::mongodb::mongodb::bson::{DateTime, doc};

    use super::super::finding::Verdict;
    use super::*;

    /// In the year 2027.
    const NOW: i64 = 1_800_000_000_000;

    fn record() -> Document {
        let (seen, ends) = (DateTime::from_millis(NOW), DateTime::from_millis(NOW + 30_000));
        doc! {
            "lockId": "a", "fencingToken": 134_871_521_361_920_i64, "tokens": 1, "ttl": 30_000, "acquiredAt": seen,
            "expiresAt": ends, "owner": "me",
            "queue": [{ "id": "b", "seen": seen, "ttl": 15_000_i64, "claim": 1_000.0 }, {}],
            "holders": [{ "id": "c", "expiresAt": ends, "ttl": 30_000 }],
        }
    }

    fn of(field: &str, value: impl Into<Bson>) -> Document {
        let mut record = record();
        record.insert(field, value);
        record
    }

    #[test]
    fn records_that_no_process_writes_are_named() {
        let seen = || Bson::from(DateTime::from_millis(NOW));
        assert_eq!(unreadable(&record()), None);
        assert_eq!(unreadable(&doc! { "fencingToken": 1_i64, "expiresAt": seen() }), None, "a free key");
        for (record, part) in [
            (of("fencingToken", 7.0), "Double"),
            (of("fencingToken", -7_i64), "-7"),
            (doc! { "name": "another program's" }, "no lock record"),
            (of("expiresAt", "tomorrow"), "`expiresAt` is of type String"),
            (doc! { "lockId": "a", "fencingToken": 7_i64 }, "no `expiresAt`"),
            (of("ttl", f64::NAN), "`ttl` is NaN"),
            (of("queue", 7), "`queue` is of type Int32"),
            (of("queue", vec![doc! { "id": "b", "seen": seen(), "ttl": f64::INFINITY }]), "`queue.0.ttl` is inf"),
            (of("queue", vec![doc! { "id": "b", "seen": seen(), "ttl": 1e300 }]), "`queue.0.ttl`"),
            (of("queue", vec![doc! { "id": "b", "seen": seen(), "claim": i64::MAX }]), "`queue.0.claim`"),
            (of("queue", vec![doc! { "id": "b", "ttl": 1 }]), "`queue.0.seen` is missing"),
            (of("holders", vec![Bson::Int32(1)]), "`holders.0`"),
        ] {
            let why = unreadable(&record).unwrap_or_else(|| panic!("{record}"));
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn dates_and_tokens_far_ahead_are_named() {
        assert_eq!(far_ahead(&record(), NOW), None);
        for (record, part) in [
            (of("expiresAt", DateTime::from_millis(921_281_299_200_000)), "`expiresAt` is in the year 31164"),
            (of("expiresAt", DateTime::from_millis(i64::MAX)), "`expiresAt`"),
            (of("closedUntil", DateTime::from_millis(NOW + 400 * 86_400_000)), "`closedUntil` is in the year 2028"),
            (of("fencingToken", i64::MAX), "stands for the year"),
        ] {
            let why = far_ahead(&record, NOW).unwrap_or_else(|| panic!("{record}"));
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_finding_names_the_first_records() {
        let mut examined = Examined::default();
        examined.add(&"good".into(), &record(), NOW);
        let findings = examined.findings("records", "app.locks");
        let [ok] = &*findings else { panic!("{findings:?}") };
        assert_eq!((ok.verdict, &*ok.found), (Verdict::Ok, "1 records of app.locks can be read"));
        for at in 0..12 {
            examined.add(&format!("bad {at}").into(), &of("ttl", f64::NAN), NOW);
        }
        examined.add(&7.into(), &of("fencingToken", i64::MAX), NOW);
        let findings = examined.findings("records", "app.locks");
        let [unreadable, far_ahead] = &*findings else { panic!("{findings:?}") };
        assert!(unreadable.verdict == Verdict::Wrong && far_ahead.verdict == Verdict::Wrong);
        assert!(unreadable.found.starts_with("12 of 14 records") && unreadable.found.ends_with("; and 2 more"));
        assert!(unreadable.found.contains("\"bad 0\" (`ttl` is NaN ms)"), "{unreadable:?}");
        assert!(far_ahead.found.contains("1 of 14 records of app.locks") && far_ahead.found.contains(": 7 ("));
    }
}
