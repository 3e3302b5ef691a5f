//! The form of a connection string, and what of the arguments may be shown. No I/O.
//!
//! A connection string contains secrets. No text of it is shown, and neither is a text of the
//! driver about it, which may quote any part: a password with a slash is taken for a port.

/// The form that a message shows instead.
pub(crate) const FORM: &str = "mongodb://user:password@host:port/database?option=value";

const NO_SCHEME: &str = "it does not begin with mongodb:// or mongodb+srv://";
const NOT_ENCODED: &str = "in the user or the password, one of the characters % : / ? # [ ] @ or a space is not \
                           percent-encoded: write %25 %3A %2F %3F %23 %5B %5D %40 %20";
const NO_HOST: &str = "a host is missing";
const NO_PORT: &str = "a port is no number from 1 to 65535";

/// Returns what is wrong with the parts of a connection string before its options; `None` if
/// nothing is.
pub(crate) fn flaw(uri: &str) -> Option<&'static str> {
    let scheme = ["mongodb://", "mongodb+srv://"].into_iter().find_map(|scheme| uri.strip_prefix(scheme));
    let Some(rest) = scheme else { return Some(NO_SCHEME) };
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let hosts = match authority.rsplit_once('@') {
        Some((user_info, hosts)) => {
            if !is_encoded(user_info) {
                return Some(NOT_ENCODED);
            }
            hosts
        }
        // What stands before it is a password that was cut off.
        None if tail.contains('@') => return Some(NOT_ENCODED),
        None => authority,
    };
    hosts.split(',').find_map(|host| {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        match (name, port) {
            ("", _) => Some(NO_HOST),
            (_, Some(port)) if !is_port(port) => Some(NO_PORT),
            _ => None,
        }
    })
}

/// Whether a user, or a user and a password with a colon between them, have only characters that
/// may stand there.
fn is_encoded(user_info: &str) -> bool {
    let escapes = user_info.split('%').skip(1);
    let are_escapes = |after: &str| after.len() >= 2 && after.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    let is_reserved = |c: char| matches!(c, '/' | '?' | '#' | '[' | ']' | '@') || c.is_whitespace();
    user_info.matches(':').count() <= 1 && !user_info.contains(is_reserved) && escapes.into_iter().all(are_escapes)
}

/// Returns the names of the options in a connection string that a text is about.
pub(crate) fn options_in(uri: &str, text: &str) -> Vec<String> {
    let text = text.to_ascii_lowercase();
    let options = uri.split_once('?').map_or("", |(_, options)| options).split('&');
    let names = options.filter_map(|option| Some(option.split_once('=')?.0));
    // Anything else is no name of an option, but perhaps a part of a secret.
    let names = names.filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    names.filter(|name| text.contains(&name.to_ascii_lowercase())).map(str::to_owned).collect()
}

/// Whether an argument may be shown: it is a plain word, or the name of an option. A shell divides
/// a connection string at each space, so of a line with a part of one no word may be.
pub(crate) fn may_be_shown<'a>(argument: &str, mut line: impl Iterator<Item = &'a str>) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_of_uri = |word: &str| word.contains("://") || word.contains(['@', '&', '?', '%', '\'', '"', '`', '\\']);
    argument.len() <= 40 && argument.chars().all(is_plain) && !line.any(is_of_uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaw_is_named_without_a_part_of_the_text() {
        for (uri, expected) in [
            ("mongodb://h", None),
            ("mongodb://u@h", None),
            ("mongodb://u:p%40ss@h1:27017,h2,[::1]:27018/db?w=1", None),
            ("mongodb+srv://u:p@cluster.example/db?appName=a@b", None),
            ("u:p@h", Some(NO_SCHEME)),
            ("mongo://u:p@h", Some(NO_SCHEME)),
            ("mongodb://u:p@ss@h", Some(NOT_ENCODED)),
            ("mongodb://u:p:ss@h", Some(NOT_ENCODED)),
            ("mongodb://u:p/ss@h", Some(NOT_ENCODED)),
            ("mongodb://u:p?ss@h", Some(NOT_ENCODED)),
            ("mongodb://u:p ss@h", Some(NOT_ENCODED)),
            ("mongodb://u:100%@h", Some(NOT_ENCODED)),
            ("mongodb://u:p@", Some(NO_HOST)),
            ("mongodb://h1,,h2", Some(NO_HOST)),
            ("mongodb://h:0", Some(NO_PORT)),
            ("mongodb://h:99999", Some(NO_PORT)),
            ("mongodb://h:", Some(NO_PORT)),
        ] {
            assert_eq!(flaw(uri), expected, "{uri}");
        }
    }

    #[test]
    fn options_are_named_by_names_alone() {
        let uri = "mongodb://u:maxPoolSize@h/?maxPoolSize=many&tls=x y&s3cret&pass/word=1";
        assert_eq!(options_in(uri, "maxpoolsize must be a number, not many: s3cret pass/word"), ["maxPoolSize"]);
        assert!(options_in("mongodb://h", "maxPoolSize").is_empty());
    }

    #[test]
    fn only_plain_words_are_shown() {
        for (argument, line, shown) in [
            ("--unknown", &["ls", "--unknown"][..], true),
            ("rn", &["rn", "k", "--", "true"], true),
            ("mongodb://u:p@h", &["ls", "mongodb://u:p@h"], false),
            ("u:p@h", &["ls", "u:p@h"], false),
            ("ss", &["--uri", "mongodb://u:pa", "ss", "w0rd@h", "ls"], false),
            ("AWS_SESSION_TOKEN:tok", &["ls", "AWS_SESSION_TOKEN:tok"], false),
            ("--password=x", &["ls", "--password=x"], false),
        ] {
            assert_eq!(may_be_shown(argument, line.iter().copied()), shown, "{argument}");
        }
    }
}
