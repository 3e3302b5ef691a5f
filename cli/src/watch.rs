//! `distlock watch`: the changes of locks, as they happen.

use std::collections::HashMap;
use std::convert::Infallible;

use clap::Args;
use distlock::{AcquisitionId, ForcedRelease, ListOptions, LockAdmin, LockError, LockEvent, Printable};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::signals::Signals;
use crate::{exit, mode};

const LONG_ABOUT: &str = "\
Print grants, releases, expiries and forced releases as they happen

Runs until a signal ends it. Renewals are not printed. An expiry writes nothing in MongoDB: it is \
printed when the next caller takes the lock over. A standalone server cannot be watched.

Each line names the owner of the holder that it is about, and that of a forced release also the \
reason. What the record does not tell is left out, and is `null` in JSON.

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
        tokio::select! {
            ended = watch(locks.admin(), &args.prefix, format) => ended.map(|never| match never {}),
            signal = signals.next() => Ok(exit::of_signal(signal.as_raw())),
        }
    })
    .await
}

/// Prints the events of the keys that start with `prefix`. Ends with an error only.
async fn watch(admin: &dyn LockAdmin, prefix: &str, format: Format) -> Result<Infallible, Failure> {
    let mut events = admin.watch().await?;
    // After the stream was opened, so that no holder falls between.
    let mut owners = Owners::read(admin, prefix).await?;
    print(format, &json!({ "event": "watching" }), "watching")?;
    while let Some(event) = events.next().await {
        let event = event?;
        // A gap may concern every key.
        if event.key().is_some_and(|key| !key.as_str().starts_with(prefix)) {
            continue;
        }
        let forced = forced_release(admin, &event).await;
        let owner = owners.take(&event, forced.as_ref());
        let (owner, reason) = (owner.as_deref(), forced.as_ref().map(|forced| &*forced.reason));
        print(format, &object(&event, owner, reason), &line(&event, owner, reason))?;
        if event == LockEvent::Gap {
            // If this fails, owners are missing, and events are not.
            owners = Owners::read(admin, prefix).await.unwrap_or_default();
        }
    }
    Err(Failure::new(exit::UNAVAILABLE, "MongoDB has ended the stream of events: start again"))
}

fn print(format: Format, object: &Value, line: &str) -> std::io::Result<()> {
    match format {
        Format::Json => output::json(object),
        Format::Human => output::line(line),
    }
}

/// The owners of the present holders. Only a grant reports its owner.
#[derive(Default)]
struct Owners(HashMap<AcquisitionId, String>);

impl Owners {
    /// Reads the holders of the keys that start with `prefix`.
    async fn read(admin: &dyn LockAdmin, prefix: &str) -> Result<Self, LockError> {
        let mut owners = HashMap::new();
        let mut held = admin.list(ListOptions::new().page_size(1000).prefix(prefix));
        while let Some(info) = held.try_next().await? {
            let holders = mode::holders(&info).into_iter();
            owners.extend(holders.filter_map(|holder| Some((holder.id, holder.owner?))));
        }
        Ok(Self(owners))
    }

    /// Returns the owner of the holder that an event is about. Removes it at the holder's end.
    fn take(&mut self, event: &LockEvent, forced: Option<&ForcedRelease>) -> Option<String> {
        match event {
            LockEvent::Granted { id, owner, .. } => {
                // A later grant of the same acquisition replaces the entry.
                self.0.remove(id);
                self.0.extend(owner.clone().map(|owner| (id.clone(), owner)));
                owner.clone()
            }
            event => {
                let known = event.id().and_then(|id| self.0.remove(id));
                known.or_else(|| forced?.owner.clone())
            }
        }
    }
}

/// Returns the entry of the history about the holder that lost a lock by force; `None` for other
/// events, and if the record no longer has it or cannot be read.
async fn forced_release(admin: &dyn LockAdmin, event: &LockEvent) -> Option<ForcedRelease> {
    let LockEvent::ForceReleased { key, id } = event else { return None };
    let history = admin.history(key).await.unwrap_or_default();
    history.into_iter().rev().find(|entry| entry.id.as_ref() == Some(id))
}

