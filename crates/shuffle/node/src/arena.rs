//! Memory that rows are gathered into.

use std::fmt;
use std::ptr::NonNull;

use bytes::Bytes;
use treadle_memory::{Buffer, MemoryError, Pool, Segments};
use treadle_rows::Batch;

/// The least size of an arena in shared memory, in bytes. To copy a smaller one costs less than to pass a
/// descriptor.
const SHARED: usize = 256 << 10;

/// Memory for an arena. Its content is arbitrary until it is written.
pub struct ArenaMemory(Memory);

enum Memory {
    Private(Buffer),
    Shared(Segment),
}

/// A segment that this value owns.
struct Segment {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is this value's own, and belongs to no thread.
unsafe impl Send for Segment {}
// SAFETY: shared references only read.
unsafe impl Sync for Segment {}

impl ArenaMemory {
    /// Memory for batches. `is_near`: for another process of this host.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(crate) fn new(len: usize, is_near: bool) -> Result<Self, MemoryError> {
        if is_near && len >= SHARED {
            match Segments::global().allocate(len) {
                Ok(start) => return Ok(Self(Memory::Shared(Segment { start, len }))),
                Err(MemoryError::TooManySegments { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Pool::global().buffer(len).map(Memory::Private).map(Self)
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Private(buffer) => buffer.len(),
            Memory::Shared(segment) => segment.len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Private(buffer) => buffer.as_mut_slice(),
            // SAFETY: the segment has so many bytes, and this value is borrowed.
            Memory::Shared(Segment { start, len }) => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr(), *len)
            },
        }
    }

    /// The bytes, read-only from now on.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.0 {
            Memory::Private(buffer) => buffer.into_bytes(),
            Memory::Shared(segment) => {
                Segments::global().keep_constant(segment.start);
                Bytes::from_owner(segment)
            }
        }
    }
}

impl AsRef<[u8]> for Segment {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the segment has so many bytes, and nobody writes to them any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: with this value, the last one that uses the memory is gone.
        unsafe { Segments::global().free(self.start) };
    }
}

impl fmt::Debug for ArenaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaMemory({} bytes)", self.len())
    }
}

/// The batches of one transfer for one group.
#[derive(Debug)]
pub struct Arena {
    /// All of its bytes are written.
    pub memory: ArenaMemory,
    /// Where the batches are, in ascending order.
    pub batches: Vec<Batch>,
}
