//! The bytes of a cast: a table (`Payload` in `proto/broadcast.proto`) and frames, in one piece of
//! memory. Frames begin at multiples of 64, so arrays are aligned.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use rustix::fd::AsFd;
use rustix::io::Errno;
use treadle_broadcast_wire::proto::Payload as Declared;
/// What a payload is for.
pub(super) use treadle_broadcast_wire::proto::payload::Purpose as Kind;
use treadle_memory::{Handover, Mapping, MemoryError, Segments};
use treadle_net::Frame;

/// Frames begin at multiples of this.
const ALIGNMENT: usize = 64;
/// The longest table, in bytes: it is read before anything is known of the frames.
const LONGEST_TABLE: u32 = 4 << 20;
/// Payloads of at most so many bytes travel in the offer, which must fit into the header of an
/// object with them.
pub(super) const INLINE: u64 = treadle_net::SMALL - 8192;

/// A payload that is mapped comes with a copy of so many of its first bytes, which hold all but the
/// large frames of most: what is not read of a mapping costs no page fault, and no processor needs to
/// hear of its end.
pub(super) const START: usize = 1 << 10;

/// A payload, for whoever it was cast to.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    /// The first bytes once more, where reading them costs nothing.
    pub(super) start: Bytes,
    /// The bytes are the receiver's to write, and nobody else's to read.
    pub(super) is_own: bool,
}

/// Memory for a payload that comes in pieces. What was written is read while the rest is.
pub(super) struct Assembly {
    start: NonNull<u8>,
    len: usize,
    /// Otherwise it is a segment.
    heap: Option<Box<[u8]>>,
}

// SAFETY: the memory is this value's own, and belongs to no thread.
unsafe impl Send for Assembly {}
// SAFETY: shared references read what is whole, and write the rest, which nobody reads before.
unsafe impl Sync for Assembly {}

impl Assembly {
    /// Shared memory, if there is some: others of this host map it then.
    pub(super) fn new(len: usize) -> Result<Self, MemoryError> {
        match Segments::global().allocate(len) {
            Ok(start) => Ok(Self {
                start,
                len,
                heap: None,
            }),
            Err(MemoryError::TooManySegments { .. }) => {
                let mut heap = zeroed(len)?;
                Ok(Self {
                    start: NonNull::from(&mut heap[..]).cast(),
                    len,
                    heap: Some(heap),
                })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, to write.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: within the memory, or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// # Safety
    /// These bytes were not handed out by [`Assembly::bytes`].
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: within the memory; who calls vouches that nobody reads it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// Everything was written, and nothing will be written again.
    pub(super) fn finish(&self) {
        Segments::global().keep_constant(self.start);
    }

    /// A view of what was written and will not be written again.
    pub(super) fn bytes(self: &Arc<Self>, offset: usize, length: usize) -> Bytes {
        struct View(Arc<Assembly>, usize, usize);
        impl AsRef<[u8]> for View {
            fn as_ref(&self) -> &[u8] {
                // SAFETY: `bytes` checked the bounds, and nobody writes there any more.
                unsafe { std::slice::from_raw_parts(self.0.at(self.1), self.2) }
            }
        }
        assert!(offset <= self.len && length <= self.len - offset);
        Bytes::from_owner(View(Arc::clone(self), offset, length))
    }
}

/// Memory of the heap. What the other side says it needs may be more than there is.
fn zeroed(len: usize) -> Result<Box<[u8]>, MemoryError> {
    if len == 0 {
        return Ok(Box::default());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| MemoryError::TooLarge { len })?;
    // SAFETY: the layout has a size.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(MemoryError::System {
            call: "alloc",
            len,
            errno: Errno::NOMEM,
        });
    }
    // SAFETY: the allocator has just given so many bytes, in the layout that a box frees them by.
    Ok(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len)) })
}

impl Drop for Assembly {
    fn drop(&mut self) {
        if self.heap.is_none() {
            // SAFETY: with this value, the last one that uses the memory is gone.
            unsafe { Segments::global().free(self.start) };
        }
    }
}

impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Assembly({} bytes)", self.len)
    }
}

