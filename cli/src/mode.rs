//! Modes on the command line, in tables and in JSON. No I/O.

use distlock::{AcquisitionId, Capabilities, LockHolder, LockInfo, Mode};
use serde_json::{Map, Value};

/// Reads how many permits to take of how many: `1/10`.
///
/// # Errors
/// A text that says what is wrong with the numbers, or how they are written.
pub(crate) fn parse_permits(text: &str) -> Result<Mode, String> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let numbers = text.split_once('/').and_then(|(take, of)| Some((number(take)?, number(of)?)));
    let (take, of) = numbers.ok_or("write how many permits to take, a slash, and how many there are: 1/10")?;
    let mode = Mode::Permits { take, of };
    let mut possible = Capabilities::default();
    possible.permits = true;
    mode.ensure_supported("MongoDB", &possible).map_err(|error| error.to_string())?;
    Ok(mode)
}

/// Returns how a lock is held, by all of its holders together: `exclusive`, `shared by 3` or
/// `7 of 10 permits`.
pub(crate) fn summary(info: &LockInfo) -> String {
    match info.mode() {
        Mode::Permits { of, .. } => format!("{} of {of} permits", info.holders.iter().map(taken).sum::<u64>()),
        Mode::Shared => format!("shared by {}", info.holders.len()),
        mode => mode.to_string(),
    }
}

fn taken(holder: &LockHolder) -> u64 {
    match holder.mode {
        Mode::Permits { take, .. } => take.into(),
        _ => 0,
    }
}

/// Returns the mode in one word.
pub(crate) fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
        _ => "exclusive",
    }
}

/// Adds the fields of a mode to a JSON object: its word, and the numbers of permits.
pub(crate) fn add_fields(object: &mut Map<String, Value>, mode: Mode) {
    object.insert("mode".to_owned(), word(mode).into());
    if let Mode::Permits { take, of } = mode {
        object.insert("take".to_owned(), take.into());
        object.insert("of".to_owned(), of.into());
    }
}

/// Returns all that hold a lock. Of one that is held exclusively, the one.
pub(crate) fn holders(info: &LockInfo) -> Vec<LockHolder> {
    let exclusive = |id: &AcquisitionId| {
        LockHolder::new(id.clone(), Mode::Exclusive, info.token, info.remaining)
            .with_holder(info.owner.clone(), info.metadata.clone())
    };
    match &info.id {
        Some(id) if info.holders.is_empty() => vec![exclusive(id)],
        _ => info.holders.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_two_numbers() {
        assert_eq!(parse_permits("1/10"), Ok(Mode::Permits { take: 1, of: 10 }));
        assert_eq!(parse_permits("10/10"), Ok(Mode::Permits { take: 10, of: 10 }));
        for text in ["", "1", "/", "1/", "/10", "+1/10", "-1/10", "1 / 10", "1/10/2", "1/99999999999", "a/b"] {
            let error = parse_permits(text).unwrap_err();
            assert!(error.contains("1/10"), "{text}: {error}");
        }
        for (text, why) in [("0/10", "take at least one"), ("1/0", "at least one"), ("3/2", "at most as many")] {
            let error = parse_permits(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
