//! Removes the secrets of a connection string from texts. No I/O.

use std::fmt;

const HIDDEN: &str = "***";

/// Options of a connection string whose values are secrets, in lower case.
const SECRET_OPTIONS: [&str; 3] = ["authmechanismproperties", "tlscertificatekeyfilepassword", "proxypassword"];

/// The secrets of one connection string, as they are written there and as they are meant.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets").field(&self.0.len()).finish()
    }
}

impl Secrets {
    /// Finds the password, and the options that contain secrets.
    pub(crate) fn of(uri: &str) -> Self {
        let mut found = Vec::new();
        let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        if let Some((_, password)) = user_info(rest).and_then(|info| info.split_once(':')) {
            found.push(password);
        }
        if let Some((_, options)) = rest.split_once('?') {
            let secret = |name: &str| SECRET_OPTIONS.contains(&name.to_ascii_lowercase().as_str());
            found.extend(options.split('&').filter_map(|option| {
                let (name, value) = option.split_once('=')?;
                secret(name).then_some(value)
            }));
        }
        let mut secrets = Vec::new();
        for secret in found.into_iter().filter(|secret| !secret.is_empty()) {
            let decoded = percent_decoded(secret);
            if decoded != secret {
                secrets.push(decoded);
            }
            secrets.push(secret.to_owned());
        }
        // The longest first: one may contain another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// Returns the text without these secrets, and without the password of any connection string
    /// in it.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = redact_uris(text);
        for secret in &self.0 {
            text = text.replace(secret.as_str(), HIDDEN);
        }
        text
    }
}

/// Hides the passwords of the connection strings in a text, such as a misplaced argument that an
/// error quotes.
pub(crate) fn redact_uris(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        rest = after;
        let word = &rest[..rest.find(|c: char| c.is_whitespace() || c == '\'').unwrap_or(rest.len())];
        if let Some(info) = user_info(word)
            && let Some((user, _)) = info.split_once(':')
        {
            shown.push_str(&format!("{user}:{HIDDEN}"));
            rest = &rest[info.len()..];
        }
    }
    shown.push_str(rest);
    shown
}

/// Returns the part before the last `@` of the hosts: a password that is not encoded may contain
/// one.
fn user_info(rest: &str) -> Option<&str> {
    rest.rsplit_once('@').map(|(info, _)| info)
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| bytes.get(at + 1..at + 3)).flatten();
        let value = escape.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        decoded.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_the_connection_string_stays() {
        for (uri, text, shown) in [
            ("mongodb://u:hunter2@h/db", "refused hunter2 of u", "refused *** of u"),
            ("mongodb://u:p%40ss@h", "p@ss and p%40ss", "*** and ***"),
            ("mongodb://u:a@b@h1,h2/db", "a@b", "***"),
            ("mongodb://h/?tlsCertificateKeyFilePassword=k3y&w=1", "k3y w=1", "*** w=1"),
            ("mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:tok", "AWS_SESSION_TOKEN:tok", "***"),
            ("mongodb://h/db", "nothing to hide", "nothing to hide"),
            ("no connection string", "text", "text"),
        ] {
            assert_eq!(Secrets::of(uri).redact(text), shown, "{uri}");
        }
    }

    #[test]
    fn a_connection_string_in_a_text_is_shown_without_its_password() {
        for (text, shown) in [
            ("argument 'mongodb://u:pw@h/db' found", "argument 'mongodb://u:***@h/db' found"),
            ("mongodb+srv://u:pw@h and mongodb://v:pq@i", "mongodb+srv://u:***@h and mongodb://v:***@i"),
            ("mongodb://u@h, mongodb://h", "mongodb://u@h, mongodb://h"),
        ] {
            assert_eq!(redact_uris(text), shown);
        }
    }

    #[test]
    fn escapes_are_decoded() {
        for (text, decoded) in [("a%20b", "a b"), ("%zz%", "%zz%"), ("%C3%A9", "é")] {
            assert_eq!(percent_decoded(text), decoded);
        }
    }
}
