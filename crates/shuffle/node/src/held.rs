//! How many bytes of rows the process has in memory, in files, and in a remote store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use treadle_memory::Handover;

/// Counts memory of rows from when it is there until nothing uses it any more. Several batches may be in
/// one arena, and several pieces in one frame: all of it stays as long as any of it is used.
#[derive(Default)]
pub(crate) struct Held {
    bytes: AtomicU64,
    borrowed: AtomicU64,
    files: AtomicU64,
    objects: AtomicU64,
}

impl Held {
    /// Counts this memory as long as it exists.
    pub(crate) fn charge(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        let len = bytes.len() as u64;
        let is_borrowed = Handover::is_possible(bytes.as_ptr(), bytes.len());
        self.bytes.fetch_add(len, Ordering::Relaxed);
        if is_borrowed {
            self.borrowed.fetch_add(len, Ordering::Relaxed);
        }
        Bytes::from_owner(Charged {
            bytes,
            is_borrowed,
            held: Arc::clone(self),
        })
    }

    /// Counts a file of this length as long as the result exists.
    pub(crate) fn file(self: &Arc<Self>, len: u64) -> Filed {
        self.stored(len, false)
    }

    /// Counts an object of a remote store of this length as long as the result exists.
    pub(crate) fn object(self: &Arc<Self>, len: u64) -> Filed {
        self.stored(len, true)
    }

    fn stored(self: &Arc<Self>, len: u64, is_object: bool) -> Filed {
        let filed = Filed {
            len,
            is_object,
            held: Arc::clone(self),
        };
        filed.count().fetch_add(len, Ordering::Relaxed);
        filed
    }

    /// Bytes in files.
    pub(crate) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes in objects of a remote store.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes of memory that are in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Of these, the bytes in mapped memory that another process has made.
    pub(crate) fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} bytes)", self.bytes())
    }
}

/// A file or an object that is counted.
#[derive(Debug)]
pub(crate) struct Filed {
    len: u64,
    is_object: bool,
    held: Arc<Held>,
}

impl Filed {
    fn count(&self) -> &AtomicU64 {
        match self.is_object {
            true => &self.held.objects,
            false => &self.held.files,
        }
    }
}

impl Drop for Filed {
    fn drop(&mut self) {
        self.count().fetch_sub(self.len, Ordering::Relaxed);
    }
}

struct Charged {
    bytes: Bytes,
    is_borrowed: bool,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let len = self.bytes.len() as u64;
        // Given back before it is not counted.
        drop(std::mem::take(&mut self.bytes));
        self.held.bytes.fetch_sub(len, Ordering::Relaxed);
        if self.is_borrowed {
            self.held.borrowed.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_until_its_last_part_is_dropped() {
        let held = Arc::new(Held::default());
        let arena = held.charge(Bytes::from(vec![1; 1000]));
        let file = held.charge(Bytes::from(vec![2; 10]));
        assert_eq!(held.bytes(), 1010);
        let (first, last) = (arena.slice(..100), arena.slice(900..));
        drop(arena);
        drop(first);
        assert_eq!(held.bytes(), 1010, "a part keeps all of it");
        drop(file);
        assert_eq!((held.bytes(), last[0]), (1000, 1));
        drop(last);
        assert_eq!((held.bytes(), held.borrowed()), (0, 0));
    }
}
