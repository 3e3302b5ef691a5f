//! The commands by which several keys are acquired and released together.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_api::{LockProvider, LockProviderExt};
use distlock_mongo::MongoProvider;
use futures_util::future::join_all;
use mongodb::Client;
use mongodb::bson::{Bson, Document};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;

use crate::Outcome;
use crate::clock::{self, Nanos, millis};
use crate::deployment::Deployment;
use crate::locks::{Contender, Settings, ours};

const KEYS: usize = 8;
/// As many tasks, each with a key of its own, whose commands are only counted.
const TASKS: usize = 1_000;
/// Fields of every command that say nothing about locks.
const SESSION: [&str; 6] = ["lsid", "$clusterTime", "operationTime", "$db", "electionId", "opTime"];
/// Of a list of keys, ids or records, so many are shown; lists of expressions are shown whole.
const SHOWN: usize = 1;
/// Expressions that are nested deeper are only named, unless they are short.
const DEEPEST: usize = 8;
/// Names are shorter. Longer texts are ids and descriptions, and are cut.
const LONGEST_TEXT: usize = 20;
const CUT: usize = 8;
const MARGIN: &str = "          ";
const INDENT: usize = 2;
const WIDTH: usize = 100;

/// Acquires and releases the keys once, and prints the commands that were sent.
pub async fn run(deployment: &Deployment) -> Outcome<String> {
    let database = Contender::Ours.database();
    deployment.drop_database(database).await?;
    let log = Arc::new(Log::default());
    let mut options = ClientOptions::parse(deployment.uri()).await?;
    options.command_event_handler = Some(log.handler());
    let client = Client::with_options(options)?;
    let provider = ours::provider(&client, database, Settings::new(true)).await?;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("orders/{number}")).collect();
    // The first time connects, and finds records that do not exist yet.
    provider.acquire_all(&keys).await?.release().await?;

    log.take();
    let start = clock::now();
    let all = provider.acquire_all(&keys).await?;
    let acquired = clock::now();
    all.release().await?;
    let released = clock::now();
    let events = log.take();
    let counted = [counted(&provider, &log).await?, counted(&provider, &log).await?];
    provider.close().await?;

    let mut text = format!(
        "acquire_all of {KEYS} free keys that were used before, and the release of its guard.\n\
         ms after the call | event\n\n"
    );
    let calls = [
        (start, "acquire_all is called".to_owned()),
        (acquired, "acquire_all has returned; release is called".to_owned()),
        (released, "release has returned".to_owned()),
    ];
    let mut events: Vec<(Nanos, String)> = events.into_iter().chain(calls).collect();
    events.sort_by_key(|(at, _)| *at);
    for (at, event) in events.into_iter().filter(|(at, _)| (start..=released).contains(at)) {
        let _ = writeln!(text, "{:8.3}  {event}", millis(at - start));
    }
    let _ = writeln!(text, "\n{TASKS} locks of {TASKS} keys, by as many tasks at the same time:");
    for (keys, [acquired, released]) in ["new keys", "keys used before"].into_iter().zip(counted) {
        let _ = writeln!(text, "{keys}: acquired by {acquired}; released by {released}");
    }
    deployment.drop_database(database).await?;
    Ok(text)
}

/// Acquires a key by each of many tasks, and releases all of them. Returns the commands of either.
async fn counted(provider: &MongoProvider, log: &Log) -> Outcome<[String; 2]> {
    log.take();
    let acquiring = (0..TASKS).map(|task| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.acquire(format!("many/{task}")).await })
    });
    let guards = join_all(acquiring.collect::<Vec<_>>()).await;
    let guards = guards.into_iter().map(|guard| Ok(guard??)).collect::<Outcome<Vec<_>>>()?;
    let acquired = log.sent();
    let releasing = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    for released in join_all(releasing.collect::<Vec<_>>()).await {
        let _ = released??;
    }
    Ok([acquired, log.sent()])
}

/// What a client sends and receives.
#[derive(Default)]
struct Log(Mutex<Vec<(Nanos, String)>>);

impl Log {
    fn take(&self) -> Vec<(Nanos, String)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The commands that were sent since the last call, by name.
    fn sent(&self) -> String {
        let mut sent = BTreeMap::<String, usize>::new();
        for (_, event) in self.take() {
            if let Some((name, _)) = event.split_once(" sent") {
                *sent.entry(name.to_owned()).or_default() += 1;
            }
        }
        let each: Vec<String> = sent.iter().map(|(name, count)| format!("{count} `{name}`")).collect();
        each.join(", ")
    }

    fn handler(self: &Arc<Self>) -> EventHandler<CommandEvent> {
        let log = Arc::clone(self);
        EventHandler::callback(move |event| {
            let (name, event) = match event {
                CommandEvent::Started(event) => (event.command_name, format!("sent{}", block(event.command))),
                CommandEvent::Succeeded(event) => (event.command_name, format!("answered{}", block(event.reply))),
                CommandEvent::Failed(event) => (event.command_name, format!("failed: {}", event.failure)),
                _ => return,
            };
            // The change stream waits for its next event all the time.
            if name != "getMore" {
                log.0.lock().unwrap_or_else(PoisonError::into_inner).push((clock::now(), format!("{name} {event}")));
            }
        })
    }
}

