//! A stripe that this side sends on.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_reactor::{Driver, Interest, Readiness, Source, Token};
use treadle_transfer::layout::EXTENT;
use treadle_transfer::{Event, Extent, StripeId};

use crate::checksum::crc32c_of_cold;
use crate::peer::Shared;
use crate::stream::{Stream, would_block};
use crate::wire::{EXTENT_HEADER, encode_extent};

/// Bytes of extents taken at a time: with their checksums computed, they are still in the second-level
/// cache when the kernel copies them.
const BATCH: u64 = 2 * EXTENT;
/// Extents taken at a time, where they are shorter.
const MOST: usize = 8;
/// Bytes written in one turn of the leader.
const TURN: usize = 256 * 1024;

/// So often is the kernel asked what the network lost.
const LOOK: Duration = Duration::from_millis(10);

/// An extent that is being written.
#[derive(Debug)]
struct Piece {
    header: [u8; EXTENT_HEADER],
    bytes: Bytes,
}

#[derive(Debug)]
struct Writer {
    stream: Stream,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were written, header included.
    written: usize,
    /// Bytes in the kernel at the last tick.
    unsent: usize,
    /// When the kernel was last asked for what was sent again, and what it said.
    looked: Instant,
    sent_again: u64,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct OutStripe {
    shared: Arc<Shared>,
    stripe: StripeId,
    driver: Arc<Driver>,
    token: Token,
    writer: Mutex<Writer>,
    retired: AtomicBool,
}

impl OutStripe {
    /// Takes over a connection. The pair learns of it here.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        stripe: StripeId,
        stream: Stream,
        driver: &Arc<Driver>,
        token: Token,
    ) {
        let source = Arc::new(Self {
            shared: Arc::clone(shared),
            stripe,
            driver: Arc::clone(driver),
            token,
            writer: Mutex::new(Writer {
                stream,
                pieces: VecDeque::new(),
                written: 0,
                unsent: 0,
                looked: Instant::now(),
                sent_again: 0,
                closed: false,
            }),
            retired: AtomicBool::new(false),
        });
        driver.sources.replace(token, Arc::clone(&source) as _);
        driver.sources.interest(token, Interest::Both);
        let now = shared.now();
        shared.with(|inner| inner.opened(stripe, source, now));
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be extents to send.
    pub(crate) fn wake(&self) {
        // The leader meets a writable socket, and asks for extents.
        self.driver.sources.interest(self.token, Interest::Both);
    }

    /// Close it when everything is written.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends it at once.
    pub(crate) fn cut(&self) {
        self.driver.sources.shut(self.token);
    }

    fn close(&self, writer: &mut Writer) {
        if !std::mem::replace(&mut writer.closed, true) {
            self.driver.sources.deregister(self.token);
        }
    }

    /// Writes for one turn. `true`: the stripe is finished in order.
    fn write(&self, writer: &mut Writer) -> io::Result<bool> {
        let mut drained = 0;
        let mut turn = 0;
        loop {
            if writer.pieces.is_empty() {
                self.take(writer, std::mem::take(&mut drained));
                if writer.pieces.is_empty() {
                    let flushed = writer.stream.flush()?;
                    if self.retired.load(Ordering::Acquire) && flushed {
                        return writer.stream.close();
                    }
                    return Ok(false);
                }
            }
            if turn >= TURN {
                break;
            }
            match writer.write() {
                Ok(count) => {
                    drained += count;
                    turn += count;
                }
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if drained > 0 {
            self.drained(drained);
            self.look(writer);
        }
        Ok(false)
    }

    /// Tells what the network lost since the last look.
    fn look(&self, writer: &mut Writer) {
        let now = Instant::now();
        if now - writer.looked < LOOK {
            return;
        }
        writer.looked = now;
        let total = writer.stream.sent_again().unwrap_or(0);
        let bytes = total.saturating_sub(std::mem::replace(&mut writer.sent_again, total));
        if bytes > 0 {
            self.shared.handle(Event::Retransmitted(self.stripe, bytes));
        }
    }

    fn drained(&self, bytes: usize) {
        let counter = &self.shared.bytes_sent;
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.shared
            .handle(Event::Drained(self.stripe, bytes as u64));
    }

    /// Takes the next extents, after saying what was drained.
    fn take(&self, writer: &mut Writer, drained: usize) {
        if drained > 0 {
            self.drained(drained);
        }
        let mut extents: VecDeque<(Extent, Bytes, bool)> = VecDeque::with_capacity(MOST);
        let now = self.shared.now();
        self.shared.with(|inner| {
            inner.next_extents(self.stripe, (MOST, BATCH), now, &mut extents);
            if extents.is_empty() {
                // Under the lock, so that a wake-up that comes now is not lost.
                let waits = writer.stream.wants_write() || self.retired.load(Ordering::Acquire);
                let interest = if waits {
                    Interest::Both
                } else {
                    Interest::Read
                };
                self.driver.sources.interest(self.token, interest);
            }
        });
        for (extent, bytes, is_checked) in extents {
            let header = encode_extent(&extent, is_checked.then(|| crc32c_of_cold(&bytes)));
            writer.pieces.push_back(Piece { header, bytes });
        }
    }
}

impl Writer {
    fn write(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); 2 * MOST];
        let mut count = 0;
        let mut skip = self.written;
        for piece in &self.pieces {
            let header = &piece.header[skip.min(EXTENT_HEADER)..];
            let bytes = &piece.bytes[skip.saturating_sub(EXTENT_HEADER)..];
            skip = 0;
            slices[count] = IoSlice::new(header);
            slices[count + 1] = IoSlice::new(bytes);
            count += 2;
        }
        let written = self.stream.write_vectored(&slices[..count])?;
        self.written += written;
        while let Some(piece) = self.pieces.front() {
            let length = EXTENT_HEADER + piece.bytes.len();
            if self.written < length {
                break;
            }
            self.written -= length;
            self.pieces.pop_front();
        }
        Ok(written)
    }
}

impl Source for OutStripe {
    fn ready(self: Arc<Self>, _token: Token, readiness: Readiness) {
        let mut writer = self.writer();
        if writer.closed {
            return;
        }
        let mut lost = false;
        if readiness.readable {
            // Nothing is ever sent this way: bytes are a violation, and the end is the end.
            match writer.stream.read(&mut [0; 16]) {
                Err(error) if would_block(&error) => {}
                _ => lost = true,
            }
        }
        let mut finished = false;
        if !lost {
            match self.write(&mut writer) {
                Ok(done) => finished = done,
                Err(_) => lost = true,
            }
        }
        if lost || finished {
            self.close(&mut writer);
            let pieces = std::mem::take(&mut writer.pieces);
            drop(writer);
            drop(pieces);
            let now = self.shared.now();
            self.shared.with(|inner| {
                if finished {
                    inner.stripe_closed(self.stripe);
                } else {
                    inner.stripe_lost(self.stripe, now);
                }
            });
        }
    }

    fn tick(self: Arc<Self>, _token: Token, now: Instant) -> Option<Instant> {
        // What the kernel still sends is progress, too, though nothing is left to write here.
        let mut writer = self.writer();
        if writer.closed {
            return None;
        }
        if !writer.pieces.is_empty() {
            return Some(now);
        }
        let unsent = self.driver.sources.unsent(self.token).unwrap_or(0);
        // Nothing left to send is none: a proxy may have taken it, and lost it.
        let moved = unsent < writer.unsent;
        writer.unsent = unsent;
        drop(writer);
        if moved {
            self.shared.handle(Event::Drained(self.stripe, 0));
        }
        Some(now)
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        self.shared.broken(reason);
    }
}
