//! Tasks that are to run now, and the threads that wait for them.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_types::{ClientId, ObjectId};

use super::values::Held;

/// A thread that has ended a task looks for the next by then, as a rule.
const LATE: Duration = Duration::from_millis(50);

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

    /// The values that it reads, in the order of its recipe.
    pub fn reads(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.inputs.iter().map(|input| match input {
            Input::Inline(object, _) | Input::Held(object, _) | Input::Missing(object) => *object,
        })
    }
}

#[derive(Debug)]
pub(super) enum Input {
    /// It came with the task.
    Inline(ObjectId, Bytes),
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
    /// How many tasks threads have taken.
    pub(super) taken: u64,
    /// Tasks are left to threads that are between two tasks: how many had been taken, and since when.
    pub(super) left: Option<(u64, Instant)>,
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

    /// How many threads to ask for beyond one that takes `taking` tasks; they are then expected. None
    /// while each of the `slots` has one: it has ended a task and is about to look for the next.
    pub(super) fn recruit(&mut self, taking: usize, slots: usize) -> usize {
        let staff = self.idle + self.coming + taking;
        let missing = self.queue.len().saturating_sub(staff);
        let own = (self.threads + self.coming).saturating_sub(self.seceded.len());
        if missing > 0 && own >= slots {
            self.left.get_or_insert((self.taken, Instant::now()));
            return 0;
        }
        self.ask(missing)
    }

    /// The same at a look of the control thread: for those that could not be had, and where a thread
    /// that was to take a task has not come for so long, whatever it does.
    pub(super) fn recruit_late(&mut self) -> usize {
        let missing = self.queue.len().saturating_sub(self.idle + self.coming);
        let is_late = match self.left {
            _ if missing == 0 => {
                self.left = None;
                false
            }
            Some((taken, since)) if taken == self.taken => since.elapsed() > LATE,
            Some(_) => {
                self.left = Some((self.taken, Instant::now()));
                false
            }
            None => false,
        };
        if !is_late && !self.refused {
            return 0;
        }
        self.left = None;
        self.ask(missing)
    }

    fn ask(&mut self, missing: usize) -> usize {
        self.coming += missing;
        // Whoever asks says so if they cannot be had again.
        self.refused = false;
        if missing == 0 {
            self.alone = None;
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::{Attempt, TaskId};

    use super::*;

    fn task(number: u32) -> Task {
        Task {
            object: ObjectId::new(TaskId(number), Attempt(1)),
            client: ClientId(0),
            recipe: Bytes::new(),
            keep: false,
            actor: false,
            inputs: Vec::new(),
        }
    }

    /// One slot, one thread, which is between two tasks.
    fn between() -> Runs {
        let mut runs = Runs {
            threads: 1,
            ..Runs::default()
        };
        runs.queue.push_back(task(1));
        assert_eq!(runs.recruit(0, 1), 0);
        runs
    }

    #[test]
    fn a_thread_that_is_between_two_tasks_takes_the_next() {
        let mut runs = between();
        for number in 2..10 {
            runs.queue.pop_front();
            runs.taken += 1;
            runs.queue.push_back(task(number));
            assert_eq!(runs.recruit_late(), 0);
        }
        runs.queue.clear();
        assert_eq!(runs.recruit_late(), 0);
        assert_eq!(runs.left, None);
    }

    #[test]
    fn a_task_that_nobody_takes_gets_a_thread() {
        let mut runs = between();
        let (taken, since) = runs.left.unwrap();
        runs.left = Some((taken, since.checked_sub(2 * LATE).unwrap()));
        assert_eq!(runs.recruit_late(), 1);
        assert_eq!(runs.recruit_late(), 0);
    }

    #[test]
    fn a_task_gets_a_thread_at_once_where_another_gave_its_slot_away() {
        let mut runs = Runs {
            threads: 1,
            ..Runs::default()
        };
        runs.seceded.insert(task(1).object);
        runs.queue.push_back(task(2));
        assert_eq!(runs.recruit(0, 1), 1);
    }
}
