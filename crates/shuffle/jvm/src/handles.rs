//! What Java holds by a number. A number that was closed, or never given, is an error, and never an address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::thrown::Thrown;

/// The values of one kind.
pub(crate) struct Handles<T> {
    what: &'static str,
    /// What a number fails with that is not open.
    closed: fn(&'static str) -> Thrown,
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    last: i64,
    values: Option<HashMap<i64, Arc<T>>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(what: &'static str, closed: fn(&'static str) -> Thrown) -> Self {
        let inner = Inner {
            last: 0,
            values: None,
        };
        Self {
            what,
            closed,
            inner: Mutex::new(inner),
        }
    }

    /// Keeps a value until [`Handles::close`].
    pub(crate) fn open(&self, value: T) -> i64 {
        let mut inner = self.lock();
        inner.last += 1;
        let handle = inner.last;
        let values = inner.values.get_or_insert_default();
        values.insert(handle, Arc::new(value));
        handle
    }

    /// The value. It lives as long as somebody uses it, even if it is closed meanwhile.
    ///
    /// # Errors
    /// It was closed, or never opened.
    pub(crate) fn get(&self, handle: i64) -> Result<Arc<T>, Thrown> {
        let inner = self.lock();
        let value = inner.values.as_ref().and_then(|all| all.get(&handle));
        value.cloned().ok_or_else(|| (self.closed)(self.what))
    }

    /// Lets the value go. A second time has no effect.
    pub(crate) fn close(&self, handle: i64) -> Option<Arc<T>> {
        // It is dropped by the caller, without the lock.
        let mut inner = self.lock();
        inner.values.as_mut().and_then(|all| all.remove(&handle))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_is_no_more_and_what_was_never_opened_neither() {
        let handles = Handles::new("a number", Thrown::Closed);
        let (one, two) = (handles.open(1), handles.open(2));
        assert_ne!(one, two);
        let kept = handles.get(one).unwrap();
        assert!(handles.close(one).is_some());
        assert!(handles.close(one).is_none());
        assert_eq!((*kept, *handles.get(two).unwrap()), (1, 2));
        for handle in [one, 0, -1, i64::MAX] {
            let error = handles.get(handle).unwrap_err();
            assert!(error.to_string().contains("a number"), "{error}");
            assert!(matches!(error, Thrown::Closed(_)));
        }
        let shuffles = Handles::<()>::new("the shuffle", Thrown::Gone);
        assert!(matches!(shuffles.get(1), Err(Thrown::Gone(_))));
    }
}
