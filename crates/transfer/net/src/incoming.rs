//! A stripe that the other side sends on: bytes go from the socket to where they will stay.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use treadle_reactor::{Driver, Interest, Readiness, Source, Token};
use treadle_transfer::layout::EXTENT;
use treadle_transfer::{Event, StripeId};

use crate::checksum::Checksum;
use crate::memory::Region;
use crate::peer::Shared;
use crate::stream::{Stream, would_block};
use crate::wire::{EXTENT_HEADER, decode_extent};

/// Bytes read in one turn of the leader.
const TURN: usize = 512 * 1024;

/// The extent whose bytes are arriving.
struct Body {
    /// Where they belong; `None`: nowhere, they are dropped.
    region: Option<Arc<Region>>,
    offset: usize,
    length: usize,
    filled: usize,
    checksum: Checksum,
    /// `None`: the bytes have no checksum.
    expected: Option<u32>,
}

struct Reader {
    stream: Stream,
    header: [u8; EXTENT_HEADER],
    header_filled: usize,
    body: Option<Body>,
    /// For bytes that nobody wants.
    waste: Vec<u8>,
    closed: bool,
}

pub(crate) struct InStripe {
    shared: Arc<Shared>,
    stripe: StripeId,
    driver: Arc<Driver>,
    token: Token,
    reader: Mutex<Reader>,
}

impl std::fmt::Debug for InStripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InStripe").field(&self.stripe).finish()
    }
}

impl InStripe {
    /// Takes over a connection. The pair learns of it here.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        stripe: StripeId,
        mut stream: Stream,
        driver: &Arc<Driver>,
        token: Token,
    ) {
        let readable = stream.has_pending();
        let source = Arc::new(Self {
            shared: Arc::clone(shared),
            stripe,
            driver: Arc::clone(driver),
            token,
            reader: Mutex::new(Reader {
                stream,
                header: [0; EXTENT_HEADER],
                header_filled: 0,
                body: None,
                waste: Vec::new(),
                closed: false,
            }),
        });
        driver.sources.replace(token, Arc::clone(&source) as _);
        let now = shared.now();
        shared.with(|inner| inner.joined(stripe, Arc::clone(&source), now));
        // Only now: the pair refuses extents of a stripe that it does not know.
        driver.sources.interest(token, Interest::Read);
        if readable {
            // It came with the end of the handshake, and the socket does not report it any more.
            let writable = false;
            source.ready(token, Readiness { readable, writable });
        }
    }

    /// Ends it at once: the leader meets the end of the stream.
    pub(crate) fn cut(&self) {
        self.driver.sources.shut(self.token);
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads for one turn.
    fn read(&self, reader: &mut Reader) -> io::Result<()> {
        let mut turn = 0;
        while turn < TURN || reader.stream.has_pending() {
            let count = reader.read()?;
            turn += count;
            self.shared
                .bytes_received
                .fetch_add(count as u64, Ordering::Relaxed);
            if reader
                .body
                .as_ref()
                .is_some_and(|body| body.filled == body.length)
            {
                let body = reader.body.take().expect("just looked");
                let checksum = body.expected.map(|_| body.checksum.finish());
                let intact = checksum == body.expected;
                self.arrived(intact);
                if !intact {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            if reader.body.is_none() && reader.header_filled == EXTENT_HEADER {
                self.begin(reader)?;
            }
        }
        Ok(())
    }

    fn arrived(&self, intact: bool) {
        let stripe = self.stripe;
        self.shared.handle(Event::Arrived { stripe, intact });
    }

    /// A header is whole: finds out where its bytes belong.
    fn begin(&self, reader: &mut Reader) -> io::Result<()> {
        reader.header_filled = 0;
        let Ok((extent, expected)) = decode_extent(&reader.header) else {
            self.arrived(false);
            return Err(io::ErrorKind::InvalidData.into());
        };
        let region = self
            .shared
            .with(|inner| inner.destination(self.stripe, &extent));
        reader.body = Some(Body {
            region,
            offset: extent.offset as usize,
            length: extent.length as usize,
            filled: 0,
            checksum: Checksum::new(),
            expected,
        });
        Ok(())
    }

    fn end(&self, reader: &mut Reader) {
        if !std::mem::replace(&mut reader.closed, true) {
            self.driver.sources.deregister(self.token);
        }
    }
}

impl Reader {
    /// Reads once: the rest of an extent and the next header, as far as they are here.
    fn read(&mut self) -> io::Result<usize> {
        let header = &mut self.header[self.header_filled..];
        let count = match &mut self.body {
            None => self.stream.read(header)?,
            Some(body) => {
                let rest = body.length - body.filled;
                let region = body.region.as_ref();
                let open = region.and_then(|region| Some((region, region.open()?)));
                if open.is_none() && self.waste.is_empty() {
                    self.waste = vec![0; EXTENT as usize];
                }
                let memory = match &open {
                    // SAFETY: `destination` says that this extent lies within the region and is
                    // this stripe's until it has arrived, or the stripe has ended; the region is
                    // kept by `body`, and not closed as long as `open` is there.
                    Some((region, _)) => unsafe {
                        std::slice::from_raw_parts_mut(region.at(body.offset + body.filled), rest)
                    },
                    None => &mut self.waste[..rest],
                };
                let mut slices = [IoSliceMut::new(memory), IoSliceMut::new(header)];
                let count = self.stream.read_vectored(&mut slices)?;
                let filled = count.min(rest);
                if body.expected.is_some() {
                    body.checksum.update(&slices[0][..filled]);
                }
                body.filled += filled;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.header_filled += count - filled;
                return Ok(count);
            }
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.header_filled += count;
        Ok(count)
    }
}

impl Source for InStripe {
    fn ready(self: Arc<Self>, _token: Token, _readiness: Readiness) {
        let mut reader = self.reader();
        if reader.closed {
            return;
        }
        match self.read(&mut reader) {
            Ok(()) => {}
            Err(error) if would_block(&error) => {}
            Err(_) => {
                self.end(&mut reader);
                let body = reader.body.take();
                drop(reader);
                drop(body);
                let now = self.shared.now();
                self.shared
                    .with(|inner| inner.stripe_ended(self.stripe, now));
            }
        }
    }

    fn tick(self: Arc<Self>, _token: Token, _now: Instant) -> Option<Instant> {
        None
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        self.shared.broken(reason);
    }
}
