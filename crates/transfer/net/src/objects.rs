//! Objects on their way, as an application sees them: one that it sends, and one that comes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use treadle_memory::{Buffer, MemoryError, Pool};
use treadle_reactor::Wait;
use treadle_transfer::layout::{Layout, Place};
use treadle_transfer::{Event, Failure, TransferId};

use crate::error::NetError;
use crate::inner::State;
use crate::memory::{Frame, Memory, Region, Target};
use crate::peer::Shared;

/// When the stages of a transfer were reached.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Sender: `send` was called. Receiver: the header arrived.
    pub started: Instant,
    /// Sender: the receiver had its memory ready. Receiver: the memory was ready.
    pub accepted: Option<Instant>,
    /// Sender: the receiver has every byte. Receiver: every byte is in its place.
    pub finished: Instant,
}

/// What becomes of one object that is sent.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) outcome: OnceLock<Result<Timings, Failure>>,
    pub(crate) written: AtomicU64,
}

/// One object on its way out.
#[derive(Clone, Debug)]
pub struct Sending {
    pub(crate) object: TransferId,
    pub(crate) bytes: u64,
    pub(crate) completion: Arc<Completion>,
    pub(crate) shared: Arc<Shared>,
}

/// The regions of an object: large frames as they are, small ones gathered.
///
/// # Errors
/// There is no memory to gather them in.
pub(crate) fn gather(frames: &[Bytes], layout: &Layout) -> Result<Vec<Bytes>, MemoryError> {
    let mut regions = vec![Bytes::new(); layout.regions.len()];
    let mut slab: Option<Slab> = None;
    let close = |slab: &mut Option<Slab>, regions: &mut Vec<Bytes>| {
        if let Some(slab) = slab.take() {
            regions[slab.region as usize] = slab.buffer.into_bytes();
        }
    };
    for (frame, place) in frames.iter().zip(&layout.places) {
        let Place::Region { region, offset } = *place else {
            continue;
        };
        let length = layout.regions[region as usize] as usize;
        if frame.len() == length {
            regions[region as usize] = frame.clone();
            continue;
        }
        let is_open = slab.as_ref().is_some_and(|slab| slab.region == region);
        if !is_open {
            close(&mut slab, &mut regions);
            slab = Some(Slab {
                region,
                buffer: Pool::global().buffer(length)?,
                filled: 0,
            });
        }
        let slab = slab.as_mut().expect("opened above");
        let (start, end) = (offset as usize, offset as usize + frame.len());
        let memory = slab.buffer.as_mut_slice();
        // What was there before is nobody else's business.
        memory[slab.filled..start].fill(0);
        memory[start..end].copy_from_slice(frame);
        slab.filled = end;
    }
    close(&mut slab, &mut regions);
    Ok(regions)
}

/// Small frames that travel as one region. Its memory is pooled: fresh pages cost more than the copy.
struct Slab {
    region: u32,
    buffer: Buffer,
    filled: usize,
}

pub(crate) fn inline_frames<'a>(
    frames: &'a [Bytes],
    layout: &'a Layout,
) -> impl Iterator<Item = &'a [u8]> {
    frames
        .iter()
        .zip(&layout.places)
        .filter(|(_, place)| matches!(place, Place::Inline { .. }))
        .map(|(frame, _)| frame.as_ref())
}

impl Sending {
    /// Whether it is sent, or has failed.
    pub fn is_done(&self) -> bool {
        self.completion.outcome.get().is_some()
    }

    /// What became of it, if that is known.
    pub fn outcome(&self) -> Option<Result<Timings, Failure>> {
        self.completion.outcome.get().cloned()
    }

    /// Waits until the receiver has it.
    ///
    /// # Errors
    /// When it was not sent, or the wait ended.
    pub fn wait(&self, wait: &mut Wait<'_>) -> Result<Timings, NetError> {
        let mut done = || self.is_done();
        self.shared
            .driver
            .wait(&self.shared.waiters, &mut done, wait)?;
        self.outcome()
            .expect("the wait ended with it")
            .map_err(NetError::from)
    }

    /// Gives it up, unless the receiver has it.
    pub fn cancel(&self) {
        self.shared.handle(Event::Cancel(self.object));
    }

