//! Shared memory, handed out like `malloc` does.

mod export;
mod forks;
mod state;

pub use self::export::Export;
pub(crate) use self::forks::{after_fork_in_child, after_fork_in_parent, before_fork};
use self::state::{Doomed, Holds, Live, Parked, Spare, State};

use crate::file::File;
use crate::size_class::size_class;
use crate::{MemoryError, expiry, fork, limit, memfd, pagemap, room};
use rustix::fd::AsFd;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// No segment is smaller: descriptors are few, and a page of a small array would be mostly empty.
const SMALLEST: usize = 64 << 10;
/// From here on, reading what the kernel says about memory costs little beside touching it.
const LARGE: usize = 16 << 20;

/// Names what was exported, within one process. Numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId(pub u64);

/// How much there is, in bytes whose pages are in place where it is not a count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Segments that this process has a descriptor of.
    pub segments: usize,
    /// In use here.
    pub live_bytes: usize,
    /// Kept for reuse.
    pub idle_bytes: usize,
    /// Freed here, still in use by a receiver.
    pub parked_bytes: usize,
}

/// An allocator of memory that other processes of this host can map.
///
/// Each allocation is a segment: a memfd, aligned to a page, with the pages in place that were asked
/// for; its file is somewhat longer, so that others fit there later. It costs one descriptor, so that
/// at most a quarter of the limit of open files exist, and one mapping. From 2 MiB on, it has a second one while it is frozen (see below): the kernel counts the
/// resident shared memory of both, though there is one.
///
/// # Snapshots
/// [`export`](Self::export) freezes a segment: its file keeps what it has at that moment for ever,
/// and what this process writes from then on goes to pages of its own (copy on write). A frozen
/// segment can be exported again as long as the exported pages were not written to since. A thread
/// that writes into memory while another one exports it has a race, as it has with any way of
/// sending: the receiver sees the old bytes or the new ones.
///
/// From Linux 5.13 on, freezing takes well below a millisecond a GiB (before: 40), and from 6.7 on
/// so does a later export of what this process has not touched since; pages that it has read are
/// looked through (10 ms a GiB). Its first read after freezing looks pages up again: 60 ms a GiB.
///
/// # Reuse
/// A freed segment is used again as soon as no receiver has it any more. Receivers are counted by
/// [`lend`](Self::lend) and [`release`](Self::release); [`abandon`](Self::abandon) is for those
/// that disappeared.
///
/// # Forks
/// A fork freezes every segment in use, so that parent and child have what they have with private
/// memory: a copy each, made page by page on write. Neither uses such a segment again. The child
/// inherits no idle memory.
pub struct Segments {
    limit: usize,
    state: Mutex<State>,
}

/// Every instance, for forks.
static INSTANCES: Mutex<Vec<&'static Segments>> = Mutex::new(Vec::new());

