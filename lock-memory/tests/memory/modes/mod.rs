//! Shared locks and permits of a `MemoryProvider`, by clause.

mod admin;
mod fairness;
mod kit;
mod model;
mod threads;
mod together;
