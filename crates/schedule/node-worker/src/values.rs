//! A worker's values: small ones encoded, as they travel; others in the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use treadle_store::{Form, Pinned, PutError, Store, StoreError, Waits};
use treadle_types::ObjectId;

/// A value of a worker, for somebody who reads it.
#[derive(Debug)]
pub enum Value {
    /// Encoded by [`treadle_types::value`].
    Small(Bytes),
    /// In the store, where it stays while this lives.
    Stored(Pinned),
}

/// A value cannot be serialised: [`treadle_store::Live::frames`] fails with this where whoever asked for the value
/// is to learn more.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Unserialisable {
    /// For the log.
    pub reason: String,
    /// For who asked, as the error of a task.
    pub error: Bytes,
}

/// What keeps an input from going away before its task has read it.
#[derive(Clone, Debug)]
pub(super) enum Held {
    Small(Bytes),
    /// A reference in the store.
    Stored(ObjectId),
}

pub(super) struct Values {
    store: Arc<Store>,
    small: Mutex<HashMap<ObjectId, Bytes>>,
    small_waits: Waits,
    served: AtomicU64,
    /// Nanoseconds.
    serving: AtomicU64,
}

/// What a worker has done for those that fetched values from it.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// Values that were asked for.
    pub served: u64,
    /// The time that its threads took to answer, without the sending of what waits for a slow peer.
    pub serving: Duration,
    /// The time that threads waited for the locks of the tables of values, whatever for.
    pub waited: Duration,
}

fn name(object: ObjectId) -> treadle_store::StoredId {
    treadle_store::StoredId(object.to_u64())
}

impl Values {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            small: Mutex::default(),
            small_waits: Waits::default(),
            served: AtomicU64::new(0),
            serving: AtomicU64::new(0),
        }
    }

    fn small(&self) -> MutexGuard<'_, HashMap<ObjectId, Bytes>> {
        self.small_waits.lock(&self.small)
    }

    /// A value was asked for, and answering took so long.
    pub(super) fn served(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.served.fetch_add(1, Ordering::Relaxed);
        self.serving.fetch_add(took, Ordering::Relaxed);
    }

    pub(super) fn serving(&self) -> Serving {
        Serving {
            served: self.served.load(Ordering::Relaxed),
            serving: Duration::from_nanos(self.serving.load(Ordering::Relaxed)),
            waited: self.small_waits.so_far() + self.store.lock_waits(),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn keep_small(&self, object: ObjectId, value: Bytes) {
        self.small().insert(object, value);
    }

    pub(super) fn put(
        &self,
        object: ObjectId,
        value: impl Into<Form>,
        timeout: Duration,
    ) -> Result<(), PutError> {
        self.store.put(name(object), value, timeout)
    }

    /// Keeps a value until [`Values::release`].
    pub(super) fn hold(&self, object: ObjectId) -> Option<Held> {
        if let Some(value) = self.small().get(&object) {
            return Some(Held::Small(value.clone()));
        }
        let held = self.store.retain(name(object)).ok();
        held.map(|()| Held::Stored(object))
    }

    pub(super) fn release(&self, held: &Held) {
        if let Held::Stored(object) = held {
            // It was retained, so it is known.
            let _ = self.store.release(name(*object));
        }
    }

    /// Reads a value back from disk if it is there.
    pub(super) fn read(&self, held: &Held) -> Result<Value, StoreError> {
        match held {
            Held::Small(bytes) => Ok(Value::Small(bytes.clone())),
            Held::Stored(object) => self.store.get(name(*object)).map(Value::Stored),
        }
    }

    pub(super) fn get(&self, object: ObjectId) -> Result<Value, StoreError> {
        if let Some(value) = self.small().get(&object) {
            return Ok(Value::Small(value.clone()));
        }
        self.store.get(name(object)).map(Value::Stored)
    }

    pub(super) fn has(&self, object: ObjectId) -> bool {
        let held = self.hold(object);
        held.iter().for_each(|held| self.release(held));
        held.is_some()
    }

    pub(super) fn drop_value(&self, object: ObjectId) {
        if self.small().remove(&object).is_none() {
            // Unknown where a task was to keep its value and failed to.
            let _ = self.store.remove(name(object));
        }
    }
}
