//! `distlock release-owner`: takes all locks of an owner away.

use clap::Args;
use distlock::Printable;
use serde_json::json;

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format};

/// Take all locks away from an owner, such as a process that has ended
#[derive(Args, Debug)]
pub(crate) struct ReleaseOwnerArgs {
    /// The owner, exactly as `ls` shows it: by default host, process id and a random number
    #[arg(value_name = "OWNER")]
    owner: String,
    /// Why, for `history`
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Releases the locks, and prints how many there were.
///
/// # Errors
/// MongoDB does not answer: some of the locks may be released, and the command can be repeated. Or
/// the output fails.
pub(crate) async fn run(args: ReleaseOwnerArgs, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let (owner, reason) = (args.owner, args.reason);
    let released =
        Locks::once(connection, async |locks| Ok(locks.admin().release_owner(&owner, &reason).await?)).await?;
    match format {
        Format::Json => output::json(&json!({ "owner": owner, "released": released }))?,
        Format::Human => output::line(&format!("{}: {released} locks taken away", Printable(&owner)))?,
    }
    Ok(())
}
