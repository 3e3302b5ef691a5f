//! One state of the world.

use crate::list::List;

/// Ticks.
pub type Time = u8;
/// A fencing token.
pub type Token = u16;

/// Processes at most.
pub const CLIENTS: usize = 3;
/// Sessions of one process at most, the number 0 unused.
pub const SESSIONS: usize = 4;
/// Messages at most.
pub const MESSAGES: usize = 5;

/// The id of an acquisition, nobody by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(crate) u8);

impl Id {
    /// Nobody.
    pub const NONE: Self = Self(0);

    /// The `number`th acquisition, from 1, of a process.
    #[must_use]
    pub const fn new(client: usize, number: u8) -> Self {
        Self(((client as u8) << 4) | number)
    }

    /// Whether it is somebody.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The process.
    #[must_use]
    pub const fn client(self) -> usize {
        (self.0 >> 4) as usize
    }

    /// The number of the acquisition.
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

    /// Adds one.
    pub fn add(&mut self, id: Id) {
        self.0 |= Self::bit(id);
    }

    /// Whether it is in there.
    #[must_use]
    pub const fn has(self, id: Id) -> bool {
        self.0 & Self::bit(id) != 0
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// Whose.
    pub id: Id,
    /// When it was refreshed.
    pub seen: Time,
    /// How long a lease lasts that is passed on to it.
    pub claim: Time,
    /// The block that it wants.
    pub tokens: u8,
}

/// The record of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whether there is one.
    pub exists: bool,
    /// `lockId`.
    pub holder: Id,
    /// `fencingToken`: the last of the block.
    pub token: Token,
    /// The length of the block.
    pub tokens: u8,
    /// `acquiredAt`.
    pub acquired: Time,
    /// `expiresAt`.
    pub expires: Time,
    /// `closedUntil`; open if 0.
    pub closed: Time,
    /// Who has released, the last included.
    pub released: Ids,
    /// `revoked`.
    pub revoked: Id,
    /// The tickets.
    pub queue: List<Ticket, CLIENTS>,
}

/// What the server knows of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Session {
    /// The highest number that began; only in memory.
    pub begun: u8,
    /// The highest number that wrote.
    pub written: u8,
    /// Whether it has released its lease; only the properties look at it.
    pub released: bool,
}

/// What one member of the replica set has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// The record.
    pub record: Record,
    /// The sessions by process and number.
    pub sessions: [[Session; SESSIONS]; CLIENTS],
    /// The greatest token ever given out; only the properties look at it.
    pub given: Token,
    /// The greatest token taken away by force; only the properties look at it.
    pub forced: Token,
    /// The true end of the minimum hold; only the properties look at it.
    pub held_until: Time,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// R8.
    #[default]
    Acquire,
    /// R12, releasing and leaving.
    Release,
    /// R14.
    Renew,
    /// R15.
    Refresh,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// On its way to the server.
    #[default]
    Sent,
    /// Begun, with its clocks read, and stalled.
    Stalled,
    /// Carried out; the answer waits for the majority.
    Pending,
    /// On its way back.
    Answer,
}

/// What the server says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// Nothing yet.
    #[default]
    None,
    /// Held, with `token`, `tokens` and `left`; also by a renewal or refresh.
    Granted,
    /// Not yet: `now`, `token`, and `left` until it is the asker's turn.
    Busy,
    /// Not there any more.
    Gone,
    /// Released by this id.
    Released,
    /// A stored document without the projection.
    Replay,
}

/// A request, and later its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Where it is.
    pub stage: Stage,
    /// What it asks for.
    pub op: Op,
    /// For whom.
    pub id: Id,
    /// The session of a numbered operation.
    pub session: u8,
    /// Its number in the session.
    pub number: u8,
    /// When it was sent, by the client's monotonic clock.
    pub sent: Time,
    /// `$$NOW`, once it has begun.
    pub now: Time,
    /// `$$CLUSTER_TIME`, in the magnitude of tokens.
    pub clock: Token,
    /// The answer.
    pub answer: Answer,
    /// A renewal's token, or the last one that a release has used; then that of the answer.
    pub token: Token,
    /// The length of the block in the answer.
    pub tokens: u8,
    /// Ticks that are left.
    pub left: Time,
    /// Whether the lease was the asker's when this was answered; only the properties look at it.
    pub mine: bool,
    /// Sent to a primary that is none any more.
    pub to_stale: bool,
}

