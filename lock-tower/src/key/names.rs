//! Keys made of a namespace and of values out of requests.

use std::fmt::Write;

use super::InvalidExtractor;

/// A namespace is one segment of the key.
pub(super) fn namespace(text: &str) -> Result<String, InvalidExtractor> {
    if text.is_empty() || text.contains(['/', '%']) || text.chars().any(char::is_control) {
        return Err(InvalidExtractor::new(format!(
            "a key namespace must not be empty and must not contain '/', '%' or control characters: {text:?}"
        )));
    }
    Ok(text.to_owned())
}

/// Appends a value so that it cannot run into what follows it. Different values stay different.
pub(super) fn push_escaped(key: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '%' | '/' | '&' | '=' | ' ' => push_hex(key, char),
            _ if char.is_control() => push_hex(key, char),
            _ => key.push(char),
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
    fn no_value_looks_like_two() {
        let mut key = String::new();
        push_escaped(&mut key, "a/b&c=d%2F é\n");
        assert_eq!(key, "a%2Fb%26c%3Dd%252F%20é%0A");
        assert!(namespace("orders").is_ok());
        for bad in ["", "a/b", "a%", "a\0"] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }
}
