//! Connection strings, which contain secrets.

use std::error::Error;

use distlock_mongo::MongoProvider;
use mongodb::options::ConnectionString;

use crate::block_on;

#[path = "../../../cli/src/uri.rs"]
#[allow(dead_code, reason = "the command uses it")]
mod uri;

const SECRET: &str = "s3cr3tPassw0rd";

/// Reads bytes as a connection string in which U+0001 stands for a password: no error shows it.
///
/// # Panics
/// If that is not so.
pub fn connection_strings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).replace('\u{1}', SECRET);
    let _ = uri::flaw(&text);
    let words = || text.split_whitespace();
    for word in words() {
        assert!(
            !uri::may_be_shown(word, words()) || !text.contains("://") && !text.contains('@'),
            "{word:?} of {text:?}"
        );
    }
    // The driver panics if two bytes behind a `%` are no text. One that it accepts would be
    // connected to.
    let cuts = text.split('%').skip(1).any(|after| after.len() >= 2 && !after.is_char_boundary(2));
    if !cuts && ConnectionString::parse(&text).is_ok() {
        return;
    }
    let Err(error) = block_on(MongoProvider::builder_from_uri(&text)) else { return };
    let mut shown = format!("{error}\n{error:?}");
    let mut source = Error::source(&error);
    while let Some(error) = source {
        shown.push_str(&format!("\n{error}\n{error:?}"));
        source = error.source();
    }
    assert!(!shown.contains(SECRET), "{shown}");
}