fn object(event: &LockEvent, owner: Option<&str>, reason: Option<&str>) -> Value {
    let mut object = json!({
        "event": event.as_str(),
        "key": event.key().map(|key| key.as_str()),
        "id": event.id().map(|id| id.as_str()),
    });
    if event.id().is_some() {
        object["owner"] = owner.into();
    }
    match event {
        LockEvent::Granted { token, mode, .. } => {
            object["token"] = token.get().into();
            mode::add_fields(object.as_object_mut().expect("made above"), *mode);
        }
        LockEvent::ForceReleased { .. } => object["reason"] = reason.into(),
        _ => {}
    }
    object
}

fn line(event: &LockEvent, owner: Option<&str>, reason: Option<&str>) -> String {
    let key = event.key().map_or("", |key| key.as_str());
    let mut line = format!("{:14}  {}", event.as_str(), Printable(key));
    if let LockEvent::Granted { token, mode, .. } = event {
        if !mode.is_exclusive() {
            line.push_str(&format!("  {mode}"));
        }
        line.push_str(&format!("  token {token}"));
    }
    if let Some(owner) = owner {
        line.push_str(&format!("  {}", Printable(owner)));
    }
    if let Some(reason) = reason {
        line.push_str(&format!("  reason {}", Printable(reason)));
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
        let text = |event: &LockEvent| line(event, Some("me"), None);
        let fields = |event: &LockEvent| object(event, Some("me"), None);
        assert_eq!(text(&granted(Mode::Exclusive)), "granted         a\\n  token 7  me");
        let mut expected = json!({ "event": "granted", "key": "a\n", "id": "x", "token": 7, "owner": "me" });
        expected["mode"] = "exclusive".into();
        assert_eq!(fields(&granted(Mode::Exclusive)), expected);
        assert_eq!(text(&granted(Mode::Shared)), "granted         a\\n  shared  token 7  me");
        let permits = granted(Mode::Permits { take: 2, of: 9 });
        assert_eq!(text(&permits), "granted         a\\n  2 of 9 permits  token 7  me");
        (expected["mode"], expected["take"], expected["of"]) = ("permits".into(), 2.into(), 9.into());
        assert_eq!(fields(&permits), expected);
        assert_eq!(text(&LockEvent::Expired { key: key.clone(), id: id.clone() }), "expired         a\\n  me");
        let forced = LockEvent::ForceReleased { key, id };
        let mut expected = json!({ "event": "force_released", "key": "a\n", "id": "x", "owner": null, "reason": null });
        assert_eq!(
            (line(&forced, None, None), object(&forced, None, None)),
            ("force_released  a\\n".into(), expected.clone())
        );
        assert_eq!(line(&forced, Some("me"), Some("gone\n")), "force_released  a\\n  me  reason gone\\n");
        (expected["owner"], expected["reason"]) = ("me".into(), "gone\n".into());
        assert_eq!(object(&forced, Some("me"), Some("gone\n")), expected);
        assert_eq!(line(&LockEvent::Gap, None, None), "gap");
        assert_eq!(object(&LockEvent::Gap, None, None), json!({ "event": "gap", "key": null, "id": null }));
    }

    #[test]
    fn an_end_has_the_owner_of_its_grant() {
        let key = LockKey::new("a").unwrap();
        let granted = |id: &str, owner: Option<&str>| LockEvent::Granted {
            key: key.clone(),
            id: AcquisitionId::new(id),
            token: FencingToken::new(7),
            owner: owner.map(str::to_owned),
            mode: Mode::Shared,
        };
        let released = |id: &str| LockEvent::Released { key: key.clone(), id: AcquisitionId::new(id) };
        let mut owners = Owners::default();
        for (event, owner) in [
            (granted("x", Some("me")), Some("me")),
            (granted("y", Some("you")), Some("you")),
            (released("x"), Some("me")),
            (released("x"), None),
            (granted("y", None), None),
            (released("y"), None),
        ] {
            assert_eq!(owners.take(&event, None).as_deref(), owner, "{event:?}");
        }
        assert!(owners.0.is_empty());
    }
}
