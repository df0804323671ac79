//! A server's registration: its machine, and the task that carries the effects out.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Change, Handle, Node, Runtime, Session, Sessions, Shared, Withdrawing, close, entry_of, key_of,
    limited, next, seed,
};
use crate::entry::{Entry, Key, Load};
use crate::error::RegistryError;
use crate::machines::{Config, Registering, RegisteringEffect, RegisteringEvent, Rival, Standing};
use crate::registry::Registration;
use crate::wire::encode_entry;

struct State {
    machine: Registering,
    /// What the handle said, and the machine does not know yet.
    load: Option<Load>,
    is_leaving: bool,
    is_withdrawing: bool,
}

impl Withdrawing for State {
    type Standing = Standing;

    fn standing(&self) -> &Standing {
        self.machine.standing()
    }

    fn withdraw(&mut self) {
        self.is_withdrawing = true;
    }

    fn has_withdrawn(&self) -> bool {
        self.machine.is_over()
    }
}

pub(super) fn start<S: Session>(
    runtime: &Arc<Runtime>,
    location: String,
    entry: Entry,
    target: Arc<S::Target>,
    config: Config,
) -> Result<Box<dyn Registration>, RegistryError> {
    let entry = entry.checked()?;
    let key = entry.key();
    let shared = Shared::new(State {
        machine: Registering::new(entry, config.clone(), seed()),
        load: None,
        is_leaving: false,
        is_withdrawing: false,
    });
    let task = Task {
        shared: shared.clone(),
        location: location.clone(),
        key,
        target,
        answer: config.answer,
    };
    runtime.spawn(move || async move { task.run::<S>().await });
    Ok(Box::new(Handle {
        shared,
        location,
        _runtime: runtime.clone(),
    }))
}

struct Task<T> {
    shared: Arc<Shared<State>>,
    location: String,
    key: Key,
    target: Arc<T>,
    answer: Duration,
}

impl<T> Task<T> {
    async fn run<S: Session<Target = T>>(&self) {
        let mut sessions = Sessions::<S>::default();
        let mut events = vec![RegisteringEvent::Tick];
        loop {
            let mut effects = Vec::new();
            let mut deadline = None;
            for event in events.drain(..) {
                deadline = self.handle(event, &mut effects);
            }
            for effect in effects {
                events.extend(self.carry_out(effect, &mut sessions).await);
            }
            if self.shared.lock().machine.is_over() {
                return;
            }
            if events.is_empty() {
                events = tokio::select! {
                    change = next(&mut sessions.now) => self.noticed(change),
                    () = self.shared.sleep(deadline) => vec![RegisteringEvent::Tick],
                    () = self.shared.wake.notified() => self.said(),
                };
            }
            for event in &events {
                match event {
                    RegisteringEvent::Ended(_) => sessions.now = None,
                    RegisteringEvent::Failed(_) => sessions.put_aside(),
                    RegisteringEvent::Written => close(&mut sessions.before, self.answer).await,
                    _ => {}
                }
            }
        }
    }

    /// Has the machine handle something. Returns when it wants to be called.
    fn handle(
        &self,
        event: RegisteringEvent,
        effects: &mut Vec<RegisteringEffect>,
    ) -> Option<Duration> {
        let mut state = self.shared.lock();
        let before = state.machine.standing().clone();
        state.machine.handle(event, self.shared.now(), effects);
        let standing = state.machine.standing();
        if *standing != before {
            self.log(standing);
            self.shared.changed.notify_all();
        }
        state.machine.deadline()
    }

