//! The tests of the facade, and of what spans several packages.

#[cfg(all(feature = "blocking", feature = "memory"))]
mod blocking;
mod guide;
mod pairs;
#[cfg(all(feature = "blocking", feature = "memory"))]
mod retry;
mod security;