impl Segments {
    /// An allocator that keeps at most `limit_bytes` in idle and parked segments. It lives as long
    /// as the process, because its memory may.
    pub fn new(limit_bytes: usize) -> &'static Self {
        fork::watch();
        let segments = Box::leak(Box::new(Segments {
            limit: limit_bytes,
            state: Mutex::default(),
        }));
        lock(&INSTANCES).push(segments);
        segments
    }

    /// The process's own allocator. It keeps up to a quarter of
    /// [`memory_limit`](crate::memory_limit).
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<&'static Segments> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            Segments::new(usize::try_from(limit::memory_limit() / 4).unwrap_or(usize::MAX))
        })
    }

    /// Memory of `len` bytes at least, aligned to a page. It holds whatever this process last had
    /// there; fresh memory is zero.
    ///
    /// # Errors
    /// [`MemoryError`], when there is not enough memory or there are too many segments.
    pub fn allocate(&self, len: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(self.obtain(len)?.0)
    }

    /// [`allocate`](Self::allocate), and all bytes are zero.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_zeroed(&self, len: usize) -> Result<NonNull<u8>, MemoryError> {
        let (start, fresh) = self.obtain(len)?;
        if !fresh {
            // SAFETY: so many bytes were just allocated, and nobody else knows them.
            unsafe { start.write_bytes(0, len) };
        }
        Ok(start)
    }

    /// Ends the use of memory here. Returns whether it was this allocator's.
    ///
    /// # Safety
    /// If a segment starts at `start`, nobody may use it any more.
    pub unsafe fn free(&self, start: NonNull<u8>) -> bool {
        let mut doomed = Doomed::default();
        let mut state = self.state();
        let Some(live) = state.live.remove(&start.addr().get()) else {
            return false;
        };
        let (class, placed) = (live.region.len(), live.placed);
        state.live_bytes -= placed;
        state.exported.remove(&live.id);
        if live.retired {
            doomed.live = Some(live);
        } else {
            let Live { id, file, .. } = live;
            let shared = if live.frozen {
                doomed.region = Some(live.region);
                live.shared
            } else {
                Some(live.region)
            };
            let spare = Spare {
                file,
                shared,
                placed,
            };
            if live.holds.any() {
                state.parked_bytes += placed;
                let parked = Parked {
                    spare,
                    class,
                    holds: live.holds,
                };
                state.parked.insert(id, parked);
            } else {
                state.idle.put(class, placed, spare);
                expiry::watch();
            }
        }
        state.shrink(self.limit, &mut doomed);
        drop(state);
        true
    }

    /// The length of the segment that starts at `start`, in bytes, as it was asked for.
    pub fn len_at(&self, start: NonNull<u8>) -> Option<usize> {
        let state = self.state();
        state.live.get(&start.addr().get()).map(|live| live.len)
    }

    /// Changes the length of the segment that starts at `start`, without moving it. Returns
    /// whether that was possible, without wasting more than half of it.
    pub fn resize(&self, start: NonNull<u8>, len: usize) -> bool {
        let mut state = self.state();
        let Some(live) = state.live.get_mut(&start.addr().get()) else {
            return false;
        };
        let class = live.region.len();
        if !(class / 2..=class).contains(&len) {
            return false;
        }
        let before = live.placed;
        if len > before {
            // The pages that a frozen segment lacks would not be its file's.
            let placed = whole_pages(len);
            let part = before..placed;
            if live.frozen || memfd::populate(&live.region, live.file.as_fd(), part).is_err() {
                return false;
            }
            live.placed = placed;
        }
        live.len = len;
        state.live_bytes += whole_pages(len).saturating_sub(before);
        true
    }

    /// Whether all `len` bytes from `start` on are in one segment.
    pub fn contains(&self, start: *const u8, len: usize) -> bool {
        self.state().find(start, len).is_some()
    }

    /// What is in the segment that starts at `start` stays as it is until it is freed, as the caller
    /// vouches: exporting it need not freeze it, and the next use finds it mapped.
    pub fn keep_constant(&self, start: NonNull<u8>) {
        if let Some(live) = self.state().live.get_mut(&start.addr().get())
            && !live.frozen
        {
            live.constant = true;
        }
    }

    /// A snapshot of `len` bytes from `start` on, which other processes can map.
    ///
    /// `None`: they are not in a segment, there are none, or they changed after an earlier export
    /// (or fork); send a copy.
    pub fn export(&'static self, start: *const u8, len: usize) -> Option<Export> {
        let mut state = self.state();
        let live = state.find(start, len)?;
        if len == 0 {
            return None;
        }
        if live.frozen {
            let first = start.addr();
            if !live.constant && !pagemap::all_of_file(first..first + len) {
                return None;
            }
        } else if !live.constant {
            live.freeze().ok()?;
        }
        live.holds.exports += 1;
        let address = live.region.start().addr().get();
        let export = Export {
            offset: (start.addr() - address) as u64,
            length: len as u64,
            segment: live.id,
            file: Arc::clone(&live.file),
            segments: self,
        };
        state.exported.insert(export.segment, address);
        Some(export)
    }

    /// A receiver got the descriptor. Call it while the [`Export`] is there.
    pub fn lend(&self, segment: SegmentId) {
        if let Some(holds) = self.state().holds(segment) {
            holds.lends += 1;
        }
    }

    /// A receiver has unmapped what was lent to it. Call it once for each [`lend`](Self::lend): who
    /// relays what peers say has to check that they say it about what they were lent.
    pub fn release(&self, segment: SegmentId) {
        self.release_hold(segment, |holds| holds.lends = holds.lends.saturating_sub(1));
    }

    /// A receiver has disappeared without a word. Children of it may still have the memory mapped,
    /// so the segment is not used again.
    pub fn abandon(&self, segment: SegmentId) {
        let mut state = self.state();
        let parked = state.unpark(segment);
        if let Some(live) = state.live_of(segment) {
            live.retired = true;
            live.holds.lends = live.holds.lends.saturating_sub(1);
        }
        drop(state);
        drop(parked);
    }

    /// Gives all idle memory back to the system, and the descriptors of parked segments.
    pub fn trim(&self) {
        let mut doomed = Doomed::default();
        self.state().shrink(0, &mut doomed);
    }

    /// Gives idle memory that nobody has used for `age` back to the system.
    pub fn expire(&self, age: Duration) {
        self.give_back(age, usize::MAX);
    }

    /// The same, the oldest first, until that makes `enough` bytes. Returns how many it makes.
    pub fn give_back(&self, age: Duration, enough: usize) -> usize {
        let mut state = self.state();
        let (expired, given) = state.idle.expire(age, enough);
        drop(state);
        drop(expired);
        given
    }

    /// How much there is now.
    pub fn stats(&self) -> Stats {
        let state = self.state();
        Stats {
            segments: state.segments(),
            live_bytes: state.live_bytes,
            idle_bytes: state.idle.bytes(),
            parked_bytes: state.parked_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Memory, and whether it is fresh.
    fn obtain(&self, len: usize) -> Result<(NonNull<u8>, bool), MemoryError> {
        let wanted = size_class(len, SMALLEST)?;
        let kept = self.state().idle.take(wanted);
        let fresh = kept.is_none();
        let (class, spare) = match kept {
            Some(kept) => kept,
            None => {
                room::make(len);
                (wanted, self.create(len, wanted)?)
            }
        };
        let Spare {
            file,
            shared,
            placed,
        } = spare;
        let wanted = whole_pages(len.max(SMALLEST));
        let (region, mapped) = match shared {
            Some(region) => (region, placed),
            // The pages that the file has are not in the page table of a new mapping.
            None => (memfd::map_to_write(file.as_fd(), class)?, 0),
        };
        // Placing pages takes long. No lock is held: the segment is in no list now.
        if wanted > mapped {
            memfd::populate(&region, file.as_fd(), mapped..wanted)?;
        }
        let placed = placed.max(wanted);
        let start = region.start();
        let mut state = self.state();
        state.last_id += 1;
        state.live_bytes += placed;
        let live = Live {
            id: SegmentId(state.last_id),
            file,
            region,
            len,
            placed,
            frozen: false,
            constant: false,
            shared: None,
            retired: false,
            holds: Holds::default(),
        };
        state.live.insert(start.addr().get(), live);
        Ok((start, fresh))
    }

    fn create(&self, len: usize, class: usize) -> Result<Spare, MemoryError> {
        if class >= LARGE && class as u64 > limit::available_memory() {
            self.trim();
            // Touching more than there is would get somebody killed.
            let available = limit::available_memory();
            if class as u64 > available {
                return Err(MemoryError::OutOfMemory { len, available });
            }
        }
        let mut doomed = Doomed::default();
        self.state().make_room(&mut doomed)?;
        drop(doomed);
        Ok(Spare {
            file: Arc::new(File::new(memfd::create(class)?)),
            shared: None,
            placed: 0,
        })
    }

    fn release_hold(&self, segment: SegmentId, change: impl FnOnce(&mut Holds)) {
        let mut doomed = Doomed::default();
        let mut state = self.state();
        let Some(holds) = state.holds(segment) else {
            return;
        };
        change(holds);
        if holds.any() {
            return;
        }
        if let Some(parked) = state.unpark(segment) {
            let Parked { spare, class, .. } = parked;
            state.idle.put(class, spare.placed, spare);
            expiry::watch();
            state.shrink(self.limit, &mut doomed);
        }
        drop(state);
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Segments");
        fields.field("limit", &self.limit);
        fields.field("stats", &self.stats()).finish()
    }
}

/// The length of the pages that `len` bytes begin.
fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(rustix::param::page_size())
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
