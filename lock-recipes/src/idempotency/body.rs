//! Bodies: what is read of them, and the body of the layer's responses.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response of [`IdempotencyService`](super::IdempotencyService): the body of the
    /// inner service, what was read of it, a replay, or a refusal.
    pub struct IdempotencyBody<B: Body> {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
        error: Option<B::Error>,
        #[pin]
        rest: Option<B>,
    }
}

impl<B: Body> IdempotencyBody<B> {
    /// The body of the inner service, as it is.
    pub(super) fn passing(body: B) -> Self {
        Self { data: None, trailers: None, error: None, rest: Some(body) }
    }

    /// A body of these bytes.
    pub(super) fn whole(data: Bytes) -> Self {
        Self { data: Some(data).filter(|data| !data.is_empty()), trailers: None, error: None, rest: None }
    }

    /// Reads a body to its end or its error. Returns its bytes if it can be kept, which a body with
    /// trailers or an error cannot.
    pub(super) async fn read(body: B) -> (Self, Option<Bytes>) {
        let mut body = pin!(body);
        let mut data = BytesMut::new();
        let (mut trailers, mut error) = (None, None);
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            match frame.map(Frame::into_data) {
                Ok(Ok(chunk)) => append(&mut data, chunk),
                Ok(Err(other)) => trailers = other.into_trailers().ok().or(trailers),
                Err(failure) => {
                    error = Some(failure);
                    break;
                }
            }
        }
        let data = data.freeze();
        let kept = (trailers.is_none() && error.is_none()).then(|| data.clone());
        (Self { trailers, error, ..Self::whole(data) }, kept)
    }
}

fn append(data: &mut BytesMut, mut chunk: impl Buf) {
    while chunk.has_remaining() {
        let part = chunk.chunk();
        data.extend_from_slice(part);
        let len = part.len();
        chunk.advance(len);
    }
}

/// Why the body of a request was not read.
#[derive(Debug)]
pub(super) enum Unread {
    TooLong,
    TooSlow,
    Failed(Box<dyn StdError + Send + Sync>),
}

/// Reads the body of a request, which may have this many bytes. Trailers are dropped.
pub(super) async fn read_request<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body<Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    let mut body = pin!(body);
    // Memory that is reserved and not written to costs nothing, and growing would take up to twice
    // the length.
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(limit).min(limit);
    let mut data = BytesMut::with_capacity(expected);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|error| Unread::Failed(error.into()))?;
        if let Ok(chunk) = frame.into_data() {
            if chunk.remaining() > limit - data.len() {
                return Err(Unread::TooLong);
            }
            append(&mut data, chunk);
        }
    }
    Ok(data.freeze())
}

impl<B> Body for IdempotencyBody<B>
where
    B: Body<Data: From<Bytes>>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        if let Some(data) = this.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data.into()))));
        }
        if let Some(error) = this.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(trailers) = this.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let Some(rest) = this.rest.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        Poll::Ready(ready!(rest.poll_frame(cx)))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
            && self.error.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.rest, &self.error) {
            (Some(rest), _) => rest.size_hint(),
            (None, Some(_)) => SizeHint::new(),
            (None, None) => SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64)),
        }
    }
}

impl<B: Body + fmt::Debug> fmt::Debug for IdempotencyBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBody")
            .field("bytes", &self.data.as_ref().map(Bytes::len))
            .field("rest", &self.rest)
            .finish_non_exhaustive()
    }
}
