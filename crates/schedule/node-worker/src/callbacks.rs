//! What the broadcast plane and the shuffle plane want of a worker.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast::CastId;
use treadle_broadcast_node::{Callbacks, Had};
use treadle_messages::FromWorker;
use treadle_net::Wait;
use treadle_reactor::thread::lock;
use treadle_shuffle::{LinkId, ToMaster};
use treadle_shuffle_node as shuffle;
use treadle_types::ClientId;

use super::inner::Inner;
use super::{Embedder, tracing};

/// What the broadcast plane wants of a worker.
pub(super) struct PlaneCallbacks(pub(super) Weak<Inner>);

impl PlaneCallbacks {
    fn with_embedder(&self, act: impl FnOnce(&dyn Embedder)) {
        if let Some(inner) = self.0.upgrade()
            && let Some(embedder) = inner.embedder.get()
        {
            act(&**embedder);
        }
    }
}

impl Callbacks for PlaneCallbacks {
    fn ask(&self, client: ClientId) {
        if let Some(inner) = self.0.upgrade() {
            inner.say(FromWorker::AskSettled(client));
        }
    }

    fn cast_came(&self) {
        self.with_embedder(Embedder::cast_came);
    }

    fn keep(&self, cast: CastId, payload: Bytes) {
        if let Some(inner) = self.0.upgrade() {
            inner.keep_cast(cast, payload);
        }
    }

    fn call(&self, cast: CastId, payload: Bytes) {
        if let Some(inner) = self.0.upgrade() {
            inner.call_cast(cast, &payload);
        }
    }

    fn had(&self, had: &Had) {
        if let Some(inner) = self.0.upgrade() {
            inner.tracing.had(had);
        }
    }

    fn interrupt(&self, client: ClientId, number: u64) {
        self.with_embedder(|embedder| embedder.interrupt_cast(client, number));
    }

    fn panicked(&self, reason: String) {
        if let Some(inner) = self.0.upgrade() {
            inner.fail(&reason.to_string());
        }
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        if let Some(inner) = self.0.upgrade() {
            inner.log(line);
        }
    }
}

/// What the shuffle plane wants of a worker.
pub(super) struct ShuffleCallbacks(pub(super) Weak<Inner>);

impl shuffle::Callbacks for ShuffleCallbacks {
    fn tell(&self, _link: LinkId, message: ToMaster) {
        if let Some(inner) = self.0.upgrade() {
            lock(&inner.machine)
                .outbox
                .push(FromWorker::ToMaster(message));
        }
    }

    fn flush(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.flush();
        }
    }

    /// Threads of tasks wait together for what the lane brings.
    fn wake(&self, _called: &[Arc<shuffle::Waiter>]) {
        if let Some(inner) = self.0.upgrade() {
            inner.control_lane.notify();
        }
    }

    /// Hears the scheduler meanwhile, as threads without tasks do.
    fn wait(&self, is_changed: &mut dyn FnMut() -> bool, most: Duration) {
        let Some(inner) = self.0.upgrade() else {
            return;
        };
        let mut done = || is_changed() || inner.is_over() || inner.has_news();
        // At its end things are looked at, whyever it ended.
        let _ = inner.control_lane.wait(
            &mut done,
            &mut Wait {
                deadline: Some(Instant::now() + most),
                interrupted: None,
            },
        );
        if inner.has_news() {
            inner.drain(0);
        }
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        if let Some(inner) = self.0.upgrade() {
            inner.log(line);
        }
    }

    fn panicked(&self, reason: String) {
        if let Some(inner) = self.0.upgrade() {
            inner.fail(&reason);
        }
    }

    fn is_traced(&self) -> bool {
        let inner = self.0.upgrade();
        inner.is_some_and(|inner| inner.tracing.is_wanted())
    }

    fn traced(&self, done: shuffle::Done) {
        if let Some(inner) = self.0.upgrade() {
            inner.tracing.add(tracing::Event::Shuffled(done, None));
        }
    }
}
