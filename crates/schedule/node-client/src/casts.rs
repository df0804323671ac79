//! What the client says to many engines at once, over the broadcast plane.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_broadcast_node::values::Packed;
use treadle_broadcast_node::{
    Callbacks, CastError, Plane, Purpose, Traffic, Tree, host_name, host_number,
};
use treadle_messages::{FromClient, Member};
use treadle_net::{Options, Signal, Wait, Waker};
use treadle_reactor::leader::Leadership;
use treadle_reactor::thread::lock;
use treadle_types::{Cause, ClientId, WorkerId};

use super::error::ClientError;
use super::spread::{Load, Spread, Spreading};
use super::{Arrivals, Client, Incoming};

/// The client's end of the plane; nothing, before it is first used.
#[derive(Debug)]
pub(super) struct Casts {
    client: ClientId,
    options: Options,
    plane: OnceLock<Plane>,
    /// Nothing: the scheduler has not said.
    members: Mutex<Option<BTreeMap<WorkerId, Member>>>,
    asked: AtomicBool,
    spreading: Spreading,
    callbacks: CastCallbacks,
}

/// Has the application come for what has arrived.
#[derive(Clone, Debug)]
pub(super) struct CastCallbacks {
    arrived: Arc<AtomicBool>,
    /// Why a thread of it has ended, if it has panicked.
    panicked: Arc<OnceLock<String>>,
    leadership: Arc<Leadership>,
    signal: Signal,
    waker: Waker,
}

impl Callbacks for CastCallbacks {
    fn arrived(&self) {
        if self.arrived.swap(true, Ordering::SeqCst) {
            return;
        }
        match self.leadership.leader() {
            // It looks once more when it has stopped to lead.
            Some(_) => self.signal.set(),
            None => self.waker.wake(),
        }
    }

    fn panicked(&self, reason: String) {
        let _ = self.panicked.set(reason);
        self.arrived();
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        tracing::warn!(target: treadle_log::CLIENT, "{line}");
    }
}

impl Casts {
    pub(super) fn new(
        client: ClientId,
        options: Options,
        leadership: Arc<Leadership>,
        signal: Signal,
        waker: Waker,
    ) -> Self {
        Self {
            client,
            options: Options {
                lane: None,
                ..options
            },
            plane: OnceLock::new(),
            members: Mutex::new(None),
            asked: AtomicBool::new(false),
            spreading: Spreading::default(),
            callbacks: CastCallbacks {
                arrived: Arc::default(),
                panicked: Arc::default(),
                leadership,
                signal,
                waker,
            },
        }
    }

    /// Whether there is something for the application.
    pub(super) fn has_arrived(&self) -> bool {
        self.callbacks.arrived.load(Ordering::SeqCst)
    }

    fn plane(&self) -> &Plane {
        let callbacks = || Box::new(self.callbacks.clone());
        let make =
            || Plane::of_client(self.client, &host_name(), self.options.clone(), callbacks());
        self.plane.get_or_init(make)
    }

    /// What there is for the application, and what became of values.
    fn take(&self) -> (Arrivals, Vec<Spread>) {
        // First: what arrives from here on says so again.
        self.callbacks.arrived.store(false, Ordering::SeqCst);
        let mut arrivals = self.plane.get().map_or_else(Vec::new, Plane::take_arrivals);
        arrivals.retain(|arrival| match arrival.purpose {
            Purpose::Keep(number) => {
                self.spreading.arrived(number, arrival);
                false
            }
            Purpose::Run | Purpose::Call(_) => true,
        });
        (arrivals, self.spreading.take())
    }

    /// Sends a value to workers.
    pub(super) fn spread(&self, workers: Runs, load: treadle_client::Load) {
        let value = Packed {
            object: load.object,
            kind: load.kind,
            frames: load.frames,
        };
        let load = Load {
            name: load.name,
            value,
            workers,
        };
        self.spreading.push(load, self.plane(), &self.callbacks);
    }

    /// Workers joined.
    pub(super) fn joined(&self, joined: Vec<Member>) {
        let engine = |member: &Member| treadle_broadcast::Member {
            worker: member.worker,
            host: host_number(&member.host),
            address: Arc::from(&*member.address),
        };
        self.plane().introduce(joined.iter().map(engine).collect());
        let mut members = lock(&self.members);
        let members = members.get_or_insert_default();
        members.extend(joined.into_iter().map(|member| (member.worker, member)));
    }

