//! What names an acquisition, a token and a time, and how many there are.

/// A time in ticks.
pub type Time = u8;
/// A fencing token.
pub type Token = u16;

/// The maximum of processes.
pub const CLIENTS: usize = 3;
/// The maximum of sessions of one process. Number 0 is unused.
pub const SESSIONS: usize = 4;

/// The id of an acquisition. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(crate) u8);

impl Id {
    /// No acquisition.
    pub const NONE: Self = Self(0);

    /// R25: the marker of a record whose key has several holders. No acquisition has it.
    pub const SHARED: Self = Self(u8::MAX);

    /// Makes the id of the `number`th acquisition of a process, from 1.
    #[must_use]
    pub const fn new(client: usize, number: u8) -> Self {
        Self(((client as u8) << 4) | number)
    }

    /// Whether this is an acquisition.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Returns the process.
    #[must_use]
    pub const fn client(self) -> usize {
        (self.0 >> 4) as usize
    }

    /// Returns the number of the acquisition.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0 & 15
    }
}

/// A set of acquisitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ids(pub(crate) u16);

impl Ids {
    pub(crate) const PER_CLIENT: u32 = SESSIONS as u32;

    const fn bit(id: Id) -> u16 {
        1 << (id.client() as u32 * Self::PER_CLIENT + id.number() as u32)
    }

    /// Adds an acquisition.
    pub fn add(&mut self, id: Id) {
        self.0 |= Self::bit(id);
    }

    /// Whether an acquisition is in the set.
    #[must_use]
    pub const fn has(self, id: Id) -> bool {
        self.0 & Self::bit(id) != 0
    }
}
