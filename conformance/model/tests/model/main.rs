//! The model's tests.

mod protocol;
mod protocol_text;
mod removals;
