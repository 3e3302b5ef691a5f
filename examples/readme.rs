//! Compiles and runs the examples of the project's front page, so that they stay true.
#![doc = include_str!("../README.md")]