    /// Bytes on their way, and in total; without those in the header.
    pub fn progress(&self) -> (u64, u64) {
        let written = match self.outcome() {
            Some(Ok(_)) => self.bytes,
            _ => self.completion.written.load(Ordering::Relaxed),
        };
        (written.min(self.bytes), self.bytes)
    }
}

impl From<Failure> for NetError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Pair(end) => Self::Ended(end),
            other => Self::Failed(other),
        }
    }
}

/// An object whose header is here. Dropping it puts it back to be received again.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) object: TransferId,
    pub(crate) shared: Arc<Shared>,
}

/// A received object.
#[derive(Debug)]
pub struct Received {
    /// The sender's.
    pub kind: u32,
    pub frames: Vec<Frame>,
    /// When the stages were reached.
    pub timings: Timings,
}

impl Incoming {
    /// The application's kind, and the length of each frame in bytes.
    pub fn header(&self) -> (u32, Vec<u64>) {
        let inner = self.shared.locked();
        let inbound = inner.inbound(self.object);
        (inbound.header.kind, inbound.header.sizes.clone())
    }

    /// A frame, if it came in the header.
    pub fn inline_frame(&self, index: usize) -> Option<Bytes> {
        let inner = self.shared.locked();
        let inbound = inner.inbound(self.object);
        let Place::Inline { offset } = *inbound.header.layout.places.get(index)? else {
            return None;
        };
        let range = offset as usize..(offset + inbound.header.sizes[index]) as usize;
        Some(inbound.inline.slice(range))
    }

    /// Lets the object come, frames with a target into that, others into fresh memory. Targets
    /// are used as long as nothing has been accepted yet; otherwise, and for frames that are not
    /// alone in their region, they are given back: copy, then.
    ///
    /// # Errors
    /// When a target has another length than its frame, or there is no memory.
    pub fn accept(&self, targets: Vec<Option<Target>>) -> Result<Vec<Option<Target>>, NetError> {
        self.shared.with(|inner| inner.accept(self.object, targets))
    }

    /// Waits until every byte is in place.
    ///
    /// # Errors
    /// When the object will not be complete, or the wait ended; in the latter case it goes on
    /// coming.
    pub fn wait(&self, wait: &mut Wait<'_>) -> Result<(), NetError> {
        self.shared
            .wait(wait, |inner| match inner.state(self.object) {
                State::Offered | State::Accepted => None,
                State::Complete => Some(Ok(())),
                State::Failed(failure) => Some(Err(failure.into())),
            })
    }

    /// Whether every byte is in place, or will never be.
    pub fn is_done(&self) -> bool {
        let state = self.shared.locked().state(self.object);
        matches!(state, State::Complete | State::Failed(_))
    }

    /// Takes the object, which must be complete; [`Incoming::wait`] says so.
    ///
    /// # Errors
    /// When it is not.
    pub fn take(self) -> Result<Received, NetError> {
        let now = self.shared.now();
        self.shared.with(|inner| inner.take(self.object, now))
    }

    /// Bytes in their place, and in total; without those in the header.
    pub fn progress(&self) -> (u64, u64) {
        self.shared.locked().progress(self.object)
    }

    /// Does not take the object. Unless all of it was fetched ahead, the sender is told why.
    pub fn refuse(self, reason: &str) {
        let event = Event::Refuse(self.object, reason.to_owned());
        let now = self.shared.now();
        self.shared
            .with(|inner| inner.refuse(self.object, event, now));
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.shared.with(|inner| inner.unclaim(self.object));
    }
}

/// The frames of a complete object.
pub(crate) fn frames(
    sizes: &[u64],
    layout: &Layout,
    inline: &Bytes,
    regions: &[Arc<Region>],
) -> Vec<Frame> {
    let frame = |(size, place): (&u64, &Place)| match *place {
        Place::Inline { offset } => Frame {
            memory: Memory::Inline(inline.clone()),
            offset: offset as usize,
            length: *size as usize,
        },
        Place::Region { region, offset } => Frame {
            memory: Memory::Region(Arc::clone(&regions[region as usize])),
            offset: offset as usize,
            length: *size as usize,
        },
    };
    sizes.iter().zip(&layout.places).map(frame).collect()
}