    pub(super) fn left(&self, worker: WorkerId, cause: Cause) {
        if let Some(members) = &mut *lock(&self.members) {
            members.remove(&worker);
        }
        if let Some(plane) = self.plane.get() {
            plane.gone(worker, cause);
        }
    }

    pub(super) fn settled(&self) -> treadle_broadcast::Settled {
        self.plane.get().map(Plane::settled).unwrap_or_default()
    }

    pub(super) fn end(&self) {
        if let Some(plane) = self.plane.get() {
            plane.end();
        }
        self.spreading.close();
    }
}

impl<T> Client<T> {
    /// The workers, once the scheduler has said who they are; it is asked here the first time. Who
    /// waits for the answer processes what comes meanwhile.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn members(&self) -> Result<Option<Vec<Member>>, ClientError> {
        self.check()?;
        let casts = &self.casts;
        if !casts.asked.swap(true, Ordering::Relaxed) {
            self.post(FromClient::Members);
        }
        let members = lock(&casts.members);
        Ok(members.as_ref().map(|all| all.values().cloned().collect()))
    }

    /// Takes in what has arrived.
    pub(super) fn take_arrivals(&self) {
        if !self.casts.has_arrived() {
            return;
        }
        if let Some(reason) = self.casts.callbacks.panicked.get() {
            self.fail(reason);
        }
        let (arrivals, spreads) = self.casts.take();
        if !spreads.is_empty() {
            let events = spreads.into_iter().map(|spread| Incoming::Spread {
                name: spread.name,
                taken: spread.taken,
                reason: spread.reason,
            });
            self.handle(&mut lock(&self.engine), events);
        }
        if !arrivals.is_empty() {
            let now = self.start.elapsed();
            self.act(|core, effects| core.handle(Incoming::Arrived(arrivals), now, effects));
        }
    }

    /// Sends frames to engines, each of which is a worker that the client [knows](Client::members);
    /// the cast's number. Waits while too much of what was cast is not settled.
    ///
    /// # Errors
    /// [`CastError`].
    pub fn cast(
        &self,
        engines: &[u32],
        frames: &[Bytes],
        tree: Tree,
        wait: &mut Wait<'_>,
    ) -> Result<u64, CastError> {
        self.cast_for((Purpose::Run, tree), engines, frames, wait)
    }

    /// Asks the Python sides of workers, which the client knows, at once. The answers of all arrive as
    /// casts do, with this number: frames that are a byte, which is 1 for an error, and an encoded
    /// value. Waits as [`Client::cast`].
    ///
    /// # Errors
    /// [`CastError`].
    pub fn cast_call(
        &self,
        number: u64,
        workers: &[u32],
        operation: &str,
        argument: Bytes,
        wait: &mut Wait<'_>,
    ) -> Result<u64, CastError> {
        let operation = Bytes::copy_from_slice(operation.as_bytes());
        let frames = [operation, argument];
        self.cast_for(
            (Purpose::Call(number), Tree::default()),
            workers,
            &frames,
            wait,
        )
    }

    fn cast_for(
        &self,
        how: (Purpose, Tree),
        workers: &[u32],
        frames: &[Bytes],
        wait: &mut Wait<'_>,
    ) -> Result<u64, CastError> {
        let plane = self.casts.plane.get();
        let plane = plane.ok_or_else(|| {
            CastError::Refused("the client has not asked who the workers are".to_owned())
        })?;
        let workers: Runs = workers.iter().map(|&worker| u64::from(worker)).collect();
        plane.cast(&workers, how, frames, wait)
    }

    /// Engines that have not begun these casts are not to; the others are interrupted, if wanted.
    pub fn abort_casts(&self, numbers: &[u64], interrupt: bool) {
        if let Some(plane) = self.casts.plane.get() {
            plane.abort(numbers, interrupt);
        }
    }

    /// What the client has sent to engines so far.
    pub fn cast_traffic(&self) -> Traffic {
        let plane = self.casts.plane.get();
        plane.map(Plane::traffic).unwrap_or_default()
    }
}
