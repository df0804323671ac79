//! Whether a thread pickles something for Treadle.
//!
//! `pickle` looks each function and class up in its module. In a worker the module `__main__` may run
//! the user's script for a name that it has not: for whoever unpickles the name, and not for this.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While there is one, its thread pickles.
#[derive(Debug)]
pub struct Pickling(());

impl Pickling {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Pickling {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether the calling thread pickles.
pub fn is_pickling() -> bool {
    DEPTH.get() > 0
}
