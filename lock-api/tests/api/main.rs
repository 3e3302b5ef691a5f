//! The tests of this package, except for those that install a subscriber or a recorder.

mod admin;
mod calls;
mod modes;
