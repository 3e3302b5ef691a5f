//! What an observer knows of a key, without I/O (L8).

use distlock_api::{AcquisitionId, FencingToken, LockEvent, LockInfo};
use std::collections::VecDeque;

/// The leader of a key, as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The owner, as the leader named it; `None` if it named none.
    pub owner: Option<String>,
    /// The acquisition of the lock. It differs for each leader and each term, except within one
    /// process that hands the lock on to another of its own candidates without a request.
    pub id: AcquisitionId,
    /// The last token that the store has granted. The leader's term is this token or a smaller one:
    /// a store may grant a block of tokens with one lease, as MongoDB does. What a leader has not
    /// used is given back, so the next one's last token may be smaller.
    pub last_term: FencingToken,
}

/// How many former leaders are remembered, against a late event or an outdated read.
const REMEMBERED: usize = 16;

/// What was reported last, and what may follow it.
///
/// Tokens do not order leaders, because a block that was not used up is given back. The order is
/// that of the events. A read is ahead of the events: those before the grant that it shows are
/// outdated.
#[derive(Debug, Default)]
pub(super) struct View {
    /// `None` before the first report.
    reported: Option<Option<Leader>>,
    /// The leader that a read has shown, until the events have come to its grant or its end.
    ahead: Option<AcquisitionId>,
    /// Leaders that were reported before, the last one at the end.
    former: VecDeque<Leader>,
}

/// What an event shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// Another leader, or none.
    Change(Option<Leader>),
    /// A grant that may be an outdated one: a read shows.
    Unclear,
}

impl View {
    /// Takes a state that was read. Returns the leader if that is a change.
    pub(super) fn on_read(&mut self, info: Option<&LockInfo>) -> Option<Option<Leader>> {
        let Some((info, id)) = info.and_then(|info| Some((info, info.id.clone()?))) else { return self.on_vacancy() };
        let leader = Leader { owner: info.owner.clone(), id, last_term: info.token };
        if self.is_present(&leader.id) || self.is_former(&leader) {
            return None;
        }
        self.ahead = Some(leader.id.clone());
        Some(self.report(Some(leader)))
    }

    /// Takes an event of this key.
    pub(super) fn on_event(&mut self, event: LockEvent) -> Seen {
        match event {
            LockEvent::Granted { id, token, owner, .. } => self.on_grant(Leader { owner, id, last_term: token }),
            LockEvent::Released { id, .. } | LockEvent::Expired { id, .. } | LockEvent::ForceReleased { id, .. } => {
                self.events_came_to(&id);
                let change = if self.is_present(&id) { self.on_vacancy() } else { None };
                change.map_or(Seen::Nothing, Seen::Change)
            }
            // A gap, and events that are added later: the next read shows what has changed.
            _ => Seen::Nothing,
        }
    }

    fn on_grant(&mut self, leader: Leader) -> Seen {
        self.events_came_to(&leader.id);
        if self.is_present(&leader.id) || self.is_former(&leader) {
            Seen::Nothing
        } else if self.ahead.is_some() {
            Seen::Unclear
        } else {
            Seen::Change(self.report(Some(leader)))
        }
    }

    fn events_came_to(&mut self, id: &AcquisitionId) {
        self.ahead.take_if(|ahead| ahead == id);
    }

    fn on_vacancy(&mut self) -> Option<Option<Leader>> {
        if self.reported == Some(None) { None } else { Some(self.report(None)) }
    }

    fn is_present(&self, id: &AcquisitionId) -> bool {
        matches!(&self.reported, Some(Some(leader)) if leader.id == *id)
    }

    /// Whether this leader was reported before another one, or none. A later lease of the same
    /// acquisition has a greater token.
    fn is_former(&self, leader: &Leader) -> bool {
        self.former.iter().any(|former| former.id == leader.id && leader.last_term <= former.last_term)
    }

