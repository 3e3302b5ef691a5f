//! One state of the model.

use crate::config::Config;
use crate::ids::{CLIENTS, Id, Ids, SESSIONS, Time, Token};
use crate::list::List;
use crate::modes::{Leases, Mode, Role};

/// The maximum of messages.
pub const MESSAGES: usize = 5;

/// A ticket in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The waiting acquisition.
    pub id: Id,
    /// When it was refreshed.
    pub refreshed: Time,
    /// The length of a lease that a release grants to it.
    pub claim: Time,
    /// The length of the block of tokens that it requests.
    pub tokens: u8,
    /// Its mode.
    pub mode: Mode,
}

impl Ticket {
    /// Makes the ticket of an acquisition that begins to wait.
    #[must_use]
    pub const fn new(id: Id, role: Role, now: Time, config: &Config) -> Self {
        Self { id, refreshed: now, claim: config.claim, tokens: config.block_of(role), mode: role.mode }
    }
}

/// The record of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whether the record exists.
    pub exists: bool,
    /// `lockId`.
    pub holder: Id,
    /// `holders`, in the order of their grants.
    pub holders: Leases,
    /// `fencingToken`: the last of the latest block.
    pub token: Token,
    /// The length of that block.
    pub tokens: u8,
    /// `acquiredAt`.
    pub acquired: Time,
    /// `expiresAt`.
    pub expires: Time,
    /// `closedUntil`; 0 if open.
    pub closed: Time,
    /// The acquisitions that have released, including the last.
    pub released: Ids,
    /// `revoked`.
    pub revoked: Id,
    /// The tickets.
    pub queue: List<Ticket, CLIENTS>,
}

/// The server's state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Session {
    /// The highest number that began; kept only in memory.
    pub begun: u8,
    /// The highest number that wrote.
    pub written: u8,
    /// Whether it has released its lease; used only by the properties.
    pub released: bool,
}

/// The data of one member of the replica set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// The record.
    pub record: Record,
    /// The sessions by process and number.
    pub sessions: [[Session; SESSIONS]; CLIENTS],
    /// The greatest token ever granted; used only by the properties.
    pub given: Token,
    /// The greatest token that was force-released; used only by the properties.
    pub forced: Token,
    /// The last tokens of the holders that were force-released alone; used only by the properties.
    pub forced_alone: List<Token, 2>,
    /// The true end of the minimum hold; used only by the properties.
    pub held_until: Time,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// R8.
    #[default]
    Acquire,
    /// R12, release and leave.
    Release,
    /// R14.
    Renew,
    /// R15.
    Refresh,
    /// R24: an attempt by the fast path of R8, without a number.
    Batch,
}

/// The stage of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// In transit to the server.
    #[default]
    Sent,
    /// Begun and stalled, after it has read the clocks.
    Stalled,
    /// Executed; the answer waits for the majority.
    Pending,
    /// In transit back.
    Answer,
}

/// The server's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// No answer yet.

    #[default]
    None,
    /// Held, with `token`, `tokens` and `left`; also the answer to a renewal or refresh.
    Granted,
    /// Busy: `now`, `token`, and `left` until it is the waiter's turn.
    Busy,
    /// The lease or ticket no longer exists.
    Gone,
    /// Released by this id.
    Released,
    /// A stored document without the projection.
    Replay,
}

/// A request, and later its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Its stage.
    pub stage: Stage,
    /// Its operation.
    pub op: Op,
    /// The acquisition.
    pub id: Id,
    /// The role of its process.
    pub role: Role,
    /// The session of a numbered operation.
    pub session: u8,
    /// Its number in the session.
    pub number: u8,
    /// When it was sent, by the client's monotonic clock.
    pub sent: Time,
    /// `$$NOW`, once it has begun.
    pub now: Time,
    /// `$$CLUSTER_TIME`, in units of tokens.
    pub clock: Token,
    /// The answer.
    pub answer: Answer,
    /// The token of a renewal, the first one of a batch, or the last one used by the lease of a
    /// release; later the token of the answer.
    pub token: Token,
    /// The length of the block in the answer.
    pub tokens: u8,
    /// The remaining ticks. Of a release before it is answered, its minimum hold; of other
    /// operations, their bound (R24, R31).
    pub left: Time,
    /// Whether the acquisition held the lease when this was answered; used only by the properties.
    pub mine: bool,
    /// Whether it was sent to a former primary.
    pub to_stale: bool,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// The key may be free.
    #[default]
    Opened,
    /// A release granted the lease to `id`.
    Granted,
    /// `id` has lost the lease.
    Gone,
}

