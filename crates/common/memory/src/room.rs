//! A limit of the process: what is free goes back to the system before more is made.
//!
//! [`Reclaim`](crate::Reclaim) looks every now and then, and keeps what was freed for what comes next. What
//! comes in between can be large, and can be of another kind than what was freed: then it comes on top.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Pool, Segments, occupied, trim_heap};

/// Bytes that the process may take. `u64::MAX`: nobody said.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Bytes that may be made before the process is measured again.
static UNMEASURED: AtomicU64 = AtomicU64::new(0);
/// When the allocator was asked last. It takes long, and mostly finds the same.
static TRIMMED: Mutex<Option<Instant>> = Mutex::new(None);
/// How long the allocator is not asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// From now on memory that is kept for what comes next goes back to the system before the process takes more
/// than so many bytes. What is in use is the caller's business.
pub fn keep_below(limit: u64) {
    LIMIT.store(limit, Ordering::Relaxed);
    UNMEASURED.store(0, Ordering::Relaxed);
}

/// Gives back what is kept for what comes next, until the process takes no more than `most` bytes. Returns by
/// how many it takes more.
pub fn shrink(most: u64) -> u64 {
    let missing = || occupied().unwrap_or(0).saturating_sub(most);
    let bytes = usize::try_from(missing()).unwrap_or(usize::MAX);
    if bytes == 0 {
        return 0;
    }
    let given = Pool::global().give_back(Duration::ZERO, bytes);
    Segments::global().give_back(Duration::ZERO, bytes.saturating_sub(given));
    missing()
}

/// So many bytes of fresh memory are about to be made.
pub(crate) fn make(bytes: usize) {
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit == u64::MAX {
        return;
    }
    let bytes = bytes as u64;
    let take = |left: u64| left.checked_sub(bytes);
    let taken = UNMEASURED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    if taken.is_ok() {
        return;
    }
    let most = limit.saturating_sub(bytes);
    if shrink(most) > 0 && is_due() {
        trim_heap();
    }
    // Others take memory, too: half of what is left is theirs.
    let left = most.saturating_sub(occupied().unwrap_or(0));
    UNMEASURED.store(left / 2, Ordering::Relaxed);
}

/// Whether the allocator may be asked again.
fn is_due() -> bool {
    let mut last = TRIMMED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = last.is_none_or(|last| last.elapsed() >= PAUSE);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}
