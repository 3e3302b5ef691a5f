//! Wrappers: providers around providers.

mod instrumented;
mod namespaced;

pub use instrumented::Instrumented;
pub use namespaced::Namespaced;