/// Where each frame begins after a table that ends here, and how many bytes the payload has.
fn places(mut end: u64, lengths: &[u64]) -> Option<(Vec<u64>, u64)> {
    let mut starts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let start = end.checked_next_multiple_of(ALIGNMENT as u64)?;
        starts.push(start);
        end = start.checked_add(*length)?;
    }
    Some((starts, end))
}

/// Frames as a payload: the one copy that the client makes.
pub(super) fn pack(kind: Kind, frames: &[Bytes]) -> Result<Bytes, MemoryError> {
    let declared = Declared {
        purpose: kind.into(),
        lengths: frames.iter().map(|frame| frame.len() as u64).collect(),
    };
    let too_large = MemoryError::TooLarge { len: usize::MAX };
    let length = match u32::try_from(declared.encoded_len()) {
        Ok(length) if length <= LONGEST_TABLE => length,
        _ => return Err(too_large),
    };
    let mut table = length.to_le_bytes().to_vec();
    declared.encode(&mut table).expect("a vector grows");
    let Some((starts, size)) = places(table.len() as u64, &declared.lengths) else {
        return Err(too_large);
    };
    let Ok(len) = usize::try_from(size) else {
        return Err(too_large);
    };
    if size <= INLINE {
        let mut bytes = table;
        for (frame, start) in frames.iter().zip(starts) {
            bytes.resize(start as usize, 0);
            bytes.extend_from_slice(frame);
        }
        return Ok(bytes.into());
    }
    let assembly = Arc::new(Assembly::new(len)?);
    // SAFETY: nobody else knows it yet.
    unsafe {
        assembly.write(0, &table);
        let mut end = table.len();
        for (frame, start) in frames.iter().zip(starts) {
            let start = start as usize;
            // The memory was used before.
            assembly.write(end, &[0; ALIGNMENT][..start - end]);
            assembly.write(start, frame);
            end = start + frame.len();
        }
    }
    assembly.finish();
    Ok(assembly.bytes(0, len))
}

impl Payload {
    fn table(&self) -> Option<Table> {
        Table::read(&self.start).or_else(|| Table::read(&self.bytes))
    }

    /// What it is for. What is no payload was not made by this code, and is the engine's matter.
    pub(super) fn kind(&self) -> Kind {
        self.table().map_or(Kind::Run, |table| table.kind)
    }

    /// Its frames, writable: what is written to one is seen by nobody else. `None`: it is no payload.
    pub(super) fn into_frames(self) -> Option<Vec<Frame>> {
        if !self.is_own {
            return unpack(&self.bytes);
        }
        let table = self.table()?;
        let frame = |range: Range<usize>| match self.start.get(range.clone()) {
            // SAFETY: it is a copy.
            Some(start) => unsafe { Frame::writable(Bytes::copy_from_slice(start)) },
            // SAFETY: the memory is the caller's, and frames are disjoint parts of it.
            None => unsafe { Frame::writable(self.bytes.slice(range)) },
        };
        table.of(self.bytes.len(), frame)
    }
}

/// The frames of a payload, writable: what is written to one is seen by nobody else. `None`: it is
/// no payload.
pub fn unpack(payload: &Bytes) -> Option<Vec<Frame>> {
    let own = snapshot(payload);
    // SAFETY: the memory is a private mapping, or a copy, of which frames are disjoint parts.
    let frame = |range| unsafe { Frame::writable(own.slice(range)) };
    Table::read(payload)?.of(payload.len(), frame)
}

/// What a payload says of itself.
struct Table {
    kind: Kind,
    lengths: Vec<u64>,
    /// Where the table ends.
    end: u64,
}

impl Table {
    fn read(payload: &[u8]) -> Option<Self> {
        let (length, rest) = payload.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        if length > LONGEST_TABLE {
            return None;
        }
        let table = rest.get(..usize::try_from(length).ok()?)?;
        let Declared { purpose, lengths } = Declared::decode(table).ok()?;
        Some(Self {
            kind: purpose.try_into().ok()?,
            lengths,
            end: 4 + u64::from(length),
        })
    }

