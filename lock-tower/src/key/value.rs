//! Turns the text of a value into a part of a key.

use std::fmt::{self, Display, Write};
use std::str::FromStr;

use distlock_api::style::push_escaped;

/// How a value is normalized, so that all its spellings are one key.
#[derive(Clone, Copy)]
pub(super) struct Canonical {
    /// Appends the value's canonical form. Returns `false` if the text is not a value of the type.
    push: fn(&mut String, &str) -> bool,
    of_type: &'static str,
}

impl Canonical {
    /// The value as this type reads and writes it.
    pub(super) fn of<T: FromStr + Display>() -> Self {
        Self { push: push_parsed::<T>, of_type: std::any::type_name::<T>() }
    }

    /// The text itself, byte for byte.
    pub(super) const TEXT: Self = Self { push: push_text, of_type: "text" };

    /// Appends the value's canonical form, escaped so that it cannot be confused with the text
    /// after it.
    ///
    /// # Errors
    /// The name of the type, if the text is not a value of it.
    pub(super) fn push(self, key: &mut String, text: &str) -> Result<(), &'static str> {
        if (self.push)(key, text) { Ok(()) } else { Err(self.of_type) }
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of_type)
    }
}

fn push_parsed<T: FromStr + Display>(key: &mut String, text: &str) -> bool {
    // Writing fails only if the type's `Display` does. What it has written by then is no key.
    text.parse::<T>().is_ok_and(|value| write!(Escaping(key), "{value}").is_ok())
}

fn push_text(key: &mut String, text: &str) -> bool {
    push_escaped(key, text);
    true
}

struct Escaping<'a>(&'a mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.0, text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn pushed(canonical: Canonical, text: &str) -> Result<String, &'static str> {
        let mut key = String::new();
        canonical.push(&mut key, text).map(|()| key)
    }

    #[test]
    fn all_spellings_of_a_value_are_one_key() {
        for spelling in ["7", "07", "+7", "007"] {
            assert_eq!(pushed(Canonical::of::<u64>(), spelling).as_deref(), Ok("7"));
        }
        for spelling in ["0:0:0:0:0:0:0:ab", "::AB", "::00ab"] {
            assert_eq!(pushed(Canonical::of::<Ipv6Addr>(), spelling).as_deref(), Ok("::ab"));
        }
        for wrong in ["", "seven", "-7", " 7", "7/8"] {
            assert_eq!(pushed(Canonical::of::<u64>(), wrong), Err("u64"));
        }
    }

    #[test]
    fn text_is_kept() {
        for (text, key) in [("07", "07"), ("Ä", "Ä"), ("A\u{308}", "A\u{308}"), ("a/b", "a%2Fb")] {
            assert_eq!(pushed(Canonical::TEXT, text).as_deref(), Ok(key));
            assert_eq!(pushed(Canonical::of::<String>(), text).as_deref(), Ok(key));
        }
    }
}
