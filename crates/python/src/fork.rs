//! Telling a forked child from its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(1);
static WATCH: Once = Once::new();

/// Counts the forks between the first process that loaded the engine and this one, from 1.
/// What was noted in another generation belongs to a parent process: its threads do not exist
/// here, and its locks may be held for ever.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Notices forks from now on, those by C code included.
pub(crate) fn watch() {
    // SAFETY: the handler only touches an atomic.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}
