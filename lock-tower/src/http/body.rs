//! The body that holds the lock.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::gate::{Ending, Hold};

pin_project! {
    /// The body of a response of [`LockService`](crate::LockService): the body of the inner
    /// service, which holds the lock, or that of a refusal.
    ///
    /// When the inner body has ended or failed, or this body is dropped, the inner body is dropped
    /// and then the lock released. Frames, trailers, `is_end_stream` and `size_hint` are those of
    /// the inner body.
    ///
    /// If the lock ends before the body, the body fails with [`LockBodyError::Lost`] or
    /// [`LockBodyError::HeldTooLong`], so that a client cannot take a part for the whole.
    pub struct LockBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<B> {
        // The order of the fields is the order in which they are dropped.
        Inner { #[pin] body: B, hold: Option<Hold> },
        Refused { text: Option<Bytes> },
        // The body was dropped, and then the lock released: at the end of the body, or earlier with
        // an error for the reader.
        Done,
    }
}

impl<B> LockBody<B> {
    pub(super) fn new(body: B, hold: Option<Hold>) -> Self {
        Self { kind: Kind::Inner { body, hold } }
    }

    pub(super) fn refused(text: Bytes) -> Self {
        Self { kind: Kind::Refused { text: Some(text).filter(|text| !text.is_empty()) } }
    }

    /// Returns the body of the inner service, and releases the lock if it is still held. Returns
    /// `None` for a refusal, and after the lock was released or lost.
    pub fn into_inner(self) -> Option<B> {
        match self.kind {
            Kind::Inner { body, .. } => Some(body),
            _ => None,
        }
    }
}

impl<B> Body for LockBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = LockBodyError<B::Error>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut kind = self.project().kind;
        let ending = match kind.as_mut().project() {
            KindProj::Refused { text } => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into())))),
            KindProj::Done => return Poll::Ready(None),
            KindProj::Inner { mut body, hold } => match hold.as_ref().and_then(Hold::check) {
                Some(ending) => ending,
                None => {
                    let mut poll_frame = || body.as_mut().poll_frame(cx);
                    let frame = match hold {
                        Some(hold) => hold.run(poll_frame),
                        None => poll_frame(),
                    };
                    match frame {
                        Poll::Ready(frame) => {
                            let ended = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                            if ended && hold.is_some() {
                                finish(kind, Hold::release);
                            }
                            return Poll::Ready(frame.map(|frame| frame.map_err(LockBodyError::Inner)));
                        }
                        Poll::Pending => match hold.as_mut().map(|hold| hold.poll_ended(cx)) {
                            Some(Poll::Ready(ending)) => ending,
                            _ => return Poll::Pending,
                        },
                    }
                }
            },
        };
        finish(kind, |hold| hold.abort(ending));
        Poll::Ready(Some(Err(LockBodyError::of(ending))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
            Kind::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Kind::Done => SizeHint::with_exact(0),
        }
    }
}

/// Drops the inner body and then ends the hold: what the body kept – a transaction, a file – is
/// closed under the lock.
fn finish<B>(mut kind: Pin<&mut Kind<B>>, end: impl FnOnce(Hold)) {
    let hold = match kind.as_mut().project() {
        KindProj::Inner { hold, .. } => hold.take(),
        _ => None,
    };
    kind.set(Kind::Done);
    if let Some(hold) = hold {
        end(hold);
    }
}

impl<B: fmt::Debug> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LockBody");
        match &self.kind {
            Kind::Inner { body, hold } => debug.field("body", body).field("holds", &hold.is_some()),
            Kind::Refused { text } => debug.field("refused", text),
            Kind::Done => debug.field("done", &true),
        };
        debug.finish()
    }
}

/// Why a body ended before its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockBodyError<E> {
    /// The inner body failed.
    Inner(E),
    /// The lock was lost while the body was being sent.
    Lost,
    /// The body was being sent for longer than the maximum hold.
    HeldTooLong,
}

impl<E> LockBodyError<E> {
    fn of(ending: Ending) -> Self {
        match ending {
            Ending::Lost(_) => Self::Lost,
            Ending::TooLong => Self::HeldTooLong,
        }
    }
}

impl<E: fmt::Display> fmt::Display for LockBodyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(error) => fmt::Display::fmt(error, f),
            Self::Lost => f.write_str("the lock was lost while the response was being sent"),
            Self::HeldTooLong => f.write_str("sending the response held the lock for too long"),
        }
    }
}

/// `Inner` is transparent: its source is that of the inner error.
impl<E> StdError for LockBodyError<E>
where
    E: StdError + 'static,
{
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Inner(error) => error.source(),
            _ => None,
        }
    }
}