    /// Does what the machine wants, and returns what has happened.
    async fn carry_out<S: Session<Target = T>>(
        &self,
        effect: RegisteringEffect,
        sessions: &mut Sessions<S>,
    ) -> Option<RegisteringEvent> {
        use RegisteringEffect as Effect;
        let answer = match (effect, sessions.now.as_mut()) {
            (Effect::Close, _) => {
                sessions.close(self.answer).await;
                return None;
            }
            (Effect::Connect, _) => {
                sessions.put_aside();
                let connect = S::connect(&self.target);
                let connected = limited(&self.location, self.answer, connect).await;
                connected.map(|connected| {
                    sessions.now = Some(connected);
                    RegisteringEvent::Connected
                })
            }
            (Effect::ReadRivals, Some(session)) => {
                let rivals = session.rivals(&self.key.name);
                let rivals = limited(&self.location, self.answer, rivals).await;
                rivals.map(|nodes| {
                    RegisteringEvent::Rivals(nodes.into_iter().filter_map(rival).collect())
                })
            }
            (Effect::Write(entry), Some(session)) => {
                let write = session.write(&self.key, encode_entry(&entry));
                let written = limited(&self.location, self.answer, write).await;
                written.map(|()| RegisteringEvent::Written)
            }
            (Effect::RemoveRival(incarnation), Some(session)) => {
                let key = Key {
                    incarnation,
                    ..self.key.clone()
                };
                let remove = session.remove(&key);
                if let Err(failure) = limited(&self.location, self.answer, remove).await {
                    tracing::debug!("{key} stays for now: {}", failure.why);
                }
                return None;
            }
            (Effect::Remove, Some(session)) => {
                let remove = session.remove(&self.key);
                let removed = limited(&self.location, self.answer, remove).await;
                removed.map(|()| RegisteringEvent::Removed)
            }
            (_, None) => {
                let why = format!("{}: the session has ended", self.location);
                return Some(RegisteringEvent::Ended(why));
            }
        };
        Some(answer.unwrap_or_else(RegisteringEvent::Failed))
    }

    /// What the handle has said.
    fn said(&self) -> Vec<RegisteringEvent> {
        let mut state = self.shared.lock();
        let load = state.load.take().map(RegisteringEvent::Refresh);
        let leave = state.is_leaving.then_some(RegisteringEvent::Leaving);
        let withdraw = state.is_withdrawing.then_some(RegisteringEvent::Withdraw);
        load.into_iter().chain(leave).chain(withdraw).collect()
    }

    fn noticed(&self, change: Change) -> Vec<RegisteringEvent> {
        let said = |why| format!("{}: {why}", self.location);
        match change {
            Change::Interrupted(why) => vec![RegisteringEvent::Interrupted(said(why))],
            Change::Resumed => vec![RegisteringEvent::Resumed],
            Change::Ended(why) => vec![RegisteringEvent::Ended(said(why))],
            // It has not asked for these.
            Change::Put(_) | Change::Gone(_) => Vec::new(),
        }
    }

    /// What an operator should know.
    fn log(&self, standing: &Standing) {
        let (key, location) = (&self.key, &self.location);
        match standing {
            Standing::Trying => {}
            Standing::Away(failure) => {
                tracing::warn!(
                    "{key} cannot register now, and tries again: {}",
                    failure.why
                );
            }
            Standing::Registered => tracing::info!("{key} is registered in {location}"),
            Standing::Superseded(rival) => tracing::error!(
                "{location} has a later server with the name of {key}, at {}: this one is registered no more",
                rival.address
            ),
            Standing::Withdrawn => tracing::info!("{key} has left {location}"),
        }
    }
}

/// Another server with the name, as its node says; one that cannot be read has an incarnation in its path.
fn rival(node: Node) -> Option<Rival> {
    let incarnation = key_of(&node.path)?.incarnation;
    let address = entry_of(node).map(|entry| entry.address.clone());
    Some(Rival {
        incarnation,
        address: address.unwrap_or_default(),
    })
}

impl Registration for Handle<State> {
    fn refresh(&self, load: Load) {
        self.tell(|state| state.load = Some(load));
    }

    fn leave(&self) {
        self.tell(|state| state.is_leaving = true);
    }

    fn standing(&self) -> Standing {
        self.now()
    }

    fn wait(&self, known: &Standing, timeout: Duration) -> Standing {
        self.wait_for_another(known, timeout)
    }

    fn withdraw(&self, timeout: Duration) -> Result<(), RegistryError> {
        self.end(timeout)
    }
}
