//! What an embedder that watches is told of the tasks that are here.
//!
//! Nothing is looked at while nobody watches. Values that come from other workers are not told of:
//! they have no names here.

use std::collections::HashMap;

use bytes::Bytes;
use treadle_types::ObjectId;
use treadle_worker::{Outcome, Status, Worker};

use super::Embedder;

/// The tasks of which the embedder has heard, until it has heard that they are gone.
#[derive(Default)]
pub(super) struct Watched {
    /// Those that have no slot yet, and the state that was told last.
    early: HashMap<ObjectId, (Bytes, &'static str)>,
    /// Those whose values are here.
    stored: HashMap<ObjectId, Bytes>,
}

impl Watched {
    /// Nobody watches any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// A task was sent here.
    pub(super) fn assigned(&mut self, object: ObjectId, recipe: &Bytes) {
        self.early.insert(object, (recipe.clone(), RELEASED));
    }

    /// Tells how the tasks that have no slot yet went on.
    pub(super) fn look(&mut self, core: &Worker, embedder: &dyn Embedder) {
        self.early.retain(|&object, (recipe, told)| {
            let status = core.status(object);
            if *told == RELEASED {
                embedder.went(recipe, RELEASED, WAITING);
                *told = WAITING;
            }
            match status {
                Some(Status::Waiting) => true,
                Some(Status::Ready) if *told == READY => true,
                None => {
                    gone(recipe, told, embedder);
                    false
                }
                // The embedder tells by itself that it begins.
                Some(status) => {
                    if *told == WAITING {
                        embedder.went(recipe, WAITING, READY);
                        *told = READY;
                    }
                    status == Status::Ready
                }
            }
        });
    }

    /// A task has run, which the embedder knows.
    pub(super) fn ended(
        &mut self,
        object: ObjectId,
        recipe: &Bytes,
        outcome: &Outcome,
        embedder: &dyn Embedder,
    ) {
        match outcome {
            Outcome::Returned(value) if value.kept => {
                self.stored.insert(object, recipe.clone());
            }
            Outcome::Returned(_) => gone(recipe, "memory", embedder),
            Outcome::GivenBack => gone(recipe, "rescheduled", embedder),
            Outcome::Raised(_) | Outcome::Missing(_) => gone(recipe, "error", embedder),
        }
    }

    /// A value is not kept here any more.
    pub(super) fn dropped(&mut self, object: ObjectId, embedder: &dyn Embedder) {
        if let Some(recipe) = self.stored.remove(&object) {
            gone(&recipe, "memory", embedder);
        }
    }
}

const RELEASED: &str = "released";
const WAITING: &str = "waiting";
const READY: &str = "ready";

fn gone(recipe: &Bytes, from: &'static str, embedder: &dyn Embedder) {
    embedder.went(recipe, from, RELEASED);
    embedder.went(recipe, RELEASED, "forgotten");
}
