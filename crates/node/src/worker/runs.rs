//! Tasks that are to run now, and the threads that wait for them.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use treadle_types::{ClientId, ObjectId};

use super::values::Held;

/// A task to run now.
#[derive(Debug)]
pub struct Task {
    /// The attempt, which names the value too.
    pub object: ObjectId,
    /// Whose definitions the recipe refers to.
    pub client: ClientId,
    /// What to run.
    pub recipe: Bytes,
    /// Whether the value must stay on this worker even if it is small.
    pub keep: bool,
    /// Whether the value is an actor.
    pub actor: bool,
    /// The values that the recipe refers to, in its order.
    pub(super) inputs: Vec<Input>,
}

impl Task {
    /// Whether inputs may have to be read back from disk.
    pub fn reads_store(&self) -> bool {
        let stored = |input: &Input| matches!(input, Input::Held(_, Held::Stored(_)));
        self.inputs.iter().any(stored)
    }
}

#[derive(Debug)]
pub(super) enum Input {
    /// It came with the task.
    Inline(Bytes),
    Held(ObjectId, Held),
    /// It should be here, and is not.
    Missing(ObjectId),
}

/// What threads wait for.
#[derive(Default)]
pub(super) struct Runs {
    pub(super) queue: VecDeque<Task>,
    /// Threads that wait for a task.
    pub(super) idle: usize,
    /// Threads that were asked for and have not come yet.
    pub(super) coming: usize,
    /// All threads that run tasks or wait for some.
    pub(super) threads: usize,
    /// Whether some that were asked for could not be had: they are asked for again.
    pub(super) refused: bool,
    /// Since when none has been free to run a task, though some were asked for.
    pub(super) alone: Option<Instant>,
    /// Tasks that gave their slots away: their threads may wait for others, which need threads, too.
    pub(super) seceded: HashSet<ObjectId>,
    /// Tasks that got back their slots.
    pub(super) resumed: HashSet<ObjectId>,
    /// Running tasks that were cancelled.
    pub(super) interrupted: HashSet<ObjectId>,
}

impl Runs {
    /// How many threads are missing for as many as `wanted`; they are then expected.
    pub(super) fn staff(&mut self, wanted: usize) -> usize {
        let missing = wanted.saturating_sub(self.threads + self.coming);
        self.coming += missing;
        missing
    }

    /// So many threads that were expected will not come. Returns since when none has been free
    /// to run a task, if so.
    pub(super) fn not_coming(&mut self, count: usize) -> Option<Instant> {
        self.coming = self.coming.saturating_sub(count);
        self.refused |= count > 0;
        let runs = self.threads + self.coming > self.seceded.len();
        if count > 0 && !runs {
            self.alone.get_or_insert_with(Instant::now);
        }
        self.alone
    }

    /// How many threads to ask for beyond one that takes `taking` tasks; they are then expected.
    pub(super) fn recruit(&mut self, taking: usize) -> usize {
        let staff = self.idle + self.coming + taking;
        let missing = self.queue.len().saturating_sub(staff);
        self.coming += missing;
        // Whoever asks says so if they cannot be had again.
        self.refused = false;
        if missing == 0 {
            self.alone = None;
        }
        missing
    }
}
