//! The claim of a master: its machine, and the task that carries the effects out. And the list of masters.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::{
    Change, Handle, Runtime, Session, Sessions, Shared, Withdrawing, close, limited, next, seed,
};
use crate::error::RegistryError;
use crate::machines::{ClaimStanding, Claiming, ClaimingEffect, ClaimingEvent, Config, Failure};
use crate::master::Master;
use crate::registry::Claim;
use crate::wire::{decode_master, encode_master};

struct State {
    machine: Claiming,
    is_withdrawing: bool,
    /// The session has ended, and the claim with it.
    is_closed: bool,
}

impl Withdrawing for State {
    type Standing = ClaimStanding;

    fn standing(&self) -> &ClaimStanding {
        self.machine.standing()
    }

    fn withdraw(&mut self) {
        self.is_withdrawing = true;
    }

    fn has_withdrawn(&self) -> bool {
        self.is_closed
    }
}

pub(super) fn start<S: Session>(
    runtime: &Arc<Runtime>,
    location: String,
    master: Master,
    target: Arc<S::Target>,
    config: Config,
) -> Result<Box<dyn Claim>, RegistryError> {
    let master = master.checked()?;
    let answer = config.answer;
    let shared = Shared::new(State {
        machine: Claiming::new(config, seed()),
        is_withdrawing: false,
        is_closed: false,
    });
    let task = Task {
        shared: shared.clone(),
        location: location.clone(),
        master,
        target,
        answer,
    };
    runtime.spawn(move || async move { task.run::<S>().await });
    Ok(Box::new(Handle {
        shared,
        location,
        _runtime: runtime.clone(),
    }))
}

/// The masters that are there now.
pub(super) fn masters<S: Session>(
    runtime: &Arc<Runtime>,
    location: &str,
    target: Arc<S::Target>,
    timeout: Duration,
) -> Result<Vec<Master>, RegistryError> {
    let (tell, told) = mpsc::channel();
    let at = location.to_owned();
    runtime.spawn(move || async move {
        let read = async {
            let mut session = S::connect(&target).await?;
            let nodes = session.masters().await;
            session.close().await;
            nodes
        };
        // Nobody waits for it if it is late.
        let _ = tell.send(limited(&at, timeout, read).await);
    });
    let unanswered = |why| RegistryError::Unanswered {
        location: location.to_owned(),
        why,
    };
    // The task ends within its limit: this one is for a thread that has none left to run it.
    let nodes = match told.recv_timeout(timeout.saturating_mul(2)) {
        Ok(nodes) => nodes.map_err(|failure| unanswered(failure.why))?,
        Err(error) => return Err(unanswered(error.to_string())),
    };
    let masters = nodes.into_iter().filter_map(|node| {
        let read = node.bytes.and_then(|bytes| {
            let master = decode_master(&bytes).map_err(|error| error.to_string())?;
            match master.path() == node.path {
                true => Ok(master),
                false => Err("it is the master of another application".to_owned()),
            }
        });
        read.inspect_err(|why| tracing::warn!("{location}: {} is skipped: {why}", node.path))
            .ok()
    });
    Ok(masters.collect())
}

struct Task<T> {
    shared: Arc<Shared<State>>,
    location: String,
    master: Master,
    target: Arc<T>,
    answer: Duration,
}

