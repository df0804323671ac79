//! The sleep of a thread that looks after things while nothing happens.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// One thread takes naps, any may disturb it.
#[derive(Debug, Default)]
pub(super) struct Nap {
    sleeper: OnceLock<Thread>,
    is_taken: AtomicBool,
    is_disturbed: AtomicBool,
}

impl Nap {
    /// Something happens: no nap until it was [noticed](Self::was_disturbed), and a nap ends.
    pub(super) fn disturb(&self) {
        // Costs next to nothing while things happen all the time.
        if self.is_disturbed.load(Ordering::SeqCst) {
            return;
        }
        self.is_disturbed.store(true, Ordering::SeqCst);
        if self.is_taken.load(Ordering::SeqCst)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Whether it was since this was asked last.
    pub(super) fn was_disturbed(&self) -> bool {
        self.is_disturbed.swap(false, Ordering::SeqCst)
    }

    /// Sleeps until it is disturbed, at most so long. Always by the same thread.
    pub(super) fn take(&self, most: Duration) {
        self.sleeper.get_or_init(std::thread::current);
        self.is_taken.store(true, Ordering::SeqCst);
        if !self.is_disturbed.load(Ordering::SeqCst) {
            std::thread::park_timeout(most);
        }
        self.is_taken.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Nap;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn who_was_disturbed_does_not_nap() {
        let nap = Nap::default();
        nap.disturb();
        nap.take(LONG);
        assert!(nap.was_disturbed() && !nap.was_disturbed());
    }

    #[test]
    fn a_nap_ends_when_it_is_disturbed() {
        for _ in 0..200 {
            let nap = Arc::new(Nap::default());
            let sleeper = Arc::clone(&nap);
            let thread = std::thread::spawn(move || {
                for _ in 0..20 {
                    while !sleeper.was_disturbed() {
                        sleeper.take(LONG);
                    }
                }
            });
            while !thread.is_finished() {
                nap.disturb();
                std::thread::yield_now();
            }
            thread.join().unwrap();
        }
    }
}
