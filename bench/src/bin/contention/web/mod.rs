//! A service over HTTP/1.1 and its clients, over real connections.

pub mod client;
pub mod load;
pub mod service;
