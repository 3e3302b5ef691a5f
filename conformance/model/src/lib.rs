#![doc = include_str!("../README.md")]
// What is counted here is small.
#![allow(clippy::cast_possible_truncation)]

pub mod action;
mod calm;
pub mod client;
pub mod config;
pub mod configs;
mod execute;
pub mod explain;
mod holders;
pub mod ids;
pub mod list;
pub mod modes;
mod property;
pub mod removals;
pub mod rules;
pub mod search;
pub mod server;
pub mod state;
mod step;
mod symmetry;
