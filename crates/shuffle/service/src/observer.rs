//! What a member does with rows, for the trace of its process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, OnceLock};

use treadle_reactor::thread::lock;
use treadle_shuffle_node::Done;

/// Names of so many shuffles are kept. The oldest ones are forgotten first.
const MOST: usize = 1024;

/// Records what a member does with rows.
pub trait Observer: Send + Sync {
    /// Whether the process is traced.
    fn is_traced(&self) -> bool;
    /// Records an activity and the name of its shuffle. Called only while the process is traced.
    fn traced(&self, done: Done, shuffle: String);
}

/// An observer, if there is one, and the names of the shuffles that it hears of.
#[derive(Default)]
pub(crate) struct Observed {
    observer: OnceLock<Box<dyn Observer>>,
    names: Mutex<BTreeMap<u64, String>>,
}

impl Observed {
    pub(crate) fn observe(&self, observer: Box<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// A shuffle has this name.
    pub(crate) fn named(&self, shuffle: u64, name: &str) {
        if self.observer.get().is_none() {
            return;
        }
        let mut names = lock(&self.names);
        names.insert(shuffle, name.into());
        if names.len() > MOST {
            names.pop_first();
        }
    }

    pub(crate) fn is_traced(&self) -> bool {
        let observer = self.observer.get();
        observer.is_some_and(|observer| observer.is_traced())
    }

    pub(crate) fn traced(&self, done: Done) {
        if let Some(observer) = self.observer.get() {
            let name = lock(&self.names).get(&done.shuffle.0).cloned();
            let name = name.unwrap_or_else(|| format!("number {}", done.shuffle.0));
            observer.traced(done, name);
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}
