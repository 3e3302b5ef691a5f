//! `distlock force-release`: takes one lock away.

use clap::Args;
use distlock::{AcquisitionId, LockInfo, LockKey, Printable};
use serde_json::json;

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::{mode, state};

const LONG_ABOUT: &str = "\
Take a lock away from its holder, or from all of them

The key is free at once. With --holder, one of several that share a lock or hold its permits loses \
it, and the others keep theirs. A holder notices that at its next renewal, a third of its ttl later \
at most, and works on until then: only the fencing token keeps it out of a resource. Stop the holder \
first where you can. `history` shows the reason afterwards. A key that is free is no error.";

/// Take a lock away from its holder, or from all of them
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct ForceReleaseArgs {
    /// Key of the lock
    #[arg(value_name = "KEY")]
    key: String,
    /// Why, for `history`
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Only from the holder with this id, which `show` names
    #[arg(long, value_name = "ID")]
    holder: Option<String>,
}

/// Releases the lock, and prints what it was before.
///
/// # Errors
/// MongoDB does not answer, or the output fails.
pub(crate) async fn run(args: ForceReleaseArgs, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let key = LockKey::new(args.key)?;
    let (holder, reason) = (args.holder.map(AcquisitionId::new), args.reason);
    let before = Locks::once(connection, async |locks| {
        Ok(match &holder {
            Some(id) => locks.admin().force_release_holder(&key, id, &reason).await?,
            None => locks.admin().force_release(&key, &reason).await?,
        })
    })
    .await?;
    match format {
        Format::Json => output::json(&json!({
            "key": key.as_str(),
            "holder": holder.as_ref().map(|id| id.as_str()),
            "released": before.is_some(),
            "before": before.as_ref().map(state::object),
        }))?,
        Format::Human => output::line(&Printable(said(&key, holder.as_ref(), before.as_ref())).to_string())?,
    }
    Ok(())
}

/// Returns what happened in a line: from whom a lock was taken away.
fn said(key: &LockKey, holder: Option<&AcquisitionId>, before: Option<&LockInfo>) -> String {
    let victim = match (before, holder) {
        (None, None) => return format!("{key}: was free"),
        (None, Some(id)) => return format!("{key}: was not held by {id}"),
        (Some(before), None) => state::owners(before),
        (Some(before), Some(id)) => {
            let victim = mode::holders(before).into_iter().find(|holder| holder.id == *id);
            victim.and_then(|victim| victim.owner).unwrap_or_default()
        }
    };
    if victim.is_empty() { format!("{key}: released") } else { format!("{key}: taken away from {victim}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use distlock::{FencingToken, LockHolder, Mode};

    use super::*;

    #[test]
    fn the_victims_are_named() {
        let (key, token, left) = (LockKey::new("k").unwrap(), FencingToken::new(4), Duration::from_secs(5));
        let id = |name: &str| AcquisitionId::new(name);
        let holder = |name: &str| {
            LockHolder::new(id(name), Mode::Shared, token, left)
                .with_holder(Some(format!("owner {name}")), BTreeMap::new())
        };
        let exclusive = LockInfo::new(key.clone(), Some(id("x")), token, left);
        let named = exclusive.clone().with_holder(Some("owner x".to_owned()), BTreeMap::new());
        let shared = named.clone().with_holders(vec![holder("x"), holder("y")]);
        for (holder, before, expected) in [
            (None, None, "k: was free"),
            (Some("z"), None, "k: was not held by z"),
            (None, Some(&exclusive), "k: released"),
            (None, Some(&named), "k: taken away from owner x"),
            (Some("x"), Some(&named), "k: taken away from owner x"),
            (None, Some(&shared), "k: taken away from owner x and 1 other"),
            (Some("y"), Some(&shared), "k: taken away from owner y"),
        ] {
            assert_eq!(said(&key, holder.map(id).as_ref(), before), expected);
        }
    }
}
