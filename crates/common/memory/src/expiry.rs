//! Freed memory that nobody uses again goes back to the system, in each process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::fork;
use crate::pool::Pool;
#[cfg(target_os = "linux")]
use crate::segments::Segments;

/// How long freed memory is kept. Processes that know their limits keep it for less.
const KEPT: Duration = Duration::from_secs(30);
/// How often the thread looks at it.
const LOOK: Duration = Duration::from_secs(5);

/// One more than the [generation](fork::generation) of the process whose thread runs. 0: none runs.
static WATCHED: AtomicU64 = AtomicU64::new(0);

/// Memory was freed, and is kept: a thread sees to it from now on, until none is kept.
pub(crate) fn watch() {
    let ours = fork::generation() + 1;
    let seen = WATCHED.load(Ordering::Relaxed);
    // A thread of the process that this one was forked from does not run here.
    if seen == ours || !claim(seen, ours) {
        return;
    }
    let thread = thread::Builder::new().name("treadle-expiry".into());
    if thread.spawn(move || expire(ours, LOOK, KEPT)).is_err() {
        // Who frees memory next tries again.
        WATCHED.store(0, Ordering::SeqCst);
    }
}

fn claim(seen: u64, ours: u64) -> bool {
    let order = Ordering::SeqCst;
    WATCHED.compare_exchange(seen, ours, order, order).is_ok()
}

fn expire(ours: u64, look: Duration, kept: Duration) {
    loop {
        thread::sleep(look);
        Pool::global().expire(kept);
        #[cfg(target_os = "linux")]
        Segments::global().expire(kept);
        if is_kept() {
            continue;
        }
        WATCHED.store(0, Ordering::SeqCst);
        // Who freed memory before that took this thread for one that goes on.
        if !is_kept() || !claim(0, ours) {
            return;
        }
    }
}

fn is_kept() -> bool {
    #[cfg(target_os = "linux")]
    let shared = Segments::global().stats().idle_bytes;
    #[cfg(not(target_os = "linux"))]
    let shared = 0;
    Pool::global().idle_bytes() + shared > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_gives_back_what_is_kept_and_ends() {
        let ours = fork::generation() + 1;
        assert!(claim(0, ours), "no other test of this binary frees memory");
        // Nobody starts a second one.
        drop(Pool::global().buffer(1 << 20).unwrap());
        assert_eq!(WATCHED.load(Ordering::SeqCst), ours);
        assert!(is_kept());
        expire(ours, Duration::from_millis(1), Duration::ZERO);
        assert!(!is_kept());
        assert_eq!(WATCHED.load(Ordering::SeqCst), 0);
        // The next one that frees memory starts it again.
        drop(Pool::global().buffer(1 << 20).unwrap());
        assert_eq!(WATCHED.load(Ordering::SeqCst), ours);
        #[cfg(target_os = "linux")]
        {
            WATCHED.store(0, Ordering::SeqCst);
            let segment = Segments::global().allocate(1 << 20).unwrap();
            // SAFETY: nobody uses it.
            assert!(unsafe { Segments::global().free(segment) });
            assert_eq!(WATCHED.load(Ordering::SeqCst), ours);
        }
    }
}
