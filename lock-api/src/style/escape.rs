//! Values of requests as parts of a key.

use std::fmt::Write;

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

/// Appends a value to the text of a key, escaped so that it cannot be confused with the text after
/// it. Different values stay different.
///
/// `%`, `/`, `&`, `=`, the space and control characters become `%` and two hexadecimal digits per
/// byte. Processes of different versions must name a lock by the same key, so this never changes.
///
/// ```
/// use distlock_api::style::push_escaped;
///
/// let mut key = "users/".to_owned();
/// push_escaped(&mut key, "ann/orders");
/// assert_eq!(key, "users/ann%2Forders");
/// ```
pub fn push_escaped(key: &mut String, value: &str) {
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
    fn no_value_looks_like_two() {
        let mut key = String::new();
        push_escaped(&mut key, "a/b&c=d%2F é\n");
        assert_eq!(key, "a%2Fb%26c%3Dd%252F%20é%0A");
        for plain in ["a-7_(x)~", "é"] {
            key.clear();
            push_escaped(&mut key, plain);
            assert_eq!(key, plain);
        }
    }
}
