//! The control connection of a pair: frames in both directions.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_reactor::{Driver, Interest, Readiness, Source, Token, awake};
use treadle_transfer::{Event, Message, PairEnd};

use crate::inner::Inner;
use crate::peer::Shared;
use crate::stream::{Stream, would_block};
use crate::wire::{self, Frame, WireError};

/// Bytes read in one turn of the leader.
const TURN: usize = 256 * 1024;
/// The receive buffer at first, and its length for a connection that fills it.
const SMALL_BUFFER: usize = 16 * 1024;
const LARGE_BUFFER: usize = 256 * 1024;
/// From so many bytes on, a copy costs more than an allocation.
const LONG: usize = 8 * 1024;
/// What the other side makes this side write, while it does not read it: in bytes, far more than
/// an honest peer leaves unread.
const MAX_ANSWERS: usize = 1 << 20;
/// How long the other side may take to close, too.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Control {
    stream: Option<Box<Stream>>,
    driver: Arc<Driver>,
    token: Token,
    interest: Interest,
    out: Vec<u8>,
    /// Bytes at the start of `out` that were written.
    written: usize,
    /// Something in `out` is to be written now.
    urgent: bool,
    answers: Answers,
    input: Vec<u8>,
    /// Bytes at the start of `input` that were read.
    filled: usize,
    phase: Phase,
}

/// How much of what waits to be written was caused by the other side. Counted in two spans, as
/// nobody knows which bytes of the queue are whose: when what waited at the start of a span is
/// written, nothing from before it waits any more.
#[derive(Debug, Default)]
struct Answers {
    earlier: usize,
    span: usize,
    /// Bytes that are still to be written of what waited when the span began.
    before: usize,
}

impl Answers {
    fn written(&mut self, count: usize, queued: usize) {
        if queued == 0 {
            *self = Self::default();
        } else if count < self.before {
            self.before -= count;
        } else {
            self.earlier = std::mem::take(&mut self.span);
            self.before = queued;
        }
    }
}

/// How far the end of the connection is. It is closed in order: closing a socket with unread bytes
/// would make the other side lose what it has not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// What waits is still written. Since when, as [`awake::now`] has it.
    Closing(Duration),
    /// Everything is written; the other side has to close, too.
    Shut(Duration),
    /// Over.
    Gone,
}

impl Control {
    pub(crate) fn new(stream: Stream, driver: Arc<Driver>, token: Token) -> Self {
        Self {
            stream: Some(Box::new(stream)),
            driver,
            token,
            interest: Interest::None,
            out: Vec::new(),
            written: 0,
            urgent: false,
            answers: Answers::default(),
            input: vec![0; SMALL_BUFFER],
            filled: 0,
            phase: Phase::Open,
        }
    }

    fn want(&mut self, interest: Interest) {
        if interest != self.interest && self.stream.is_some() {
            self.interest = interest;
            self.driver.sources.interest(self.token, interest);
        }
    }

    /// Appends frames to what is to be written: at once, or with what else is, a tick later at the
    /// latest.
    pub(crate) fn push(&mut self, urgent: bool, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.stream.is_some() {
            encode(&mut self.out);
            self.urgent |= urgent;
        }
    }

    /// Appends frames that are there already.
    pub(crate) fn push_whole(&mut self, urgent: bool, frames: Vec<u8>) {
        if self.out.is_empty() && frames.len() >= LONG && self.stream.is_some() {
            self.out = frames;
            self.urgent |= urgent;
        } else {
            self.push(urgent, |out| out.extend_from_slice(&frames));
        }
    }

    /// Whatever is to be written is to be written now.
    pub(crate) fn hurry(&mut self) {
        self.urgent = !self.out.is_empty();
    }

    /// Whether something is to be written at once.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent && !self.out.is_empty()
    }

    /// Whether something is to be written, and not at once.
    pub(crate) fn has_time(&self) -> bool {
        !self.urgent && !self.out.is_empty()
    }

    /// Appends what the other side gave cause to. `false`: it does not read, and there is too much.
    pub(crate) fn answer(&mut self, urgent: bool, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let before = self.out.len();
        self.push(urgent, encode);
        self.answers.span += self.out.len() - before;
        self.answers.earlier + self.answers.span <= MAX_ANSWERS
    }

    pub(crate) fn queued(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        // TLS may hold records that the socket did not take: they go out whatever `out` has.
        if (self.out.is_empty() || !self.urgent) && !stream.wants_write() {
            return Ok(());
        }
        let result = loop {
            if self.written == self.out.len() {
                break stream.flush();
            }
            match stream.write_vectored(&[IoSlice::new(&self.out[self.written..])]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    let queued = self.out.len() - self.written;
                    self.answers.written(count, queued);
                }
                Err(error) if would_block(&error) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            self.urgent = false;
            self.out.shrink_to(LARGE_BUFFER);
        } else if self.written > LARGE_BUFFER {
            self.out.drain(..self.written);
            self.written = 0;
        }
        let all = result?;
        self.want(if all { Interest::Read } else { Interest::Both });
        Ok(())
    }

    /// Nothing more will be sent after what waits now.
    pub(crate) fn close(&mut self) {
        if self.phase == Phase::Open {
            self.urgent = true;
            self.phase = Phase::Closing(awake::now());
        }
    }

    /// Nothing more can be sent, or will be received.
    pub(crate) fn abort(&mut self) {
        self.out.clear();
        self.written = 0;
        self.phase = Phase::Gone;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.stream.is_none()
    }

    /// Whether it goes on with closing as time passes.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_) | Phase::Shut(_))
    }

    /// Goes on with closing. The connection, once that is done.
    pub(crate) fn finish(&mut self) -> Option<(Arc<Driver>, Token, Box<Stream>)> {
        if let Phase::Closing(since) = self.phase
            && self.out.is_empty()
            && let Some(stream) = &mut self.stream
        {
            match stream.close() {
                Ok(true) => {
                    self.phase = Phase::Shut(since);
                    self.want(Interest::Read);
                }
                Ok(false) => self.want(Interest::Both),
                Err(_) => self.phase = Phase::Gone,
            }
        }
        if self.phase != Phase::Gone {
            return None;
        }
        let stream = self.stream.take()?;
        self.out = Vec::new();
        self.input = Vec::new();
        self.filled = 0;
        Some((Arc::clone(&self.driver), self.token, stream))
    }

    /// Gives up on a peer that does not close.
    fn linger(&mut self) {
        if let Phase::Closing(since) | Phase::Shut(since) = self.phase
            && awake::now() > since + LINGER
        {
            self.abort();
        }
    }

    /// Reads and forgets; the end of it is the end of the connection.
    fn discard(&mut self) {
        self.filled = 0;
        for _ in 0..16 {
            match self.read() {
                Ok(0) => return self.abort(),
                Ok(_) => self.filled = 0,
                Err(error) if would_block(&error) => return,
                Err(_) => return self.abort(),
            }
        }
    }

    /// Reads once. 0 is the end.
    fn read(&mut self) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if self.filled == self.input.len() {
            // Frames have a limit, and so does this.
            let length = (self.input.len() * 2).max(LARGE_BUFFER);
            self.input.resize(length, 0);
        }
        let count = stream.read(&mut self.input[self.filled..])?;
        self.filled += count;
        if self.filled == self.input.len() && self.filled < LARGE_BUFFER {
            // There is more than a little to read here.
            self.input.resize(LARGE_BUFFER, 0);
        }
        Ok(count)
    }

    fn has_pending(&mut self) -> bool {
        self.stream
            .as_mut()
            .is_some_and(|stream| stream.has_pending())
    }
}

