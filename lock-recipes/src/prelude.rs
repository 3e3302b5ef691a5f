//! What most code that uses these recipes needs, for one `use`: the prelude of `distlock-api`, and
//! the fluent calls.
//!
//! ```
//! use distlock_recipes::prelude::*;
//!
//! async fn mailer(locks: &dyn LockProvider) -> Result<(), LockError> {
//!     locks.lead("mailer").run(async |term| Ok::<_, LockError>(println!("term {term}"))).await?;
//!     Ok(())
//! }
//! ```

pub use distlock_api::prelude::*;

pub use crate::lead::{LeadExt, LeadHealth, LeadStatus, Led};
pub use crate::once::{Once, OnceGuard, OnceProvider, OnceProviderExt};