    fn report(&mut self, leader: Option<Leader>) -> Option<Leader> {
        if let Some(Some(former)) = self.reported.replace(leader.clone()) {
            self.former.push_back(former);
            if self.former.len() > REMEMBERED {
                self.former.pop_front();
            }
        }
        leader
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_api::{LockKey, Mode};

    use super::*;

    fn key() -> LockKey {
        LockKey::new("k").unwrap()
    }

    fn id(name: &str) -> AcquisitionId {
        AcquisitionId::new(name)
    }

    fn granted(name: &str, token: u64) -> LockEvent {
        LockEvent::Granted {
            key: key(),
            id: id(name),
            token: FencingToken::new(token),
            owner: Some(name.into()),
            mode: Mode::Exclusive,
        }
    }

    fn released(name: &str) -> LockEvent {
        LockEvent::Released { key: key(), id: id(name) }
    }

    fn read(name: &str, token: u64) -> LockInfo {
        let info = LockInfo::new(key(), Some(id(name)), FencingToken::new(token), Duration::from_secs(1));
        info.with_holder(Some(name.into()), [].into())
    }

    fn leader(name: &str, token: u64) -> Option<Leader> {
        Some(Leader { owner: Some(name.into()), id: id(name), last_term: FencingToken::new(token) })
    }

    #[test]
    fn l8_the_first_report_is_the_present_leader_or_none() {
        assert_eq!(View::default().on_read(None), Some(None));
        assert_eq!(View::default().on_read(Some(&read("a", 1))), Some(leader("a", 1)));
        let only_closed = LockInfo::new(key(), None, FencingToken::new(1), Duration::from_secs(1));
        assert_eq!(View::default().on_read(Some(&only_closed)), Some(None), "a minimum hold is no leader");
    }

    #[test]
    fn l8_each_change_is_reported_once_in_order() {
        let mut view = View::default();
        assert_eq!(view.on_read(Some(&read("a", 1))), Some(leader("a", 1)));
        assert_eq!(view.on_event(granted("a", 1)), Seen::Nothing, "the event of what was read");
        assert_eq!(view.on_event(released("a")), Seen::Change(None));
        assert_eq!(view.on_event(granted("b", 2)), Seen::Change(leader("b", 2)));
        assert_eq!(view.on_read(Some(&read("b", 2))), None);
        assert_eq!(view.on_event(granted("c", 3)), Seen::Change(leader("c", 3)), "without the end of b");
        assert_eq!(view.on_event(released("b")), Seen::Nothing, "the late end of b is not the end of c");
        assert_eq!(view.on_read(None), Some(None), "an expiry has no event");
        assert_eq!(view.on_event(released("c")), Seen::Nothing);
    }

    #[test]
    fn l8_what_is_older_than_the_last_report_is_ignored() {
        let mut view = View::default();
        assert_eq!(view.on_read(Some(&read("c", 3))), Some(leader("c", 3)));
        for (event, expected) in [
            (granted("a", 1), Seen::Unclear),
            (released("a"), Seen::Nothing),
            // Its block of tokens was longer.
            (granted("b", 7), Seen::Unclear),
            (released("b"), Seen::Nothing),
            (granted("c", 3), Seen::Nothing),
        ] {
            assert_eq!(view.on_event(event), expected);
        }
        assert_eq!(view.on_event(released("c")), Seen::Change(None));
        assert_eq!(view.on_event(granted("c", 3)), Seen::Nothing, "also while no leader is known");
        assert_eq!(view.on_read(Some(&read("c", 3))), None, "also if it was read");
        assert_eq!(view.on_event(granted("d", 4)), Seen::Change(leader("d", 4)));
    }

    #[test]
    fn l8_a_leader_with_a_smaller_token_is_reported() {
        let mut view = View::default();
        assert_eq!(view.on_read(Some(&read("a", 65_536))), Some(leader("a", 65_536)));
        assert_eq!(view.on_event(released("a")), Seen::Change(None), "it gives back what it has not used");
        assert_eq!(view.on_event(granted("b", 3)), Seen::Change(leader("b", 3)));
        assert_eq!(view.on_read(Some(&read("c", 2))), Some(leader("c", 2)));
    }

    #[test]
    fn l8_a_grant_that_may_be_outdated_is_decided_by_a_read() {
        let mut view = View::default();
        assert_eq!(view.on_read(Some(&read("a", 1))), Some(leader("a", 1)));
        // The event of the end of a is missing.
        assert_eq!(view.on_event(granted("b", 2)), Seen::Unclear);
        assert_eq!(view.on_read(Some(&read("b", 2))), Some(leader("b", 2)));
        assert_eq!(view.on_event(released("b")), Seen::Change(None));
        assert_eq!(view.on_event(granted("c", 3)), Seen::Change(leader("c", 3)));
    }

    #[test]
    fn l8_a_later_lease_of_the_same_acquisition_is_reported() {
        let mut view = View::default();
        assert_eq!(view.on_read(Some(&read("a", 1))), Some(leader("a", 1)));
        assert_eq!(view.on_read(None), Some(None));
        assert_eq!(view.on_read(Some(&read("a", 1))), None, "outdated");
        assert_eq!(view.on_read(Some(&read("a", 2))), Some(leader("a", 2)));
    }

    #[test]
    fn few_former_leaders_are_remembered() {
        let mut view = View::default();
        for token in 1..100 {
            assert!(view.on_read(Some(&read(&token.to_string(), token))).is_some());
        }
        assert_eq!(view.former.len(), REMEMBERED);
    }
}
