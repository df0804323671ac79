//! Values of tasks, as the store holds them.

use super::service::{Service, ServiceJob, ServiceThread};
use crate::transfer::attach;
use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use std::any::Any;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use treadle_interpreter::lock;
use treadle_node_worker::{Unserialisable, Value};
use treadle_recipe as recipe;
use treadle_serialise::{Encoded, decode_own, decode_parts, encode, encode_view, release_all};
use treadle_store::{Frames, Live, Overlap, Pinned};

/// A Python object in the store.
pub(crate) struct LiveObject {
    object: ManuallyDrop<Py<PyAny>>,
    nbytes: u64,
    /// The encoded key, for messages; empty where the value came from another worker.
    key: Bytes,
    /// The frames of an array, which view it.
    view: Option<Frames>,
    keeper: Arc<Keeper>,
}

/// From so many bytes on, what an array needs to be sent is prepared while the interpreter is at
/// hand: whoever serves it need not wait for it then, which tasks may hold for long.
const PREPARED: u64 = 64 << 10;

/// What live objects need of their worker.
pub(crate) struct Keeper {
    /// Objects that native threads let go of. Dropping one may run Python, which must not happen
    /// while a lock of the engine is held: so the next thread that runs a task does it, or the service's
    /// thread, if no task runs.
    garbage: Mutex<Vec<Py<PyAny>>>,
    service: Arc<Service>,
    service_thread: OnceLock<Weak<ServiceThread>>,
    /// Threads that run tasks now.
    busy: AtomicUsize,
}

impl Keeper {
    pub(crate) fn new(service: Arc<Service>) -> Arc<Self> {
        Arc::new(Self {
            garbage: Mutex::default(),
            service,
            service_thread: OnceLock::new(),
            busy: AtomicUsize::new(0),
        })
    }

    /// The calling thread has a task. It collects before it waits for another one, after [`Keeper::leave`].
    pub(crate) fn enter(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
    }

    /// See [`Keeper::enter`].
    pub(crate) fn leave(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Who drops what native threads let go of while no task runs.
    pub(crate) fn attend(&self, service_thread: &Arc<ServiceThread>) {
        let _ = self.service_thread.set(Arc::downgrade(service_thread));
    }

    fn discard(self: &Arc<Self>, object: Py<PyAny>) {
        let is_first = {
            let mut garbage = self.garbage();
            garbage.push(object);
            garbage.len() == 1
        };
        if is_first
            // A thread that is busy now collects after it has left, and sees the object then.
            && self.busy.load(Ordering::SeqCst) == 0
            && let Some(service_thread) = self.service_thread.get().and_then(Weak::upgrade)
        {
            service_thread.push(ServiceJob::Collect(Arc::downgrade(self)));
        }
    }

    fn garbage(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        lock(&self.garbage)
    }

    /// Drops what was let go of, by the store and by those who sent it.
    pub(crate) fn collect(&self, py: Python<'_>) {
        release_all(py);
        let objects = {
            let mut garbage = self.garbage();
            if garbage.is_empty() {
                return;
            }
            std::mem::take(&mut *garbage)
        };
        drop(objects);
    }

    /// What whoever asked for the value is told.
    fn unserialisable(&self, py: Python<'_>, live: &LiveObject, error: &PyErr) -> Unserialisable {
        let key = recipe::decode_key(py, &live.key).map(Bound::unbind);
        let told = (
            &*live.object,
            error.clone_ref(py).into_value(py),
            key.unwrap_or_else(|_| py.None()),
        );
        let dumped = self
            .service
            .call(py, intern!(py, "unserializable"), told)
            .and_then(|error| self.service.call(py, intern!(py, "dump_error"), (error,)))
            .and_then(|bytes| bytes.extract::<Vec<u8>>(py));
        Unserialisable {
            reason: error.to_string(),
            // By contract neither call raises.
            error: dumped.unwrap_or_default().into(),
        }
    }
}

impl LiveObject {
    /// The value of a task.
    pub(crate) fn computed(
        object: Bound<'_, PyAny>,
        nbytes: u64,
        key: Bytes,
        keeper: &Arc<Keeper>,
    ) -> PyResult<Arc<Self>> {
        let view = match nbytes {
            PREPARED.. => encode_view(&object)?.map(frames_of),
            _ => None,
        };
        Ok(Self::new(object.unbind(), nbytes, key, view, keeper))
    }

