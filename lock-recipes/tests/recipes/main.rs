//! The tests of the recipes, except for idempotent requests.

mod lead;
mod measured;
mod modes;
mod once;
