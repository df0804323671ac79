//! Parking a thread that looks after things while nothing happens.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// One thread parks, any may notify it.
#[derive(Debug, Default)]
pub(super) struct Parker {
    thread: OnceLock<Thread>,
    is_parked: AtomicBool,
    is_notified: AtomicBool,
    is_hurried: AtomicBool,
    /// It is parked, and knows that tasks run.
    is_busy: AtomicBool,
}

impl Parker {
    /// Something happens: the thread does not park until it has [noticed](Self::was_notified), and
    /// goes on if it is parked.
    pub(super) fn notify(&self) {
        // Costs next to nothing while things happen all the time.
        if self.is_notified.load(Ordering::SeqCst) {
            return;
        }
        self.is_notified.store(true, Ordering::SeqCst);
        // `park` stores and loads these two the other way round, so one of both sees what the other did.
        if self.is_parked.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// A task has begun: as [`notify`](Self::notify), unless the thread knows that tasks run
    /// ([`park_busy`](Self::park_busy)).
    pub(super) fn notify_begun(&self) {
        if !self.is_busy.load(Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Somebody waits for the thread: it goes on at once, also if it [rests](Self::rest).
    pub(super) fn hurry(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
        self.is_notified.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Parks for so long, unless somebody is in a hurry. Always the same thread.
    pub(super) fn rest(&self, time: Duration) {
        self.thread.get_or_init(std::thread::current);
        if !self.is_hurried.swap(false, Ordering::SeqCst) {
            std::thread::park_timeout(time);
            self.is_hurried.store(false, Ordering::SeqCst);
        }
    }

    /// Whether it was since this was asked last.
    pub(super) fn was_notified(&self) -> bool {
        self.is_notified.swap(false, Ordering::SeqCst)
    }

    /// As [`park`](Self::park), and no task that begins wakes it.
    pub(super) fn park_busy(&self, most: Duration) {
        self.is_busy.store(true, Ordering::SeqCst);
        self.park(most);
        self.is_busy.store(false, Ordering::SeqCst);
    }

    /// Parks until it is notified, at most so long. Always the same thread.
    pub(super) fn park(&self, most: Duration) {
        self.thread.get_or_init(std::thread::current);
        self.is_parked.store(true, Ordering::SeqCst);
        if !self.is_notified.load(Ordering::SeqCst) {
            std::thread::park_timeout(most);
        }
        self.is_parked.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::Parker;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_thread_that_was_notified_does_not_park() {
        let parker = Parker::default();
        parker.notify();
        parker.park(LONG);
        assert!(parker.was_notified() && !parker.was_notified());
    }

    #[test]
    fn a_task_that_begins_wakes_only_who_does_not_know_that_tasks_run() {
        let parker = Arc::new(Parker::default());
        parker.notify_begun();
        assert!(parker.was_notified());
        let parked = Arc::clone(&parker);
        let thread = std::thread::spawn(move || {
            while !parked.was_notified() {
                parked.park_busy(LONG);
            }
        });
        while !parker.is_busy.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        parker.notify_begun();
        assert!(!parker.was_notified());
        while !thread.is_finished() {
            parker.notify();
            std::thread::yield_now();
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_that_rests_goes_on_when_somebody_is_in_a_hurry() {
        let parker = Parker::default();
        parker.hurry();
        parker.rest(LONG);
        assert!(parker.was_notified());
        // Another thread needs another one.
        let parker = Arc::new(Parker::default());
        let resting = Arc::clone(&parker);
        let thread = std::thread::spawn(move || resting.rest(LONG));
        while !thread.is_finished() {
            parker.hurry();
            std::thread::yield_now();
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_that_is_parked_goes_on_when_it_is_notified() {
        for _ in 0..200 {
            let parker = Arc::new(Parker::default());
            let parked = Arc::clone(&parker);
            let thread = std::thread::spawn(move || {
                for _ in 0..20 {
                    while !parked.was_notified() {
                        parked.park(LONG);
                    }
                }
            });
            while !thread.is_finished() {
                parker.notify();
                std::thread::yield_now();
            }
            thread.join().unwrap();
        }
    }
}
