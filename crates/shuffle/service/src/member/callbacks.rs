//! What the shuffle plane of a member calls in its process.

use std::fmt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;
use treadle_reactor::thread::lock;
use treadle_shuffle::{LinkId, ToMaster};
use treadle_shuffle_node::{Callbacks, Done, Waiter};
use treadle_shuffle_wire::encode_shuffled;

use super::Shared;
use crate::wire;

/// What the plane wants of the process.
pub(super) struct MemberCallbacks(pub(super) Weak<Shared>);

impl Callbacks for MemberCallbacks {
    fn tell(&self, _link: LinkId, message: ToMaster) {
        if let Some(shared) = self.0.upgrade() {
            lock(&shared.outbox).push(message);
        }
    }

    fn flush(&self) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let _sending = lock(&shared.sending);
        let messages = std::mem::take(&mut *lock(&shared.outbox));
        wire::send_all(
            &shared.peer,
            wire::TO_MASTER,
            messages.iter().map(encode_shuffled),
        );
    }

    fn wake(&self, called: &[Arc<Waiter>]) {
        for waiter in called {
            waiter.unpark();
        }
    }

    fn wait(&self, is_changed: &mut dyn FnMut() -> bool, most: Duration) {
        let until = Instant::now() + most;
        while !is_changed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        if let Some(shared) = self.0.upgrade() {
            warn!(target: treadle_log::SHUFFLE, "{}: {line}", shared.name);
        }
    }

    fn panicked(&self, reason: String) {
        if let Some(shared) = self.0.upgrade() {
            shared.end(&reason);
        }
    }

    fn is_traced(&self) -> bool {
        self.0
            .upgrade()
            .is_some_and(|shared| shared.observed.is_traced())
    }

    fn traced(&self, done: Done) {
        if let Some(shared) = self.0.upgrade() {
            shared.observed.traced(done);
        }
    }
}
