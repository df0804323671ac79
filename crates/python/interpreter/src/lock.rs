//! Locking a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also what a thread held that panicked: whoever depends on what it did is told by other
/// means.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