/// The document on lines of its own, below its title.
fn block(mut document: Document) -> String {
    for field in SESSION {
        document.remove(field);
    }
    let mut text = format!("\n{MARGIN}");
    write_value(&mut text, &Bson::Document(document), MARGIN.len(), 0);
    text
}

/// On one line if there is room for it and what follows.
fn write_value(text: &mut String, value: &Bson, depth: usize, column: usize) {
    let short = inline(value);
    if depth.max(column) + short.chars().count() < WIDTH {
        text.push_str(&short);
        return;
    }
    let (open, close, items): (_, _, Vec<(String, Option<&Bson>)>) = match value {
        Bson::Document(document) => {
            ('{', '}', document.iter().map(|(name, value)| (format!("{name}: "), Some(value))).collect())
        }
        Bson::Array(list) => ('[', ']', elements(list)),
        _ => {
            text.push_str(&short);
            return;
        }
    };
    if (depth - MARGIN.len()) / INDENT > DEEPEST {
        text.push_str(&named(value));
        return;
    }
    text.push(open);
    for (title, value) in items {
        let indent = depth + INDENT;
        let _ = write!(text, "\n{:indent$}{title}", "");
        if let Some(value) = value {
            write_value(text, value, indent, indent + title.chars().count() + 1);
            text.push(',');
        }
    }
    let _ = write!(text, "\n{:depth$}{close}", "");
}

/// A document by its first field, a list by its length.
fn named(value: &Bson) -> String {
    match value {
        Bson::Document(document) => {
            let name = document.keys().next().map_or("", String::as_str);
            format!("{{ {name}: … }}")
        }
        Bson::Array(list) => format!("[… {}]", list.len()),
        other => inline(other),
    }
}

/// The elements of a list that are shown, and the number of the others.
fn elements(list: &[Bson]) -> Vec<(String, Option<&Bson>)> {
    let shown = if is_of_locks(list) { SHOWN } else { list.len() };
    let mut elements: Vec<_> = list.iter().take(shown).map(|value| (String::new(), Some(value))).collect();
    if list.len() > shown {
        elements.push((format!("… {} more", list.len() - shown), None));
    }
    elements
}

/// Whether the list has keys, ids, times or records of several locks, not operands of an
/// expression.
fn is_of_locks(list: &[Bson]) -> bool {
    let is_of_a_lock = |value: &Bson| match value {
        Bson::Document(document) => document.keys().next().is_some_and(|name| !name.starts_with('$')),
        Bson::String(text) => !text.starts_with('$'),
        Bson::Array(_) => false,
        _ => true,
    };
    list.len() == KEYS && list.iter().all(is_of_a_lock)
}

fn inline(value: &Bson) -> String {
    match value {
        Bson::Document(document) if document.is_empty() => "{}".to_owned(),
        Bson::Document(document) => {
            let fields: Vec<_> = document.iter().map(|(name, value)| format!("{name}: {}", inline(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Bson::Array(list) => {
            let shown: Vec<_> = elements(list)
                .into_iter()
                .map(|(title, value)| title + &value.map(inline).unwrap_or_default())
                .collect();
            format!("[{}]", shown.join(", "))
        }
        Bson::String(text) if text.contains('$') || text.chars().count() <= LONGEST_TEXT => format!("{text:?}"),
        Bson::String(text) => format!("{:?}", text.chars().take(CUT).chain(['…']).collect::<String>()),
        Bson::Binary(_) => "<binary>".to_owned(),
        Bson::Timestamp(_) => "<timestamp>".to_owned(),
        Bson::DateTime(time) => time.try_to_rfc3339_string().unwrap_or_else(|_| "<date>".to_owned()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn of_many_statements_the_first_is_shown() {
        let updates: Vec<_> = (0..8).map(|key| doc! { "q": { "_id": key }, "u": {} }).collect();
        let text = block(doc! { "update": "locks", "updates": updates, "lsid": 1 });
        assert_eq!(text.trim(), "{ update: \"locks\", updates: [{ q: { _id: 0 }, u: {} }, … 7 more] }");
    }

    #[test]
    fn what_does_not_fit_is_broken_into_lines() {
        let names: Vec<String> = (0..20).map(|number| format!("name-{number}")).collect();
        let text = block(doc! { "one": names, "two": { "$exists": true } });
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("\n            two: { $exists: true },\n"), "{text}");
    }

    #[test]
    fn ids_are_cut_and_expressions_are_not() {
        assert_eq!(inline(&"0123456789abcdef0123456789abcdef".into()), "\"01234567…\"");
        assert_eq!(inline(&"$a.path.that.is.longer.than.an.id".into()), "\"$a.path.that.is.longer.than.an.id\"");
    }
}
