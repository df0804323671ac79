//! The memory that objects are received into, and the frames that the application gets.

use std::any::Any;
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use treadle_memory::{Buffer, MemoryError, Pool};

/// Memory of the application that a frame is to be received into.
pub struct Target {
    pointer: *mut u8,
    length: usize,
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory may be used from any thread, as `new` demands.
unsafe impl Send for Target {}
// SAFETY: shared references give no access to the memory.
unsafe impl Sync for Target {}

impl Target {
    /// `length` bytes at `pointer`, which `owner` keeps alive.
    ///
    /// # Safety
    /// Until `owner` is dropped, the memory must stay valid for writes from any thread, and nobody
    /// else may use it. `owner` may be dropped on any thread.
    pub unsafe fn new(pointer: *mut u8, length: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self {
            pointer,
            length,
            owner,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("length", &self.length)
            .finish()
    }
}

/// One region of an incoming object: written by the threads that read stripes, each its own
/// extents, and read when all of them are done.
pub(crate) struct Region {
    pointer: *mut u8,
    length: usize,
    /// Whether nothing is written any more. A stripe holds it while it writes.
    closed: RwLock<bool>,
    /// Keeps the memory alive.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the pair's state machine hands each extent to one stripe at a time, so writes are disjoint;
// reads begin after the last extent was placed, under the peer's lock.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Fresh memory from the pool.
    pub(crate) fn allocate(length: u64) -> Result<Self, MemoryError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut buffer: Buffer = Pool::global().buffer(length)?;
        Ok(Self {
            pointer: buffer.as_mut_ptr(),
            length,
            closed: RwLock::default(),
            _owner: Box::new(buffer),
        })
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn mapped(mut mapping: treadle_memory::Mapping) -> Self {
        Self {
            pointer: mapping.as_mut_ptr(),
            length: mapping.len(),
            closed: RwLock::default(),
            _owner: Box::new(mapping),
        }
    }

    pub(crate) fn target(target: Target) -> Self {
        Self {
            pointer: target.pointer,
            length: target.length,
            closed: RwLock::default(),
            _owner: target.owner,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Lets a stripe write, as long as it keeps what is returned. `None`: nothing is written any more.
    pub(crate) fn open(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        (!*closed).then_some(closed)
    }

    /// Nothing is written from now on. A stripe in the middle of an extent keeps the region, and its bytes may
    /// come late, when the application uses the memory for something else.
    pub(crate) fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Where the byte at `offset` belongs.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length);
        // SAFETY: within the region, or one past its end.
        unsafe { self.pointer.add(offset) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("length", &self.length)
            .finish()
    }
}

/// A received frame, in the memory that it was received into. It is this frame's alone, so it may
/// be written; frames of an object that were gathered share an allocation, which lives as long as
/// any of them.
#[derive(Debug)]
pub struct Frame {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// From an object's header.
    Inline(Bytes),
    /// A region, or a part of it.
    Region(std::sync::Arc<Region>),
    /// Memory that its owner lets be written.
    Writable(Bytes),
}

impl From<Bytes> for Frame {
    /// A frame that can only be read.
    fn from(bytes: Bytes) -> Self {
        Self {
            offset: 0,
            length: bytes.len(),
            memory: Memory::Inline(bytes),
        }
    }
}

impl Frame {
    /// A frame that was taken apart before ([`Frame::into_bytes`]), or whose memory came from
    /// elsewhere.
    ///
    /// # Safety
    /// The memory must be writable; whoever else reads it must put up with what is written through
    /// this frame meanwhile.
    pub unsafe fn writable(bytes: Bytes) -> Self {
        Self {
            offset: 0,
            length: bytes.len(),
            memory: Memory::Writable(bytes),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its first byte, to read.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.memory {
            Memory::Inline(bytes) | Memory::Writable(bytes) => bytes[self.offset..].as_ptr(),
            Memory::Region(region) => region.at(self.offset),
        }
    }

    /// Its first byte, to write; `None` for a frame that can only be read, as one that came in the
    /// object's header and shares its memory with the other frames there: copy it, it is small.
    pub fn as_mut_ptr(&mut self) -> Option<*mut u8> {
        match &self.memory {
            Memory::Inline(_) => None,
            Memory::Region(region) => Some(region.at(self.offset)),
            Memory::Writable(bytes) => Some(bytes[self.offset..].as_ptr().cast_mut()),
        }
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `length` bytes from there on are the frame's, and initialised: every extent was
        // placed, or the memory is mapped. Nobody writes them but through `as_mut_ptr`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// Its bytes, which keep its memory alive.
    pub fn into_bytes(self) -> Bytes {
        match self.memory {
            Memory::Inline(bytes) | Memory::Writable(bytes) => {
                bytes.slice(self.offset..self.offset + self.length)
            }
            Memory::Region(_) => Bytes::from_owner(self),
        }
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}
