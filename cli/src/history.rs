//! `distlock history`: the forced releases of one lock.

use clap::Args;
use distlock::LockKey;
use serde_json::json;

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format, Table};
use crate::state::time;

/// Show the last forced releases of a lock: who lost it, when, and why
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Key of the lock
    #[arg(value_name = "KEY")]
    key: String,
}

/// Prints the forced releases, the oldest first.
///
/// # Errors
/// MongoDB does not answer, or the output fails.
pub(crate) async fn run(args: HistoryArgs, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let key = LockKey::new(args.key)?;
    let entries = Locks::once(connection, async |locks| Ok(locks.admin().history(&key).await?)).await?;
    let mut table = Table::new(["TIME", "OWNER", "TOKEN", "REASON"]);
    for entry in entries {
        let at = time(entry.at);
        match format {
            Format::Json => output::json(&json!({
                "key": key.as_str(),
                "at": at,
                "owner": entry.owner,
                "token": entry.token.get(),
                "reason": entry.reason,
                "id": entry.id.as_ref().map(|id| id.as_str()),
            }))?,
            Format::Human => {
                table.row([at, entry.owner.unwrap_or_default(), entry.token.to_string(), entry.reason]);
            }
        }
    }
    if format == Format::Human {
        output::line(&table.render())?;
    }
    Ok(())
}
