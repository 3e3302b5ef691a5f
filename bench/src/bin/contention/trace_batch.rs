//! The commands by which several keys are acquired and released together.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_api::{LockProvider, LockProviderExt};
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
    let _ = provider.acquire_all(&keys).await?.release().await?;

    log.take();
    let start = clock::now();
    let all = provider.acquire_all(&keys).await?;
    let acquired = clock::now();
    let _ = all.release().await?;
    let released = clock::now();
    let events = log.take();
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
    deployment.drop_database(database).await?;
    Ok(text)
}

/// What a client sends and receives.
#[derive(Default)]
struct Log(Mutex<Vec<(Nanos, String)>>);

impl Log {
    fn take(&self) -> Vec<(Nanos, String)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
