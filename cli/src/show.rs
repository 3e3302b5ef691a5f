//! `distlock show`: one lock in full.

mod once;

use clap::Args;
use distlock::{LockHolder, LockInfo, LockKey};
use serde_json::json;

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format, aligned};
use crate::{duration, mode, state};

/// Show the state of one lock, or of work that is done once
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Key of the lock
    #[arg(value_name = "KEY")]
    key: String,
    /// Show the work of `run --once`: new, under way, interrupted or done. --collection names the
    /// collection of the outcomes [default: once]
    #[arg(long)]
    once: bool,
}

/// Prints the state of the lock. A free lock is no error.
///
/// # Errors
/// MongoDB does not answer, or the output fails.
pub(crate) async fn run(args: ShowArgs, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let key = LockKey::new(args.key)?;
    if args.once {
        return once::run(&key, connection, format).await;
    }
    let info = Locks::once(connection, async |locks| Ok(locks.admin().inspect(&key).await?)).await?;
    match (format, info) {
        (Format::Json, Some(info)) => output::json(&state::object(&info))?,
        (Format::Json, None) => output::json(&json!({ "key": key.as_str(), "state": "free" }))?,
        (Format::Human, Some(info)) => output::line(&lines(&info))?,
        (Format::Human, None) => output::line(&format!("{key} is free"))?,
    }
    Ok(())
}

/// Returns the state as lines of name and value.
fn lines(info: &LockInfo) -> String {
    let mut lines = vec![("key", info.key.as_str().to_owned()), ("state", state::word(info).to_owned())];
    lines.extend(info.id.as_ref().map(|_| ("mode", mode::summary(info))));
    lines.push(("token", info.token.to_string()));
    lines.push(("left", duration::show(info.remaining)));
    lines.extend(info.waiting.map(|waiting| ("waiting", waiting.to_string())));
    if info.holders.is_empty() {
        lines.extend(info.owner.clone().map(|owner| ("owner", owner)));
        lines.extend(info.id.as_ref().map(|id| ("id", id.to_string())));
        lines.extend(info.metadata.iter().map(|(name, value)| (name.as_str(), value.clone())));
    }
    for holder in &info.holders {
        lines.extend(of_holder(holder));
    }
    lines.extend(info.unreadable.clone().map(|why| ("unreadable", why)));
    aligned(&lines)
}

/// Returns the lines of one of several holders, the first of which has its id.
fn of_holder(holder: &LockHolder) -> impl Iterator<Item = (&str, String)> {
    let first = [
        ("holder", holder.id.to_string()),
        ("  mode", holder.mode.to_string()),
        ("  token", holder.token.to_string()),
        ("  left", duration::show(holder.remaining)),
    ];
    let owner = holder.owner.clone().map(|owner| ("  owner", owner));
    let metadata = holder.metadata.iter().map(|(name, value)| ("  with", format!("{name} = {value}")));
    first.into_iter().chain(owner).chain(metadata)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use distlock::{AcquisitionId, FencingToken, Mode};

    use super::*;

    #[test]
    fn each_of_several_holders_has_its_lines() {
        let (key, left) = (LockKey::new("k").unwrap(), Duration::from_secs(5));
        let holder = |id: &str, owner: Option<&str>, metadata| {
            LockHolder::new(AcquisitionId::new(id), Mode::Shared, FencingToken::new(3), left)
                .with_holder(owner.map(str::to_owned), metadata)
        };
        let metadata = BTreeMap::from([("command".to_owned(), "sh".to_owned())]);
        let holders = vec![holder("x", Some("me\n"), metadata), holder("y", None, BTreeMap::new())];
        let info = LockInfo::new(key, Some(AcquisitionId::new("x")), FencingToken::new(4), left);
        let shown = lines(&info.with_holders(holders));
        let expected = "\
key         k
state       held
mode        shared by 2
token       4
left        5.0 s
holder      x
  mode      shared
  token     3
  left      5.0 s
  owner     me\\n
  with      command = sh
holder      y
  mode      shared
  token     3
  left      5.0 s";
        assert_eq!(shown, expected);
    }
}
