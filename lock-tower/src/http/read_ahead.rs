//! Reads request bodies before the wait.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::inner::inner_accessors;

type ReadFrame = Result<Frame<Bytes>, axum::Error>;

/// Reads request bodies, up to a number of bytes, before it passes the requests on. For axum; put
/// it *outside* of a [`LockLayer`](crate::LockLayer).
///
/// A server does not notice that an HTTP/1 client has disconnected while a request body is unread.
/// A request that waits for its lock reads nothing. So without this layer a waiting request with a
/// body keeps its place in the queue until its turn comes or its wait is over. With this layer it
/// leaves at once. HTTP/2 does not need the layer.
///
/// The part of a body that was read is kept in memory, and the handler reads it first. The rest of
/// a longer body follows as it is sent. This layer refuses no request.
///
/// ```
/// use axum::{Router, routing::put};
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, http::ReadAheadLayer, key::RouteKey};
///
/// let app: Router = Router::new()
///     .route("/orders/{id}", put(|body: String| async move { body }))
///     .route_layer(LockLayer::new(MemoryProvider::new(), RouteKey::any_method().typed::<u64>("id")))
///     .route_layer(ReadAheadLayer::new(64 * 1024)); // the last one is outermost
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadAheadLayer {
    limit: usize,
}

impl ReadAheadLayer {
    /// Reads until at least this many bytes have come, or the body has ended.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit }
    }
}

impl<S> Layer<S> for ReadAheadLayer {
    type Service = ReadAhead<S>;

    fn layer(&self, inner: S) -> ReadAhead<S> {
        ReadAhead { inner, limit: self.limit }
    }
}

/// Passes requests on when their bodies have been read. Made by [`ReadAheadLayer`].
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead<S> {
    inner: S,
    limit: usize,
}

impl<S> ReadAhead<S> {
    inner_accessors!();
}

impl<S: Service<Request<Body>> + Clone> Service<Request<Body>> for ReadAhead<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = ReadAheadFuture<S, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.limit == 0 || request.body().is_end_stream() {
            return ReadAheadFuture { state: State::Calling { future: self.inner.call(request) } };
        }
        let next = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, next);
        let reading = Reading { service, request, frames: VecDeque::new(), room: self.limit };
        ReadAheadFuture { state: State::Reading { reading: Some(reading) } }
    }
}

pin_project! {
    /// The future of [`ReadAhead`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReadAheadFuture<S, F> {
        #[pin]
        state: State<S, F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F> {
        Reading { reading: Option<Reading<S>> },
        Calling { #[pin] future: F },
    }
}

struct Reading<S> {
    service: S,
    request: Request<Body>,
    frames: VecDeque<ReadFrame>,
    room: usize,
}

impl<S> Reading<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.room > 0 {
            let Some(frame) = ready!(Pin::new(self.request.body_mut()).poll_frame(cx)) else { break };
            match &frame {
                Ok(frame) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    self.room = self.room.saturating_sub(length);
                }
                // The handler gets the error.
                Err(_) => self.room = 0,
            }
            self.frames.push_back(frame);
        }
        Poll::Ready(())
    }
}

impl<S: Service<Request<Body>>> Future for ReadAheadFuture<S, S::Future> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let reading = match state.as_mut().project() {
                StateProj::Calling { future } => return future.poll(cx),
                StateProj::Reading { reading } => {
                    ready!(reading.as_mut().expect("polled after completion").poll(cx));
                    reading.take()
                }
            };
            let Reading { mut service, request, frames, .. } = reading.expect("looked at above");
            let request = request.map(|rest| Body::new(Read { frames, rest }));
            state.set(State::Calling { future: service.call(request) });
        }
    }
}

impl<S, F> fmt::Debug for ReadAheadFuture<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAheadFuture").finish_non_exhaustive()
    }
}

/// The part that was read, and then the rest.
struct Read {
    frames: VecDeque<ReadFrame>,
    rest: Body,
}

impl http_body::Body for Read {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: usize = self.frames.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum();
        let (rest, read) = (self.rest.size_hint(), read as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}
