//! What the client says to many engines at once, over the broadcast plane.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_net::{Options, Signal, Wait};
use treadle_types::{Cause, ClientId, WorkerId};

use super::error::ClientError;
use super::role::Role;
use super::{Client, Event};
use crate::broadcast::{Arrival, CastError, Plane, Surroundings, Traffic, host_name, host_number};
use crate::lock;
use crate::message::{FromClient, Member};

/// The client's end of the plane; nothing, before it is first used.
#[derive(Debug)]
pub(super) struct Casts {
    options: Options,
    plane: OnceLock<Plane>,
    /// Nothing: the scheduler has not said.
    members: Mutex<Option<BTreeMap<WorkerId, Member>>>,
    waker: Waker,
}

/// Has the application come for what has arrived.
#[derive(Clone, Debug)]
struct Waker {
    arrived: Arc<AtomicBool>,
    role: Arc<Role>,
    signal: Signal,
    notifier: Arc<OwnedFd>,
}

impl Surroundings for Waker {
    fn arrived(&self) {
        if self.arrived.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.role.is_taken() {
            // Whoever has it looks once more when it has given it back.
            self.signal.set();
        } else {
            let _ = rustix::io::write(&*self.notifier, &1u64.to_ne_bytes());
        }
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        eprintln!("treadle client: {line}");
    }
}

impl Casts {
    pub(super) fn new(
        options: Options,
        role: Arc<Role>,
        signal: Signal,
        notifier: Arc<OwnedFd>,
    ) -> Self {
        Self {
            options: Options {
                lane: None,
                ..options
            },
            plane: OnceLock::new(),
            members: Mutex::new(None),
            waker: Waker {
                arrived: Arc::default(),
                role,
                signal,
                notifier,
            },
        }
    }

    /// Whether there is something for the application.
    pub(super) fn has_arrived(&self) -> bool {
        self.waker.arrived.load(Ordering::SeqCst)
    }

    /// What there is for the application.
    pub(super) fn take<R>(&self) -> Option<Event<R>> {
        if !self.has_arrived() {
            return None;
        }
        // First: what arrives from here on says so again.
        self.waker.arrived.store(false, Ordering::SeqCst);
        let arrivals = self.plane.get().map_or_else(Vec::new, Plane::take_arrivals);
        (!arrivals.is_empty()).then_some(Event::Arrived(arrivals))
    }

    /// Workers joined.
    pub(super) fn joined(&self, joined: Vec<Member>) {
        let engine = |member: &Member| treadle_broadcast::Member {
            worker: member.worker,
            host: host_number(&member.host),
            address: Arc::from(&*member.address),
        };
        if let Some(plane) = self.plane.get() {
            plane.introduce(joined.iter().map(engine).collect());
        }
        let mut members = lock(&self.members);
        let members = members.get_or_insert_default();
        members.extend(joined.into_iter().map(|member| (member.worker, member)));
    }

    /// A worker left.
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
        let mut is_first = false;
        casts.plane.get_or_init(|| {
            is_first = true;
            Plane::of_client(
                ClientId(self.id),
                &host_name(),
                casts.options.clone(),
                Box::new(casts.waker.clone()),
            )
        });
        if is_first {
            self.post([FromClient::Members]);
        }
        let members = lock(&casts.members);
        Ok(members.as_ref().map(|all| all.values().cloned().collect()))
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
        wait: &mut Wait<'_>,
    ) -> Result<u64, CastError> {
        let plane = self.casts.plane.get();
        let plane = plane.ok_or_else(|| {
            CastError::Refused("the client has not asked who the workers are".to_owned())
        })?;
        let engines: Runs = engines.iter().map(|&engine| u64::from(engine)).collect();
        plane.cast(&engines, frames, wait)
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

/// Arrivals, for [`Event::Arrived`].
pub(super) type Arrivals = Vec<Arrival>;