/// What a stream tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Told {
    /// The key may be free.
    #[default]
    Freed,
    /// The lease was passed on to `id`.
    Granted,
    /// `id` has lost the lease.
    Gone,
}

/// An event of the change stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    /// What happened.
    pub told: Told,
    /// To whom.
    pub id: Id,
    /// The block's last token.
    pub token: Token,
    /// The block's length.
    pub tokens: u8,
    /// The new expiry.
    pub expires: Time,
    /// From a primary that the process has not heard of yet.
    pub of_new_primary: bool,
}

/// What an acquisition is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// It asks.
    Asking,
    /// It has a place and sleeps.
    Waiting,
    /// A guard has the lease.
    Held,
    /// It is given up: released or withdrawn, until the server has confirmed that.
    Leaving,
}

/// A "not yet" from which the deadline of a pushed grant is counted (R18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Anchor {
    /// When its question was sent, by the client's monotonic clock.
    pub sent: Time,
    /// The server's clock.
    pub now: Time,
    /// The record's token.
    pub token: Token,
}

/// A process, and the one acquisition that it is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// Whether it has died.
    pub dead: bool,
    /// What the acquisition is at.
    pub phase: Phase,
    /// Which acquisition; also its session.
    pub number: u8,
    /// Questions of R8 so far.
    pub asks: u8,
    /// Renewals so far.
    pub renewals: u8,
    /// Refreshes so far.
    pub refreshes: u8,
    /// The last number used in the session.
    pub last_call: u8,
    /// The call whose answer is awaited; none if 0.
    pub call: u8,
    /// When the ticket was refreshed last.
    pub refreshed: Time,
    /// When to ask again.
    pub wake: Time,
    /// The last "not yet".
    pub anchor: Option<Anchor>,
    /// A grant that was told before the first answer.
    pub kept: Option<Event>,
    /// Until when the lease is certain.
    pub deadline: Time,
    /// The guard's token.
    pub token: Token,
    /// The last token of the block.
    pub last_token: Token,
    /// The last token that a guard of the acquisition has had; none if 0.
    pub used: Token,
    /// Tasks of the process that still want the lease after this one.
    pub local: u8,
    /// The lease was lost; its release is best effort.
    pub farewell: bool,
    /// The lease was lost (only for R21 switched off).
    pub lost: bool,
    /// The stream has ended without a word.
    pub deaf: bool,
    /// It may have missed its loss, and is about to renew.
    pub doubts: bool,
    /// It takes a primary for one that is none any more.
    pub at_stale: bool,
    /// The greatest token with which the server has said "not yet"; only the properties look at it.
    pub told: Token,
    /// What the stream is about to tell.
    pub events: List<Event, 4>,
}

/// The budgets that are left.
pub use crate::config::Faults;

/// One state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The true time, and every client's monotonic clock.
    pub time: Time,
    /// What the primary's clock is ahead, plus [`SKEWED`](Self::SKEWED).
    pub offset: u8,
    /// The least and the greatest offset that any primary has had.
    pub offsets: (u8, u8),
    /// The latest reading of any primary's clock; the logical clock never goes back.
    pub latest: Time,
    /// The faults that are left.
    pub faults: Faults,
    /// The processes.
    pub clients: [Client; CLIENTS],
    /// The primary.
    pub server: Server,
    /// What a majority has.
    pub majority: Server,
    /// A primary that does not know that it is none any more, and its clock's offset.
    pub stale: Option<(Server, u8, bool)>,
    /// Events that no majority has yet, with their processes.
    pub unconfirmed: List<(u8, Event), 6>,
    /// Everything under way; its order means nothing.
    pub messages: List<Message, MESSAGES>,
    /// Acquisitions whose farewell got lost: their leases end by the ttl.
    pub abandoned: Ids,
}

impl State {
    /// An offset of 0.
    pub const SKEWED: u8 = 4;

    /// The primary's wall clock.
    #[must_use]
    pub fn now(&self) -> Time {
        (self.time + self.offset).saturating_sub(Self::SKEWED)
    }

    /// The id of a process's acquisition, if `fresh` ids are used.
    #[must_use]
    pub fn id(&self, client: usize, fresh: bool) -> Id {
        Id::new(client, if fresh { self.clients[client].number } else { self.clients[client].number.min(1) })
    }
}
