//! The environment of the command. No I/O.

use distlock::FencingToken;

use crate::connect::URI_VARIABLE;

/// What `--help` says about it.
pub(crate) const HELP: &str = "\
Environment of the command:
  DISTLOCK_OWNER       the owner of the locks
  DISTLOCK_KEYS        the number of locks
  DISTLOCK_KEY_1, …    the keys, in the order of the command line, each of them once
  DISTLOCK_TOKEN_1, …  their fencing tokens
  DISTLOCK_KEY         the key, if there is one lock
  DISTLOCK_TOKEN       its fencing token, if there is one lock
A fencing token is a decimal number below 2^53 that grows with each grant of its key. Pass it along
with every write, and let the resource refuse a smaller one than it has seen.
DISTLOCK_MONGODB_URI is not passed on, unless --keep-uri is given.";

/// Returns the variables for the locks: keys and tokens in the order of the command line.
pub(crate) fn variables(locks: &[(String, FencingToken)], owner: &str) -> Vec<(String, String)> {
    let mut variables =
        vec![("DISTLOCK_OWNER".to_owned(), owner.to_owned()), ("DISTLOCK_KEYS".to_owned(), locks.len().to_string())];
    let mut add = |suffix: &str, key: &str, token: FencingToken| {
        variables.push((format!("DISTLOCK_KEY{suffix}"), key.to_owned()));
        variables.push((format!("DISTLOCK_TOKEN{suffix}"), token.to_string()));
    };
    for (number, (key, token)) in locks.iter().enumerate() {
        add(&format!("_{}", number + 1), key, *token);
    }
    if let [(key, token)] = locks {
        add("", key, *token);
    }
    variables
}

/// Whether the command does not get an inherited variable: it is about the locks of an outer
/// `distlock run`, and would be mistaken for ours, or it contains a secret.
pub(crate) fn is_removed(name: &str, keep_uri: bool) -> bool {
    name == "DISTLOCK_OWNER"
        || name.starts_with("DISTLOCK_KEY")
        || name.starts_with("DISTLOCK_TOKEN")
        || name == URI_VARIABLE && !keep_uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_without_a_number_are_for_one_lock() {
        let locks = [("b".to_owned(), FencingToken::new(7)), ("a".to_owned(), FencingToken::new(9))];
        for (locks, expected) in [
            (&locks[..1], "OWNER=me KEYS=1 KEY_1=b TOKEN_1=7 KEY=b TOKEN=7"),
            (&locks[..], "OWNER=me KEYS=2 KEY_1=b TOKEN_1=7 KEY_2=a TOKEN_2=9"),
        ] {
            let variables = variables(locks, "me");
            let shown = variables.iter().map(|(name, value)| format!("{}={value}", &name["DISTLOCK_".len()..]));
            assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
        }
    }

    #[test]
    fn variables_of_an_outer_run_and_secrets_are_removed() {
        for (name, removed) in [
            ("DISTLOCK_KEY", true),
            ("DISTLOCK_KEY_2", true),
            ("DISTLOCK_KEYS", true),
            ("DISTLOCK_TOKEN_1", true),
            ("DISTLOCK_OWNER", true),
            ("DISTLOCK_MONGODB_URI", true),
            ("DISTLOCK_MONGODB_URI_FILE", false),
            ("PATH", false),
        ] {
            assert_eq!(is_removed(name, false), removed, "{name}");
        }
        assert!(!is_removed("DISTLOCK_MONGODB_URI", true));
    }
}
