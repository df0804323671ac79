//! Private memory, kept for reuse.

use crate::MemoryError;
use crate::expiry;
use crate::fork;
use crate::idle::Idle;
use crate::region::Region;
use crate::size_class::size_class;
use bytes::Bytes;
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Has the alignment of buffers.
#[repr(align(64))]
struct Aligned;

/// Smaller buffers come from the allocator, which is quick about them. Those beyond would leave
/// holes there that are too small for others, and it would keep them.
const LARGE: usize = 128 << 10;

/// Hands out [`Buffer`]s and keeps the memory of those that were dropped.
///
/// The limit bounds idle memory only: what is in use is the caller's business. A pool belongs to
/// the process that made it; in a forked child it hands out memory, but keeps none.
pub struct Pool {
    limit: AtomicUsize,
    generation: u64,
    idle: Mutex<Idle<Region>>,
}

impl Pool {
    /// A pool that keeps at most `limit_bytes` of idle memory.
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        fork::watch();
        Arc::new(Pool {
            limit: AtomicUsize::new(limit_bytes),
            generation: fork::generation(),
            idle: Mutex::default(),
        })
    }

    /// The process's own pool. It keeps up to a quarter of [`memory_limit`](crate::memory_limit).
    pub fn global() -> &'static Arc<Self> {
        static GLOBAL: AtomicPtr<Arc<Pool>> = AtomicPtr::new(std::ptr::null_mut());
        let current = GLOBAL.load(Ordering::Acquire);
        // SAFETY: what is stored below is never freed.
        if let Some(pool) = unsafe { current.as_ref() }
            // A forked child makes its own: a thread of the parent may have held the lock of this one.
            && pool.is_ours()
        {
            return pool;
        }
        let limit = usize::try_from(crate::memory_limit() / 4).unwrap_or(usize::MAX);
        let pool = Box::into_raw(Box::new(Pool::new(limit)));
        let stored = GLOBAL.compare_exchange(current, pool, Ordering::AcqRel, Ordering::Acquire);
        let pool = match stored {
            Ok(_) => pool,
            Err(other) => {
                // SAFETY: made above and shown to nobody.
                drop(unsafe { Box::from_raw(pool) });
                other
            }
        };
        // SAFETY: a pool that is stored is never freed.
        unsafe { &*pool }
    }

    /// A buffer of exactly `len` bytes.
    ///
    /// It holds whatever this process last had there; fresh memory is zero.
    ///
    /// # Errors
    /// [`MemoryError`], when the system has no more.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Result<Buffer, MemoryError> {
        if len < LARGE {
            return Buffer::small(len);
        }
        let class = size_class(len, LARGE)?;
        let kept = self.idle().and_then(|mut idle| idle.take(class));
        let region = match kept {
            Some((_, region)) => region,
            None => {
                #[cfg(target_os = "linux")]
                crate::room::make(len);
                Region::anonymous(class).or_else(|_| {
                    self.trim();
                    Region::anonymous(class)
                })?
            }
        };
        Ok(Buffer {
            start: region.start(),
            len,
            memory: Memory::Large {
                region: Some(region),
                pool: Arc::clone(self),
            },
        })
    }

    /// Gives all idle memory back to the system.
    pub fn trim(&self) {
        let given_up = self.idle().map(|mut idle| idle.shrink(0));
        drop(given_up);
    }

    /// From now on it keeps at most so many bytes of idle memory.
    pub fn keep_at_most(&self, limit_bytes: usize) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
        let given_up = self.idle().map(|mut idle| idle.shrink(limit_bytes));
        drop(given_up);
    }

    /// Gives what nobody has used for `age` back to the system.
    pub fn expire(&self, age: Duration) {
        self.give_back(age, usize::MAX);
    }

    /// The same, the oldest first, until that makes `enough` bytes. Returns how many it makes.
    pub fn give_back(&self, age: Duration, enough: usize) -> usize {
        let Some(mut idle) = self.idle() else {
            return 0;
        };
        let (expired, given) = idle.expire(age, enough);
        // Unmapping takes long: it is done after the lock.
        drop(idle);
        drop(expired);
        given
    }

    /// How much is kept for reuse now, in bytes.
    pub fn idle_bytes(&self) -> usize {
        self.idle().map_or(0, |idle| idle.bytes())
    }

    fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    fn idle(&self) -> Option<MutexGuard<'_, Idle<Region>>> {
        self.is_ours()
            .then(|| self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, region: Region) {
        // Unmapping takes long: the evicted go after the lock.
        let evicted = self.idle().map(|mut idle| {
            idle.put(region.len(), region.len(), region);
            expiry::watch();
            idle.shrink(self.limit.load(Ordering::Relaxed))
        });
        drop(evicted);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("limit", &self.limit)
            .field("idle_bytes", &self.idle_bytes())
            .finish()
    }
}

enum Memory {
    Small(Layout),
    Large {
        /// `None` only while the buffer is dropped.
        region: Option<Region>,
        pool: Arc<Pool>,
    },
}

/// Owned, writable memory, aligned to 64 bytes at least. Dropped, it returns to its [`Pool`].
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    memory: Memory,
}

// SAFETY: the memory is this value's own, and belongs to no thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn small(len: usize) -> Result<Self, MemoryError> {
        let layout = Layout::from_size_align(len, align_of::<Aligned>())
            .expect("a small length with a small power of two");
        let start = if len == 0 {
            NonNull::<Aligned>::dangling().cast()
        } else {
            // SAFETY: the length is not zero.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(
                MemoryError::System {
                    call: "malloc",
                    len,
                    errno: rustix::io::Errno::NOMEM,
                },
            )?
        };
        Ok(Buffer {
            start,
            len,
            memory: Memory::Small(layout),
        })
    }

    /// Usable bytes: what was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, to write.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes of this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes of this value, which is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The same memory, shared and counted. It returns to the pool with the last of its clones.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.memory {
            Memory::Small(layout) if layout.size() > 0 => {
                // SAFETY: allocated with this layout, and nobody can borrow it any more.
                unsafe { std::alloc::dealloc(self.start.as_ptr(), *layout) }
            }
            Memory::Small(_) => {}
            Memory::Large { region, pool } => {
                if let Some(region) = region.take() {
                    pool.keep(region);
                }
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
