//! The text of [`GRANTS`](super::holders::GRANTS), as an event contains it.

use distlock_api::Mode;

/// One part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Granted(Granted<'t>),
    /// The minimum hold of this acquisition has begun.
    Kept(&'t str),
}

/// One grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted<'t> {
    pub(super) id: &'t str,
    pub(super) first: u64,
    pub(super) tokens: u32,
    /// The expiry in milliseconds since the epoch, by the server's clock.
    pub(super) expires_at: u64,
    pub(super) mode: Mode,
    /// Whether a release has made it.
    pub(super) by_release: bool,
}

/// Reads the text. What has another form, because another program has written it, is left out.
pub(super) fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    text.split(';').filter_map(part)
}

fn part(text: &str) -> Option<Part<'_>> {
    if let Some(id) = text.strip_prefix('~') {
        return Some(Part::Kept(id));
    }
    let mut words = text.split(' ');
    let id = words.next().filter(|id| !id.is_empty())?;
    let (id, by_release) = id.strip_prefix('+').map_or((id, true), |id| (id, false));
    let first = words.next()?.parse().ok()?;
    let tokens = words.next()?.parse().ok().filter(|tokens| *tokens > 0)?;
    let expires_at = words.next()?.parse().ok()?;
    let mode = match words.next()? {
        "s" => Mode::Shared,
        permits => {
            let (take, of) = permits.split_once('/')?;
            Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? }
        }
    };
    Some(Part::Granted(Granted { id, first, tokens, expires_at, mode, by_release }))
}

impl Granted<'_> {
    /// The last token of the block.
    pub(super) fn last(&self) -> u64 {
        self.first.saturating_add(u64::from(self.tokens) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_and_minimum_holds_are_read() {
        let read: Vec<Part<'_>> = parts("~z;a-1 7 3 5000 s;+b-2 10 1 6000 2/5;").collect();
        let first = Granted { id: "a-1", first: 7, tokens: 3, expires_at: 5000, mode: Mode::Shared, by_release: true };
        let mode = Mode::Permits { take: 2, of: 5 };
        let second = Granted { id: "b-2", first: 10, tokens: 1, expires_at: 6000, mode, by_release: false };
        assert_eq!(read, [Part::Kept("z"), Part::Granted(first), Part::Granted(second)]);
        assert_eq!((first.last(), second.last()), (9, 10));
    }

    #[test]
    fn what_has_another_form_is_left_out() {
        for text in ["", ";;", "a", "a 1 0 5 s", "a 1 1 5 x", "a -1 1 5 s", "a 1 1 5 1/x", " 1 1 5 s"] {
            assert_eq!(parts(text).count(), 0, "{text:?}");
        }
    }
}