    /// The frames, if the payload has the length that it should have.
    fn of(&self, length: usize, frame: impl Fn(Range<usize>) -> Frame) -> Option<Vec<Frame>> {
        let (starts, size) = places(self.end, &self.lengths)?;
        let ranges = starts.iter().zip(&self.lengths);
        let ranges = ranges.map(|(&start, length)| start as usize..(start + length) as usize);
        (size == length as u64).then(|| ranges.map(frame).collect())
    }
}

/// The bytes as they are now, in memory that only its reader has: mapped once more where they are in
/// shared memory, otherwise copied.
pub fn snapshot(bytes: &Bytes) -> Bytes {
    let (start, len) = (bytes.as_ptr(), bytes.len());
    if let Some(export) = Segments::global().export(start, len)
        && let Ok(file) = export.as_fd().try_clone_to_owned()
        && let Ok(mut mapping) = Mapping::new(file, export.offset, export.length)
    {
        mapping.on_drop(Box::new(move || drop(export)));
        return mapping.into_bytes();
    }
    if let Some(handover) = Handover::of(start, len)
        && let Ok(mapping) = handover.map()
    {
        return mapping.into_bytes();
    }
    Bytes::copy_from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(lengths: &[usize]) -> Vec<Bytes> {
        let frame = |(i, length): (usize, &usize)| vec![i as u8 + 1; *length].into();
        lengths.iter().enumerate().map(frame).collect()
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        for len in [isize::MAX as usize, usize::MAX] {
            zeroed(len).unwrap_err();
        }
        assert_eq!(zeroed(3).unwrap(), [0; 3].into());
        assert!(zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn a_payload_has_its_frames() {
        for lengths in [&[][..], &[0], &[5], &[1, 0, 64, 65], &[3, 200_000, 7]] {
            let frames = frames(lengths);
            let payload = pack(Kind::Keep, &frames).unwrap();
            let unpacked = unpack(&payload).unwrap();
            assert_eq!(unpacked.len(), frames.len());
            for (frame, unpacked) in frames.iter().zip(&unpacked) {
                assert_eq!(frame, unpacked.as_slice());
                assert_eq!(unpacked.as_ptr().addr() % 8, 0);
            }
        }
    }

    fn delivered(payload: &Bytes, start: usize, is_own: bool) -> Payload {
        Payload {
            bytes: payload.clone(),
            start: payload.slice(..start.min(payload.len())),
            is_own,
        }
    }

    #[test]
    fn it_has_its_frames_wherever_its_start_ends() {
        let frames = frames(&[5, 0, 100, 300, 2000]);
        let payload = pack(Kind::Keep, &frames).unwrap();
        for start in [8, 16, 60, 64, 130, 200, 800, 5000] {
            for is_own in [false, true] {
                let delivered = delivered(&payload, start, is_own);
                assert_eq!(delivered.kind(), Kind::Keep);
                let unpacked = delivered.into_frames().unwrap();
                let unpacked: Vec<_> = unpacked.iter().map(Frame::as_slice).collect();
                assert_eq!(unpacked, frames);
            }
        }
        let short = payload.slice(..payload.len() - 1);
        assert!(delivered(&short, START, true).into_frames().is_none());
    }

    #[test]
    fn what_a_reader_writes_is_its_own() {
        for length in [100, 3 << 20] {
            let payload = pack(Kind::Run, &frames(&[length])).unwrap();
            let mut one = unpack(&payload).unwrap();
            // SAFETY: within the frame, which is this test's.
            unsafe { one[0].as_mut_ptr().unwrap().write(9) };
            assert_eq!(one[0].as_slice()[0], 9);
            assert_eq!(unpack(&payload).unwrap()[0].as_slice()[0], 1);
            assert_eq!(pack(Kind::Run, &frames(&[length])).unwrap(), payload);
        }
    }

    #[test]
    fn other_bytes_are_no_payload() {
        let payload = pack(Kind::Run, &frames(&[5, 6])).unwrap();
        assert!(unpack(&payload.slice(..payload.len() - 1)).is_none());
        assert!(unpack(&Bytes::from_static(b"1234567")).is_none());
        assert!(unpack(&Bytes::from_static(&[255; 64])).is_none());
    }
}
