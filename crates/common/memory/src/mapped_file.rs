//! Files on disk, mapped to read.

use std::fmt;
use std::ptr::NonNull;

use rustix::fd::BorrowedFd;
use rustix::param::page_size;

use crate::MemoryError;
use crate::region::Region;

/// Bytes of a file on disk, mapped to read: the system reads a page when it is touched first, and may
/// forget it again.
pub struct MappedFile {
    /// `None`: there are no bytes to map.
    _region: Option<Region>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's own, and belongs to no thread.
unsafe impl Send for MappedFile {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `length` bytes from `offset` on, which need no alignment. The descriptor is not kept.
    ///
    /// # Safety
    /// As long as this lives, the file has these bytes, and nobody writes to them. Touching a page
    /// that the file has no more ends the process.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`], [`MemoryError::System`].
    pub unsafe fn new(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Self, MemoryError> {
        let too_large = |_| MemoryError::TooLarge { len: usize::MAX };
        let len = usize::try_from(length).map_err(too_large)?;
        if len == 0 {
            return Ok(Self {
                _region: None,
                start: NonNull::dangling(),
                len,
            });
        }
        let within_page = (offset % page_size() as u64) as usize;
        let pages = len
            .checked_add(within_page)
            .ok_or(MemoryError::TooLarge { len })?;
        let region = Region::to_read(file, offset - within_page as u64, pages)?;
        // SAFETY: less than a page into a region that has more bytes than that.
        let start = unsafe { region.start().add(within_page) };
        Ok(Self {
            _region: Some(region),
            start,
            len,
        })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes of this value's mapping, which stay by the promise of `new`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.len)
    }
}
