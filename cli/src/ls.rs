//! `distlock ls`: the locks that are not free.

use clap::Args;
use distlock::ListOptions;
use futures_util::TryStreamExt;

use crate::connect::{ConnectionArgs, Locks};
use crate::failure::Failure;
use crate::output::{self, Format, Table};
use crate::state;

/// List the locks that are held or kept closed
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only keys that start with this text
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Only locks of exactly this owner
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
}

/// Prints the locks, in the order of their keys.
///
/// # Errors
/// MongoDB does not answer, or the output fails.
pub(crate) async fn run(args: LsArgs, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let mut options = ListOptions::new().page_size(1000).prefix(args.prefix.unwrap_or_default());
    if let Some(owner) = args.owner {
        options = options.owner(owner);
    }
    Locks::once(connection, async |locks| {
        let mut list = locks.admin().list(options);
        let mut table = Table::new(["KEY", "STATE", "MODE", "OWNER", "LEFT", "WAITING", "TOKEN"]);
        while let Some(info) = list.try_next().await? {
            match format {
                Format::Json => output::json(&state::object(&info))?,
                Format::Human => table.row(state::cells(&info)),
            }
        }
        if format == Format::Human {
            output::line(&table.render())?;
        }
        Ok(())
    })
    .await
}
