//! The workers of this process: what cannot be serialised passes between them, and to the clients of
//! this process, as it is.

use super::live::{LiveObject, clone_live};
use super::shared::WorkerShared;
use bytes::Bytes;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use treadle_interpreter::lock;
use treadle_net::ClusterId;
use treadle_node_worker::Value;
use treadle_store::Live;
use treadle_types::{ObjectId, WorkerId};

static WORKERS: Mutex<Vec<Weak<WorkerShared>>> = Mutex::new(Vec::new());
/// What clients pass to workers, by name.
static PASSED: Mutex<BTreeMap<u64, Arc<LiveObject>>> = Mutex::new(BTreeMap::new());
static NAMES: AtomicU64 = AtomicU64::new(0);

/// A worker is of this process as long as it lives.
pub(super) fn add(shared: &Arc<WorkerShared>) {
    let mut workers = lock(&WORKERS);
    workers.retain(|worker| worker.strong_count() > 0);
    workers.push(Arc::downgrade(shared));
}

fn workers_here() -> Vec<Arc<WorkerShared>> {
    lock(&WORKERS).iter().filter_map(Weak::upgrade).collect()
}

fn is_of(shared: &WorkerShared, cluster: Option<ClusterId>) -> bool {
    !shared.is_parents() && shared.node.cluster() == cluster
}

/// The live value of a worker of a cluster, if that worker is of this process and has it so.
pub(super) fn live_at(
    cluster: Option<ClusterId>,
    worker: WorkerId,
    object: ObjectId,
) -> Option<Arc<dyn Live>> {
    let is_it = |shared: &Arc<WorkerShared>| shared.node.id() == worker && is_of(shared, cluster);
    let shared = workers_here().into_iter().find(is_it)?;
    match shared.node.value(object).ok()? {
        Value::Stored(pinned) => pinned.live().cloned(),
        Value::Small(_) => None,
    }
}

/// The same, as an object.
pub(crate) fn object_at(
    py: Python<'_>,
    cluster: Option<ClusterId>,
    worker: WorkerId,
    object: u64,
) -> Option<Py<PyAny>> {
    let live = py.detach(|| live_at(cluster, worker, ObjectId::from_u64(object)))?;
    let object = clone_live(py, live.as_any());
    py.detach(|| drop(live));
    Some(object)
}

/// The name of an object that a client passes to a worker, as long as that is to be sent.
struct Name([u8; 8]);

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let passed = lock(&PASSED).remove(&u64::from_le_bytes(self.0));
        drop(passed);
    }
}

/// Has a worker of a cluster and of this process get an object as it is: the frame to bring to it, and
/// its address. Of `workers`, which are names or addresses, if there are some. Nothing: no worker of
/// these is of this process.
pub(crate) fn pass(
    value: &Bound<'_, PyAny>,
    nbytes: u64,
    cluster: Option<ClusterId>,
    workers: &[String],
) -> PyResult<Option<(Bytes, String)>> {
    let is_meant = |shared: &Arc<WorkerShared>| {
        let (name, address) = (&shared.node.options().name, shared.node.address());
        let is_named = workers.iter().any(|it| it == name || it == address);
        is_of(shared, cluster) && shared.node.ended().is_none() && (workers.is_empty() || is_named)
    };
    let Some(shared) = workers_here().into_iter().find(is_meant) else {
        return Ok(None);
    };
    let live = LiveObject::computed(value.clone(), nbytes, Bytes::new(), &shared.keeper)?;
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    lock(&PASSED).insert(name, live);
    let frame = Bytes::from_owner(Name(name.to_le_bytes()));
    Ok(Some((frame, shared.node.address().to_owned())))
}

/// What a client of this process passes under a name.
pub(super) fn passed(name: &[u8]) -> Option<Arc<dyn Live>> {
    let name = u64::from_le_bytes(name.try_into().ok()?);
    let live = lock(&PASSED).get(&name).cloned();
    live.map(|live| live as Arc<dyn Live>)
}
