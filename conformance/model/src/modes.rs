//! Modes: exclusive, shared, permits.

use crate::ids::{CLIENTS, Id, Time, Token};
use crate::list::List;

/// What an acquisition claims of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// No other acquisition holds the key meanwhile.
    #[default]
    Exclusive,
    /// Only shared ones do.
    Shared,
    /// Only permits are held meanwhile, and no more than `of`.
    Permits {
        /// How many it takes.
        take: u8,
        /// How many there are, as this request sees it.
        of: u8,
    },
}

impl Mode {
    /// Whether a request of this mode fits beside holders of these modes.
    #[must_use]
    pub fn fits(self, held: impl IntoIterator<Item = Self>) -> bool {
        let mut taken = 0;
        for held in held {
            match (self, held) {
                (Self::Shared, Self::Shared) => {}
                (Self::Permits { .. }, Self::Permits { take, .. }) => taken += take,
                _ => return false,
            }
        }
        match self {
            Self::Exclusive | Self::Shared => true,
            Self::Permits { take, of } => taken + take <= of,
        }
    }
}

/// What kind of process it is. Processes of one role are interchangeable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role {
    /// The mode of its acquisitions.
    pub mode: Mode,
    /// Whether it knows only the format of the record from before the modes.
    pub old: bool,
}

impl Role {
    /// A process that acquires exclusively.
    pub const EXCLUSIVE: Self = Self { mode: Mode::Exclusive, old: false };
    /// A process of the older format.
    pub const OLD: Self = Self { mode: Mode::Exclusive, old: true };
    /// A reader.
    pub const SHARED: Self = Self { mode: Mode::Shared, old: false };

    /// A process that takes permits.
    #[must_use]
    pub const fn permits(take: u8, of: u8) -> Self {
        Self { mode: Mode::Permits { take, of }, old: false }
    }
}

/// A lease of the key: the exclusive one, or one of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The acquisition.
    pub id: Id,
    /// Its mode.
    pub mode: Mode,
    /// The last token of its block.
    pub token: Token,
    /// The length of the block.
    pub tokens: u8,
    /// When it expires.
    pub expires: Time,
}

impl Lease {
    /// Returns the first token of the block.
    #[must_use]
    pub fn first(&self) -> Token {
        first_of(self.token, self.tokens)
    }
}

/// Returns the first token of the block of this length that ends with a token.
pub(crate) fn first_of(token: Token, tokens: u8) -> Token {
    token + 1 - Token::from(tokens.max(1)).min(token + 1)
}

/// The live leases of a record, in the order of their grants.
pub type Leases = List<Lease, CLIENTS>;

impl Leases {
    /// Whether a request of this mode fits beside these.
    #[must_use]
    pub fn admit(&self, mode: Mode) -> bool {
        mode.fits(self.as_slice().iter().map(|lease| lease.mode))
    }

    /// Returns the lease of an acquisition.
    #[must_use]
    pub fn of(&self, id: Id) -> Option<Lease> {
        self.as_slice().iter().copied().find(|lease| lease.id == id)
    }

    /// Whether all of them may be held together: each fits beside those granted before it.
    #[must_use]
    pub fn are_compatible(&self) -> bool {
        let leases = self.as_slice();
        (0..leases.len()).all(|at| leases[at].mode.fits(leases[..at].iter().map(|lease| lease.mode)))
    }
}
