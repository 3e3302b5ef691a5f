//! Keys of a namespace and of values from requests.

use std::cell::Cell;
use std::fmt::Write;

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

const fn is_special(char: char) -> bool {
    matches!(char, '%' | '/' | '&' | '=' | ' ')
}

/// The bytes that are not escaped, which most values consist of.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x21_u8;
    while byte < 0x7f {
        plain[byte as usize] = !is_special(byte as char);
        byte += 1;
    }
    plain
};

/// Appends a value, escaped so that it cannot be confused with the text after it. Different values
/// stay different.
pub(crate) fn push_escaped(key: &mut String, value: &str) {
    if value.bytes().all(|byte| PLAIN[usize::from(byte)]) {
        key.push_str(value);
        return;
    }
    for char in value.chars() {
        if is_special(char) || char.is_control() {
            push_hex(key, char);
        } else {
            key.push(char);
        }
    }
}

fn push_hex(key: &mut String, char: char) {
    for byte in char.encode_utf8(&mut [0; 4]).bytes() {
        // Writing to a string does not fail.
        let _ = write!(key, "%{byte:02X}");
    }
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
    fn no_value_looks_like_two() {
        let mut key = String::new();
        push_escaped(&mut key, "a/b&c=d%2F é\n");
        assert_eq!(key, "a%2Fb%26c%3Dd%252F%20é%0A");
        for plain in ["a-7_(x)~", "é"] {
            key.clear();
            push_escaped(&mut key, plain);
            assert_eq!(key, plain);
        }
        assert!(namespace("orders").is_ok());
        for bad in ["", "a/b", "a%", "a\0"] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }
}
