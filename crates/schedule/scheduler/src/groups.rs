//! How many tasks of each group are in each state. A group is a number that a task gets with its id.

use alloc::vec::Vec;

use treadle_types::TaskId;

use crate::story::State;

/// Tasks by state; of those that were forgotten, how many there have been.
pub type Counts = [u64; State::ALL.len()];

/// The groups of tasks. In a column of its own: a task has no room for it.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    of: Vec<u16>,
    counts: Vec<Counts>,
}

impl Groups {
    /// An id is handed out, for a task of a group. It does not count before it has [come](Groups::came).
    pub(crate) fn assign(&mut self, task: TaskId, group: u16) {
        let (task, least) = (task.index(), usize::from(group) + 1);
        if self.of.len() <= task {
            self.of.resize(task + 1, 0);
        }
        self.of[task] = group;
        if self.counts.len() < least {
            self.counts.resize(least, Counts::default());
        }
    }

    /// The group of a task.
    #[inline]
    pub(crate) fn of(&self, task: TaskId) -> u16 {
        self.of.get(task.index()).copied().unwrap_or(0)
    }

    #[inline]
    fn counts_of(&mut self, task: TaskId) -> Option<&mut Counts> {
        let group = self.of(task);
        self.counts.get_mut(usize::from(group))
    }

    /// A task is known from now on.
    #[inline]
    pub(crate) fn came(&mut self, task: TaskId, state: State) {
        if let Some(counts) = self.counts_of(task) {
            counts[state as usize] += 1;
        }
    }

    /// A task goes from one state to another.
    #[inline]
    pub(crate) fn moved(&mut self, task: TaskId, from: State, to: State) {
        if let Some(counts) = self.counts_of(task) {
            counts[from as usize] -= 1;
            counts[to as usize] += 1;
        }
    }

    /// By group.
    pub(crate) fn counts(&self) -> &[Counts] {
        &self.counts
    }
}
