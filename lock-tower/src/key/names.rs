//! Keys of a namespace, and their text.

use std::cell::Cell;

use distlock_api::{LockError, LockKey};

use super::InvalidExtractor;

/// Checks a namespace, which is one segment of the key.
pub(super) fn namespace(text: &str) -> Result<String, InvalidExtractor> {
    if text.is_empty() || text.contains(['/', '%']) || text.chars().any(char::is_control) {
        return Err(InvalidExtractor::new(format!(
            "a key namespace must not be empty and must not contain '/', '%' or control characters: {text:?}"
        )));
    }
    Ok(text.to_owned())
}

/// Makes a key of text that is written into a buffer of the thread. Only the key is allocated.
pub(super) fn written(write: impl FnOnce(&mut String)) -> Result<LockKey, LockError> {
    thread_local! {
        static BUFFER: Cell<String> = const { Cell::new(String::new()) };
    }
    let mut text = BUFFER.take();
    text.clear();
    write(&mut text);
    let key = LockKey::new(text.as_str());
    // A buffer that is far too long for a key is not worth keeping.
    if text.capacity() <= 4 * LockKey::MAX_LEN {
        BUFFER.set(text);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_contains_nothing_of_the_key_before() {
        let long = "x".repeat(LockKey::MAX_LEN);
        for text in [long.as_str(), "a", "bc"] {
            assert_eq!(written(|key| key.push_str(text)).unwrap().as_str(), text);
        }
        assert!(written(|_| {}).is_err());
        // A key of keys, should one be written.
        let outer = written(|key| {
            key.push_str("outer/");
            key.push_str(written(|key| key.push_str("inner")).unwrap().as_str());
        });
        assert_eq!(outer.unwrap().as_str(), "outer/inner");
    }

    #[test]
    fn a_namespace_is_one_segment() {
        assert!(namespace("orders").is_ok());
        for bad in ["", "a/b", "a%", "a\0"] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }
}