impl<T> Task<T> {
    async fn run<S: Session<Target = T>>(&self) {
        let mut sessions = Sessions::<S>::default();
        let mut event = ClaimingEvent::Tick;
        loop {
            let (asked, deadline) = self.handle(event);
            event = match asked {
                Some(ClaimingEffect::Connect) => {
                    sessions.put_aside();
                    let connect = S::connect(&self.target);
                    match limited(&self.location, self.answer, connect).await {
                        Ok(connected) => {
                            sessions.now = Some(connected);
                            ClaimingEvent::Connected
                        }
                        Err(failure) => ClaimingEvent::Failed(failure),
                    }
                }
                Some(ClaimingEffect::Claim) => self.claim(&mut sessions).await,
                Some(ClaimingEffect::Close) => {
                    sessions.close(self.answer).await;
                    self.shared.lock().is_closed = true;
                    self.shared.changed.notify_all();
                    return;
                }
                None => tokio::select! {
                    change = next(&mut sessions.now) => self.noticed(change),
                    () = self.shared.sleep(deadline) => ClaimingEvent::Tick,
                    () = self.shared.wake.notified() => self.said(),
                },
            };
            match event {
                ClaimingEvent::Ended(_) => sessions.now = None,
                ClaimingEvent::Failed(_) => sessions.put_aside(),
                ClaimingEvent::Claimed | ClaimingEvent::Taken(_) => {
                    close(&mut sessions.before, self.answer).await;
                }
                _ => {}
            }
        }
    }

    /// Has the machine handle something. Returns what it asks for, and when it wants to be called.
    fn handle(&self, event: ClaimingEvent) -> (Option<ClaimingEffect>, Option<Duration>) {
        let mut state = self.shared.lock();
        let before = state.machine.standing().clone();
        let asked = state.machine.handle(event, self.shared.now());
        let standing = state.machine.standing();
        if *standing != before {
            self.log(standing);
            self.shared.changed.notify_all();
        }
        (asked, state.machine.deadline())
    }

    async fn claim<S: Session<Target = T>>(&self, sessions: &mut Sessions<S>) -> ClaimingEvent {
        let Some(session) = &mut sessions.now else {
            return ClaimingEvent::Ended(format!("{}: the session has ended", self.location));
        };
        let (path, bytes) = (self.master.path(), encode_master(&self.master));
        let claim = session.claim(&path, &bytes);
        match limited(&self.location, self.answer, claim).await {
            Ok(None) => ClaimingEvent::Claimed,
            Ok(Some(other)) => match decode_master(&other) {
                Ok(other) => ClaimingEvent::Taken(other),
                Err(error) => ClaimingEvent::Failed(Failure {
                    why: format!("{}: {path} is no master: {error}", self.location),
                    is_refusal: true,
                }),
            },
            Err(failure) => ClaimingEvent::Failed(failure),
        }
    }

    fn noticed(&self, change: Change) -> ClaimingEvent {
        let said = |why| format!("{}: {why}", self.location);
        match change {
            Change::Interrupted(why) => ClaimingEvent::Interrupted(said(why)),
            Change::Resumed => ClaimingEvent::Resumed,
            Change::Ended(why) => ClaimingEvent::Ended(said(why)),
            // It has not asked for these.
            Change::Put(_) | Change::Gone(_) => ClaimingEvent::Tick,
        }
    }

    /// What the handle has said.
    fn said(&self) -> ClaimingEvent {
        match self.shared.lock().is_withdrawing {
            true => ClaimingEvent::Withdraw,
            false => ClaimingEvent::Tick,
        }
    }

    /// What an operator should know.
    fn log(&self, standing: &ClaimStanding) {
        let (application, location) = (self.master.application, &self.location);
        match standing {
            ClaimStanding::Away(failure) => tracing::warn!(
                "the master of application {application} cannot say so now, and tries again: {}",
                failure.why
            ),
            ClaimStanding::Elsewhere(other) => tracing::warn!(
                "{location} has another master of application {application}, at {}",
                other.address
            ),
            ClaimStanding::Trying | ClaimStanding::Held | ClaimStanding::Withdrawn => {}
        }
    }
}

impl Claim for Handle<State> {
    fn standing(&self) -> ClaimStanding {
        self.now()
    }

    fn wait(&self, known: &ClaimStanding, timeout: Duration) -> ClaimStanding {
        self.wait_for_another(known, timeout)
    }

    fn withdraw(&self, timeout: Duration) -> Result<(), RegistryError> {
        self.end(timeout)
    }
}