impl Inner {
    /// Starts to read the control connection.
    pub(crate) fn listen(&mut self, shared: &Arc<Shared>) {
        self.control.want(Interest::Read);
        if self.control.has_pending() {
            // It came with the end of the handshake, and the socket does not report it any more.
            self.receive(shared);
        }
    }

    /// Reads what is there, at most one turn's worth, and handles it.
    fn receive(&mut self, shared: &Arc<Shared>) {
        if self.control.phase != Phase::Open {
            self.control.discard();
            return;
        }
        let mut read = 0;
        // The poller does not report what TLS has read from the socket: it is handled now, or never.
        while read < TURN || self.control.has_pending() {
            match self.control.read() {
                Ok(0) => {
                    self.broke("the peer's process ended, or its host, without closing it");
                    return;
                }
                Ok(count) => read += count,
                Err(error) if would_block(&error) => return,
                Err(error) => {
                    self.broke(&error.to_string());
                    return;
                }
            }
            if let Err(error) = self.decode(shared) {
                let reason = format!("the peer broke the protocol: {error}");
                self.end(PairEnd::Lost(reason), true);
                return;
            }
            if self.control.filled < self.control.input.len() && !self.control.has_pending() {
                // The socket had no more; asking it again would only say so.
                return;
            }
        }
    }

    /// Handles the whole frames in the buffer.
    fn decode(&mut self, shared: &Arc<Shared>) -> Result<(), WireError> {
        // Taken out, so that frames can be handled while they are borrowed.
        let mut input = std::mem::take(&mut self.control.input);
        let filled = self.control.filled;
        let mut start = 0;
        let result = loop {
            let rest = &input[start..filled];
            let length = match wire::frame_length(rest) {
                Ok(Some(length)) => length,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            if rest.len() < length {
                break Ok(());
            }
            match wire::decode_frame(&rest[..length]) {
                Ok(frame) => {
                    if let Some(frame) = frame {
                        self.handle_frame(frame, shared);
                    }
                }
                Err(error) => break Err(error),
            }
            start += length;
            // Effects grow with each frame: an object's is followed by its own.
            self.apply(shared);
        };
        if self.control.stream.is_some() {
            input.copy_within(start..filled, 0);
            self.control.filled = filled - start;
            self.control.input = input;
        }
        result
    }

    fn handle_frame(&mut self, frame: Frame<'_>, shared: &Arc<Shared>) {
        let now = shared.now();
        match frame {
            Frame::Object(header, inline) => {
                let bytes = inline.len() as u64;
                shared.bytes_received.fetch_add(bytes, Ordering::Relaxed);
                self.offered(header, Bytes::copy_from_slice(inline), shared);
            }
            Frame::Message(message) => {
                if let Message::Accept { object } = message {
                    self.peer_accepted(object);
                }
                self.handle(Event::Received(message), now);
            }
            Frame::Released { segments, files } => self.released(&segments, &files, now),
            Frame::Descriptors(..) => {
                let reason = "the peer broke the protocol: descriptors on the control connection";
                self.end(PairEnd::Lost(reason.into()), true);
            }
        }
    }
}

impl Source for Shared {
    fn ready(self: Arc<Self>, _token: Token, readiness: Readiness) {
        self.with(|inner| {
            if readiness.readable {
                inner.receive(&self);
            }
            // Writing happens at the end of `with`.
        });
    }

    fn tick(self: Arc<Self>, _token: Token, _now: Instant) -> Option<Instant> {
        self.with(|inner| {
            inner.called_at = Duration::MAX;
            inner.report(&self);
            inner.control.hurry();
            inner.control.linger();
            if self.was_stopped() {
                inner.handle(Event::Woke, self.now());
            }
            inner.handle(Event::Tick, self.now());
        });
        // What it needs was said when the lock was released.
        None
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        self.broken(reason);
    }
}
