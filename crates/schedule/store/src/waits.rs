//! How long threads waited for a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Adds up the waits for one lock. Where nobody waits, it costs nothing.
#[derive(Debug, Default)]
pub struct Waits {
    nanoseconds: AtomicU64,
}

impl Waits {
    /// Locks, and adds the wait if there is one. A panic of who held the lock does not matter.
    pub fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        let began = Instant::now();
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(waited, Ordering::Relaxed);
        guard
    }

    /// How long all have waited together.
    pub fn so_far(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn only_who_waits_is_counted() {
        let (waits, mutex) = (Waits::default(), Mutex::new(0));
        for _ in 0..10 {
            *waits.lock(&mutex) += 1;
        }
        assert_eq!(waits.so_far(), Duration::ZERO);
        // A thread that asks for the lock later than that has not waited.
        for pause in (0..10).map(|power| Duration::from_millis(100 << power)) {
            let held = waits.lock(&mutex);
            thread::scope(|scope| {
                let (begin, begins) = mpsc::channel();
                let (waits, mutex) = (&waits, &mutex);
                let waiting = scope.spawn(move || {
                    begin.send(()).unwrap();
                    *waits.lock(mutex)
                });
                begins.recv().unwrap();
                thread::sleep(pause);
                drop(held);
                assert_eq!(waiting.join().unwrap(), 10);
            });
            if waits.so_far() > Duration::ZERO {
                return;
            }
        }
        panic!("who waited was not counted");
    }
}
