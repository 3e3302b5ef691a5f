//! Text of others, shown so that it controls nothing.

use std::fmt::{self, Write};

/// Shows text that comes from others, such as a key, an owner or a reason, so that it controls
/// neither a terminal nor a log.
///
/// Control characters, line separators, invisible characters and those that change the direction of
/// writing are shown as escapes of Rust, such as `\n` or `\u{202e}`. All other text is shown as it
/// is, and costs no allocation.
///
/// [`LockKey`](crate::LockKey), [`AcquisitionId`](crate::AcquisitionId) and
/// [`LockError`](crate::LockError) show themselves so.
///
/// ```
/// use distlock_api::Printable;
///
/// assert_eq!(Printable("orders/é\u{1b}[2J\n").to_string(), r"orders/é\u{1b}[2J\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}", self.0)
    }
}

/// Passes text on with its hidden characters escaped.
struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, hidden)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            write!(self.0, "{}{}", &rest[..at], hidden.escape_default())?;
            rest = &rest[at + hidden.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

fn is_hidden(c: char) -> bool {
    // Line separators, soft hyphen, zero width, directions, invisible operators, tags.
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, LockError, LockKey};

    #[test]
    fn hidden_characters_are_escaped() {
        for hidden in
            ["\0", "\r", "\n", "\t", "\u{1b}", "\u{7f}", "\u{85}", "\u{9b}", "\u{200b}", "\u{2028}", "\u{2029}"]
                .into_iter()
                .chain(["\u{202a}", "\u{202e}", "\u{2066}", "\u{2069}", "\u{feff}", "\u{e0041}"])
        {
            let shown = Printable(format!("a{hidden}b")).to_string();
            assert!(shown.starts_with("a\\") && shown.ends_with('b') && !shown.contains(hidden), "{shown}");
        }
        for plain in ["orders/4711", "\\n", "\"quoted\" 'text'", "é", "e\u{301}", "日本", "👩"] {
            assert_eq!(Printable(plain).to_string(), plain);
        }
    }

    #[test]
    fn keys_and_errors_are_printable() {
        let key = LockKey::new("a\n\u{1b}[2J\u{202e}b").expect("a key");
        let error = LockError::new(ErrorKind::Other, "refused for x\ny\u{200b}").with_key(key.clone());
        for shown in [key.to_string(), format!("{key:?}"), error.to_string()] {
            assert!(!shown.chars().any(is_hidden), "{shown:?}");
        }
        assert_eq!(LockKey::new(key.as_str()).expect("a key"), key);
    }
}
