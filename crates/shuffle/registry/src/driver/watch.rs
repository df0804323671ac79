//! A master's watch: its machine, and the task that carries the effects out.

use std::sync::Arc;
use std::time::Duration;

use super::{Change, Runtime, Session, Shared, entry_of, key_of, limited, next, seed};
use crate::error::RegistryError;
use crate::machines::{
    Config, Failure, Inbox, List, News, Watching, WatchingEffect, WatchingEvent,
};
use crate::registry::Watch;

/// Reading the whole list may take so many times as long as other answers.
const READ: u32 = 10;

struct State {
    machine: Watching,
    inbox: Inbox,
}

struct Handle {
    shared: Arc<Shared<State>>,
    /// The thread lives as long as this.
    _runtime: Arc<Runtime>,
}

pub(super) fn start<S: Session>(
    runtime: &Arc<Runtime>,
    location: String,
    target: Arc<S::Target>,
    config: Config,
) -> Result<Box<dyn Watch>, RegistryError> {
    let shared = Shared::new(State {
        machine: Watching::new(config.clone(), seed()),
        inbox: Inbox::default(),
    });
    let task = Task {
        shared: shared.clone(),
        location,
        target,
        answer: config.answer,
    };
    runtime.spawn(move || async move {
        // The session is dropped with it.
        tokio::select! {
            () = task.run::<S>() => {}
            () = task.shared.wake.notified() => {}
        }
    });
    Ok(Box::new(Handle {
        shared,
        _runtime: runtime.clone(),
    }))
}

struct Task<T> {
    shared: Arc<Shared<State>>,
    location: String,
    target: Arc<T>,
    answer: Duration,
}

impl<T> Task<T> {
    async fn run<S: Session<Target = T>>(&self) {
        let mut session = None;
        let mut event = WatchingEvent::Tick;
        loop {
            let (asked, deadline) = self.handle(event);
            event = match asked {
                Some(WatchingEffect::Connect) => {
                    if let Some(session) = session.take() {
                        let _ = tokio::time::timeout(self.answer, S::close(session)).await;
                    }
                    let connect = S::connect(&self.target);
                    match limited(&self.location, self.answer, connect).await {
                        Ok(connected) => {
                            session = Some(connected);
                            WatchingEvent::Connected
                        }
                        Err(failure) => WatchingEvent::Failed(failure),
                    }
                }
                Some(WatchingEffect::Read) => self.read(&mut session).await,
                Some(WatchingEffect::Tell(_)) | None => {
                    tokio::select! {
                        change = next(&mut session) => self.noticed(change),
                        () = self.shared.sleep(deadline) => WatchingEvent::Tick,
                    }
                }
            };
            if matches!(event, WatchingEvent::Ended(_) | WatchingEvent::Failed(_)) {
                session = None;
            }
        }
    }

    /// Has the machine handle something. Returns what it asks for, and when it wants to be called.
    fn handle(&self, event: WatchingEvent) -> (Option<WatchingEffect>, Option<Duration>) {
        let mut effects = Vec::new();
        let mut state = self.shared.lock();
        state.machine.handle(event, self.shared.now(), &mut effects);
        let mut asked = None;
        for effect in effects {
            match effect {
                WatchingEffect::Tell(news) => {
                    log(&self.location, &news);
                    state.inbox.push(news);
                }
                effect => asked = Some(effect),
            }
        }
        if !state.inbox.is_empty() {
            self.shared.changed.notify_all();
        }
        (asked, state.machine.deadline())
    }

    async fn read<S: Session>(&self, session: &mut Option<S>) -> WatchingEvent {
        let Some(session) = session else {
            return WatchingEvent::Ended(format!("{}: the session has ended", self.location));
        };
        match limited(&self.location, self.answer * READ, session.read()).await {
            Ok(nodes) => {
                let mut entries = Vec::with_capacity(nodes.len());
                let mut unreadable = Vec::new();
                for node in nodes {
                    match entry_of(node) {
                        Ok(entry) => entries.push(entry),
                        Err(node) => unreadable.push(node),
                    }
                }
                WatchingEvent::Listed {
                    entries,
                    unreadable,
                }
            }
            Err(failure) => WatchingEvent::Failed(failure),
        }
    }

    fn noticed(&self, change: Change) -> WatchingEvent {
        let said = |why| format!("{}: {why}", self.location);
        match change {
            Change::Put(node) => match entry_of(node) {
                Ok(entry) => WatchingEvent::Put(entry),
                Err((node, why)) => WatchingEvent::Unreadable { node, why },
            },
            Change::Gone(path) => key_of(&path).map_or(WatchingEvent::Tick, WatchingEvent::Gone),
            Change::Interrupted(why) => WatchingEvent::Interrupted(said(why)),
            Change::Resumed => WatchingEvent::Resumed,
            Change::Ended(why) => WatchingEvent::Ended(said(why)),
        }
    }
}

/// What an operator should know.
fn log(location: &str, news: &News) {
    match news {
        News::HeldBack {
            key,
            departures,
            hold,
        } => tracing::warn!(
            "the shuffle server {key} has left {departures} times in a short time: it gets no partitions for {} s",
            hold.as_secs()
        ),
        News::Duplicate { listed, other } => tracing::warn!(
            "{location} has two shuffle servers with one name: {listed}, which is used, and {other}"
        ),
        News::Skipped { node, why } => tracing::warn!("{location}: {node} is skipped: {why}"),
        News::Stale(Failure { why, .. }) => {
            tracing::warn!("the last list of shuffle servers is used: {why}");
        }
        News::Current => tracing::info!("{location}: the list of shuffle servers is current"),
        News::Joined(_) | News::Updated(_) | News::Left(_) => {}
    }
}

impl Watch for Handle {
    fn list(&self) -> List {
        self.shared.lock().machine.list(self.shared.now())
    }

    fn next(&self, timeout: Duration) -> Vec<News> {
        let mut state = self
            .shared
            .wait_while(timeout, |state| state.inbox.is_empty());
        state.inbox.take()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.wake.notify_one();
    }
}
