//! `distlock watch`: the changes of locks, as they happen.

use clap::Args;
use distlock::LockEvent;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format, printable};
use crate::signals::Signals;
use crate::{exit, mode};

const LONG_ABOUT: &str = "\
Print grants, releases, expiries and forced releases as they happen

Runs until a signal ends it. Renewals are not printed. An expiry writes nothing in MongoDB: it is \
printed when the next caller takes the lock over. A standalone server cannot be watched.

The first line says that the watch has begun: what happens after it is printed. A line `gap` means \
that events may have been missed: list the locks again.";

/// Print grants, releases, expiries and forced releases as they happen
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct WatchArgs {
    /// Only keys that start with this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Prints the events, and returns the exit code of the signal that ended the watch.
///
/// # Errors
/// The deployment cannot be watched, the stream ends with an error, or the output fails.
pub(crate) async fn run(args: WatchArgs, connection: &ConnectionArgs, format: Format) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    Locks::once(connection, async |locks| {
        let mut events = tokio::select! {
            events = locks.admin().watch() => events?,
            signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
        };
        print(format, &json!({ "event": "watching" }), "watching")?;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
            };
            let Some(event) = event else {
                return Err(Failure::new(exit::UNAVAILABLE, "MongoDB has ended the stream of events: start again"));
            };
            let event = event?;
            // A gap may concern every key.
            if event.key().is_none_or(|key| key.as_str().starts_with(&args.prefix)) {
                print(format, &object(&event), &line(&event))?;
            }
        }
    })
    .await
}

fn print(format: Format, object: &Value, line: &str) -> std::io::Result<()> {
    match format {
        Format::Json => output::json(object),
        Format::Human => output::line(line),
    }
}

fn object(event: &LockEvent) -> Value {
    let mut object = json!({
        "event": event.as_str(),
        "key": event.key().map(|key| key.as_str()),
        "id": event.id().map(|id| id.as_str()),
    });
    if let LockEvent::Granted { token, owner, mode, .. } = event {
        object["token"] = token.get().into();
        object["owner"] = owner.clone().into();
        mode::add_fields(object.as_object_mut().expect("made above"), *mode);
    }
    object
}

fn line(event: &LockEvent) -> String {
    let key = event.key().map_or("", |key| key.as_str());
    let mut line = format!("{:14}  {}", event.as_str(), printable(key));
    if let LockEvent::Granted { token, owner, mode, .. } = event {
        if !mode.is_exclusive() {
            line.push_str(&format!("  {mode}"));
        }
        line.push_str(&format!("  token {token}  {}", printable(owner.as_deref().unwrap_or_default())));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use distlock::{AcquisitionId, FencingToken, LockKey, Mode};

    use super::*;

    #[test]
    fn events_are_shown() {
        let (key, id) = (LockKey::new("a\n").unwrap(), AcquisitionId::new("x"));
        let granted = |mode| LockEvent::Granted {
            key: key.clone(),
            id: id.clone(),
            token: FencingToken::new(7),
            owner: Some("me".into()),
            mode,
        };
        assert_eq!(line(&granted(Mode::Exclusive)), "granted         a\\n  token 7  me");
        let mut expected = json!({ "event": "granted", "key": "a\n", "id": "x", "token": 7, "owner": "me" });
        expected["mode"] = "exclusive".into();
        assert_eq!(object(&granted(Mode::Exclusive)), expected);
        assert_eq!(line(&granted(Mode::Shared)), "granted         a\\n  shared  token 7  me");
        let permits = granted(Mode::Permits { take: 2, of: 9 });
        assert_eq!(line(&permits), "granted         a\\n  2 of 9 permits  token 7  me");
        (expected["mode"], expected["take"], expected["of"]) = ("permits".into(), 2.into(), 9.into());
        assert_eq!(object(&permits), expected);
        assert_eq!(line(&LockEvent::ForceReleased { key, id }), "force_released  a\\n");
        assert_eq!(line(&LockEvent::Gap), "gap");
        assert_eq!(object(&LockEvent::Gap), json!({ "event": "gap", "key": null, "id": null }));
    }
}
