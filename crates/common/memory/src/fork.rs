//! Forks: a child has its parent's memory, and none of its threads.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// Counts the forks between the first process that watched and this one. A lock of another
/// generation may be held for ever.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Counts the forks in which this process took part, as a parent or as a child. What was mapped
/// before the last one may be mapped in other processes too.
#[cfg(target_os = "linux")]
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn before() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    #[cfg(target_os = "linux")]
    {
        crate::segments::before_fork();
        crate::received::before_fork();
    }
}

extern "C" fn in_parent() {
    #[cfg(target_os = "linux")]
    {
        crate::received::after_fork();
        crate::segments::after_fork_in_parent();
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    #[cfg(target_os = "linux")]
    {
        crate::received::after_fork();
        crate::segments::after_fork_in_child();
    }
}

/// Notices forks from now on, those by C code included. Children that call `exec` at once
/// (`vfork`, `posix_spawn`) lose all memory and are of no concern.
pub(crate) fn watch() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}
