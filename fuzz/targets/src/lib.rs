//! Where bytes of others are decoded: a function for each place, which panics if the bytes do what
//! no bytes may do.
//!
//! `cargo fuzz` calls these functions from `fuzz/fuzz_targets`. The test of this package calls them
//! with the inputs of `fuzz/corpus` and with random changes of those.

mod connection_strings;
mod headers;
mod path_keys;
mod records;
mod replies;
mod stored_answers;

/// The floors of the MongoDB backend that decode replies. They depend on nothing above them.
#[path = "../../../lock-mongo/src"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "the rest of that package uses it")]
mod mongo {
    pub(crate) mod bson;
    pub(crate) mod ids;
    pub(crate) mod lease;
    pub(crate) mod numbers;
}
use mongo::{bson, ids, numbers};

pub use connection_strings::connection_strings;
pub use headers::{forwarded_headers, idempotency_header};
pub use path_keys::path_keys;
pub use records::records;
pub use replies::{grants, replies};
pub use stored_answers::stored_answers;

/// A function, and the name of its folder in `fuzz/corpus`.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: [Target; 8] = [
    ("connection_strings", connection_strings),
    ("forwarded_headers", forwarded_headers),
    ("grants", grants),
    ("idempotency_header", idempotency_header),
    ("path_keys", path_keys),
    ("records", records),
    ("replies", replies),
    ("stored_answers", stored_answers),
];

/// Runs a future that needs no other thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}