/// An event of the change stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// The acquisition.
    pub id: Id,
    /// The block's last token.
    pub token: Token,
    /// The block's length.
    pub tokens: u8,
    /// The new expiry.
    pub expires: Time,
    /// Whether it is from a primary that the process does not use yet.
    pub of_new_primary: bool,
}

/// The phase of an acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// No acquisition.

    #[default]
    Idle,
    /// An attempt is pending.
    Attempting,
    /// It has a ticket, and waits.
    Waiting,
    /// A guard has the lease.
    Held,
    /// It is being released or withdrawn, until the server has confirmed that.
    Leaving,
}

/// A busy answer from which the deadline of a pushed grant counts (R18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Anchor {
    /// When its attempt was sent, by the client's monotonic clock.
    pub sent: Time,
    /// The server's clock.
    pub now: Time,
    /// The record's token.
    pub token: Token,
}

/// A process, and its acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// Its role.
    pub role: Role,
    /// Whether it has died.
    pub dead: bool,
    /// The phase of the acquisition.
    pub phase: Phase,
    /// The number of the acquisition, and of its session.
    pub number: u8,
    /// Attempts (R8) so far.
    pub attempts: u8,
    /// Renewals so far.
    pub renewals: u8,
    /// Refreshes so far.
    pub refreshes: u8,
    /// The last number used in the session.
    pub last_call: u8,
    /// The call whose answer is awaited; 0 for none.
    pub call: u8,
    /// The bound of the batch whose answer is awaited; 0 for none.
    pub batch: Time,
    /// The server's time until which a batch that was not answered may still act; 0 for none.
    pub fence: Time,
    /// Whether a withdrawal was answered before that time.
    pub withdrawn: bool,
    /// The latest bound of its attempts, renewals and refreshes (R31); 0 if they have none.
    pub bound: Time,
    /// When the ticket was last refreshed.
    pub refreshed: Time,
    /// When to send the next attempt.
    pub wake: Time,
    /// The last busy answer.
    pub anchor: Option<Anchor>,
    /// An event that arrived before the first answer.
    pub early_event: Option<Event>,
    /// The end of the certain hold.
    pub deadline: Time,
    /// The guard's token.
    pub token: Token,
    /// The last token of the block.
    pub last_token: Token,
    /// The last token that a guard of the acquisition has had; 0 for none.
    pub used: Token,
    /// The number of further tasks of the process that wait for the lease.
    pub local: u8,
    /// The number of guards of a shared lease beside the first.
    pub others: u8,
    /// One more than the time since which nothing but the clean-up is left; 0 before, and where
    /// clean-ups are not given up.
    pub left: Time,
    /// Whether the lease was lost, so that its release is best effort.
    pub after_loss: bool,
    /// Whether the lease was lost (only with R21 switched off).
    pub lost: bool,
    /// Whether the stream has ended silently.
    pub stream_ended: bool,
    /// Whether it may have missed its loss, and must renew.
    pub must_renew: bool,
    /// Whether it still uses a former primary.
    pub at_stale: bool,
    /// The greatest token of a busy answer; used only by the properties.
    pub busy_token: Token,
    /// The events of the stream that have not arrived yet.
    pub events: List<Event, 4>,
}

/// The remaining budgets.
pub use crate::config::Faults;

/// One state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The true time, and every client's monotonic clock.
    pub time: Time,
    /// The offset of the primary's clock, plus [`SKEWED`](Self::SKEWED).
    pub offset: u8,
    /// The least and the greatest offset that any primary has had.
    pub offsets: (u8, u8),
    /// The latest reading of any primary's clock; the logical clock never goes back.
    pub latest: Time,
    /// The remaining faults.
    pub faults: Faults,
    /// The processes.
    pub clients: [Client; CLIENTS],
    /// The primary.
    pub server: Server,
    /// The data of the majority.
    pub majority: Server,
    /// A former primary that has not noticed the fail-over, and its clock's offset.
    pub stale: Option<(Server, u8, bool)>,
    /// Events that wait for the majority, with their processes.
    pub unconfirmed: List<(u8, Event), 6>,
    /// All messages in transit, in no particular order.
    pub messages: List<Message, MESSAGES>,
    /// Acquisitions whose release after a loss was lost: their leases expire.
    pub abandoned: Ids,
}

impl State {
    /// An offset of 0.
    pub const SKEWED: u8 = 4;

    /// Returns the primary's wall clock.
    #[must_use]
    pub fn now(&self) -> Time {
        (self.time + self.offset).saturating_sub(Self::SKEWED)
    }

    /// Returns the id of a process's acquisition, a new one each time with `fresh`.
    #[must_use]
    pub fn id(&self, client: usize, fresh: bool) -> Id {
        Id::new(client, if fresh { self.clients[client].number } else { self.clients[client].number.min(1) })
    }
}
