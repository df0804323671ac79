//! Threads of the engine: none ends without somebody hearing of it.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Starts a thread.
///
/// # Errors
/// The system has no more of them; what to do about it.
pub fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let started = Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|error| {
        let text = format!(
            "the system has no further thread ({name}: {error}): raise the limit of processes \
             (`ulimit -u`, `pids.max` of the container), or use fewer threads"
        );
        io::Error::new(error.kind(), text)
    })
}

/// What a panic in a thread of the engine said.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a thread of the engine panicked: {0}")]
pub struct Panicked(String);

/// Calls something, in a thread that others wait for. What it worked on may be half done after a
/// panic: the caller ends it, and says why.
///
/// # Errors
/// [`Panicked`]: with what it said.
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = said(&*panic);
        // What was thrown may panic itself when it is dropped, where nobody catches that.
        std::mem::forget(panic);
        Panicked(text)
    })
}

/// Locks a mutex, also after a panic elsewhere, which left the data before or after a whole step.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic says.
pub fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it does not say why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told() {
        assert_eq!(caught(|| 1), Ok(1));
        let error = caught(|| -> i32 { panic!("broken {}", 2) }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a thread of the engine panicked: broken 2"
        );
    }
}