    /// A value that was made of frames.
    fn received(object: Py<PyAny>, nbytes: u64, keeper: &Arc<Keeper>) -> Arc<Self> {
        Self::new(object, nbytes, Bytes::new(), None, keeper)
    }

    fn new(
        object: Py<PyAny>,
        nbytes: u64,
        key: Bytes,
        view: Option<Frames>,
        keeper: &Arc<Keeper>,
    ) -> Arc<Self> {
        Arc::new(Self {
            object: ManuallyDrop::new(object),
            nbytes,
            key,
            view,
            keeper: Arc::clone(keeper),
        })
    }
}

fn frames_of(encoded: Encoded) -> Frames {
    // The first part is the header or the stream of the pickle; the others are buffers of the
    // object's own.
    let own = encoded.frames.first().map_or(0, |part| part.len() as u64);
    let frames = Frames::new(encoded.kind, encoded.frames);
    if encoded.copied {
        frames.copied()
    } else {
        frames.viewing_live(own)
    }
}

impl Drop for LiveObject {
    fn drop(&mut self) {
        // SAFETY: dropped once, and not used afterwards.
        let object = unsafe { ManuallyDrop::take(&mut self.object) };
        self.keeper.discard(object);
    }
}

impl Live for LiveObject {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    fn frames(&self) -> Result<Frames, Box<dyn Error + Send + Sync>> {
        if let Some(view) = &self.view {
            return Ok(view.clone());
        }
        attach(|py| {
            let encoded = encode(self.object.bind(py))
                .map_err(|error| self.keeper.unserialisable(py, self, &error))?;
            Ok::<_, Unserialisable>(frames_of(encoded))
        })
        .ok_or("the interpreter is ending")?
        .map_err(Into::into)
    }
}

/// The object that a value of the store is.
///
/// # Errors
/// When it cannot be unpickled here.
pub(crate) fn object_of(
    py: Python<'_>,
    mut pinned: Pinned,
    keeper: &Arc<Keeper>,
) -> PyResult<Py<PyAny>> {
    if let Some(live) = pinned.live() {
        return Ok(clone_live(py, live.as_any()));
    }
    let frames = py
        .detach(|| pinned.frames().map(|frames| (frames, pinned)))
        .map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
    let (frames, mut pinned) = frames;
    let object = decode_parts(py, frames.kind(), frames.parts())?.unbind();
    let live: Arc<dyn Live> = LiveObject::received(object, frames.nbytes(), keeper);
    // If another thread was faster, its object is the value's.
    let (live, pinned) = py.detach(|| (pinned.attach_live(live, Overlap::Frames), pinned));
    let object = clone_live(py, live.as_any());
    py.detach(|| drop((live, pinned)));
    Ok(object)
}

/// The serialised form of a value of the store, for tasks that have objects of their own.
pub(crate) struct Content {
    frames: Arc<Frames>,
    /// The value stays in memory meanwhile.
    _pinned: Pinned,
}

impl Content {
    /// # Errors
    /// When it cannot be serialised.
    pub(crate) fn of(py: Python<'_>, mut pinned: Pinned) -> PyResult<Self> {
        let frames = py.detach(|| pinned.frames());
        let frames =
            frames.map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self {
            frames,
            _pinned: pinned,
        })
    }

    /// A new object.
    ///
    /// # Errors
    /// When it cannot be unpickled here.
    pub(crate) fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        decode_own(py, self.frames.kind(), self.frames.parts()).map(Bound::unbind)
    }
}

/// The object of a value of the store.
pub(super) fn clone_live(py: Python<'_>, live: &dyn Any) -> Py<PyAny> {
    let live = live.downcast_ref::<LiveObject>();
    live.expect("this store holds nothing else")
        .object
        .clone_ref(py)
}

/// A value that a task reads, as an object.
pub(crate) fn read(py: Python<'_>, value: Value, keeper: &Arc<Keeper>) -> PyResult<Py<PyAny>> {
    match value {
        Value::Small(bytes) => recipe::decode_value(py, &bytes),
        Value::Stored(pinned) => object_of(py, pinned, keeper),
    }
}
