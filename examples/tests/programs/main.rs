//! The example programs, as they are built: what they prove, that they can fail, how Ctrl-C ends
//! them, and what they print.

mod command_line;
mod designs;
mod interrupts;
mod run;
