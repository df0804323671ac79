//! The tasks of shuffles, as a host engine knows them: which attempts run where, and which counts.

use std::collections::{BTreeMap, BTreeSet};

use treadle_shuffle::{Generation, Receipt, ServerId, ShuffleId};

use crate::data::{Expected, Source};
use crate::plan::Job as JobPlan;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// Of a map.
    Transfer(ShuffleId, u32),
    Barrier(ShuffleId),
    /// Of a job: it reads a partition of each of its shuffles.
    Unpack(usize, u32),
}

/// Rows by map, in the order in which they were returned.
pub(super) type Rows = Vec<(u32, Vec<u64>)>;

/// What a task returned.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Receipt(Receipt),
    Generation(Generation),
    Rows(Vec<Rows>),
}

/// What is to be run.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Transfer {
        again: bool,
        fails: bool,
        /// It counts, whatever was committed.
        replaces: bool,
    },
    Barrier {
        maps: u32,
        receipts: Vec<Receipt>,
    },
    Unpack(Vec<(ShuffleId, Generation, u32)>),
}

/// How a task has failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It asks to run again, elsewhere if possible.
    GivenBack(String),
    /// For good.
    Raised(String),
}

/// A task, as the engine knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) running: BTreeMap<u64, ServerId>,
    /// The value that counts, and who made it.
    pub(super) done: Option<(u64, Value, ServerId)>,
    /// All attempts that there were.
    pub(super) history: BTreeSet<u64>,
    /// Where it should not run next.
    pub(super) shunned: Option<ServerId>,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) plan: JobPlan,
    pub(super) sources: Vec<Source>,
    pub(super) tasks: BTreeMap<Task, State>,
    pub(super) is_begun: bool,
    /// It has ended, with this.
    pub(super) ended: Option<Result<(), String>>,
}

impl Job {
    pub(super) fn new(index: usize, plan: &JobPlan) -> Self {
        let sides = 0..u64::from(plan.sides);
        let sources = sides.map(|side| Source {
            shuffle: ShuffleId(index as u64 * 2 + side),
            data: index as u64 * 2 + side,
            partitions: plan.partitions,
            rows: plan.rows,
            is_deterministic: plan.is_deterministic,
        });
        let sources: Vec<Source> = sources.collect();
        let mut tasks = BTreeMap::new();
        for source in &sources {
            for map in 0..plan.maps {
                tasks.insert(Task::Transfer(source.shuffle, map), State::default());
            }
            tasks.insert(Task::Barrier(source.shuffle), State::default());
        }
        for partition in plan.outputs.iter() {
            tasks.insert(Task::Unpack(index, partition as u32), State::default());
        }
        Self {
            plan: plan.clone(),
            sources,
            tasks,
            is_begun: false,
            ended: None,
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        matches!(&self.ended, Some(Err(reason)) if reason == "cancelled")
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_begun && self.ended.is_none()
    }

    /// What a task needs to run, if everything is there.
    pub(super) fn work(&self, task: Task) -> Option<Work> {
        let value = |task| Some(&self.tasks.get(&task)?.done.as_ref()?.1);
        match task {
            Task::Transfer(..) => Some(Work::Transfer {
                again: !self.tasks[&task].history.is_empty(),
                fails: false,
                replaces: true,
            }),
            Task::Barrier(shuffle) => {
                let maps = self.plan.maps;
                let receipts = (0..maps).map(|map| match value(Task::Transfer(shuffle, map))? {
                    Value::Receipt(receipt) => Some(receipt.clone()),
                    _ => None,
                });
                let receipts = receipts.collect::<Option<_>>()?;
                Some(Work::Barrier { maps, receipts })
            }
            Task::Unpack(_, partition) => {
                let sides =
                    self.sources
                        .iter()
                        .map(|source| match value(Task::Barrier(source.shuffle))? {
                            Value::Generation(generation) => {
                                Some((source.shuffle, *generation, partition))
                            }
                            _ => None,
                        });
                Some(Work::Unpack(sides.collect::<Option<_>>()?))
            }
        }
    }

    /// What relies on a task, and begins anew if it is invalidated.
    pub(super) fn readers(&self, task: Task) -> BTreeSet<Task> {
        let tasks = self.tasks.keys().copied();
        match task {
            Task::Transfer(shuffle, _) => [Task::Barrier(shuffle)].into(),
            Task::Barrier(_) => tasks.filter(|t| matches!(t, Task::Unpack(..))).collect(),
            Task::Unpack(..) => BTreeSet::new(),
        }
    }

    /// Whether all results are there.
    pub(super) fn is_complete(&self) -> bool {
        let mut tasks = self.tasks.iter();
        tasks.all(|(task, state)| !matches!(task, Task::Unpack(..)) || state.done.is_some())
    }

    /// Whether a value of a task may be needed again.
    pub(super) fn is_needed(&self, task: Task) -> bool {
        match task {
            Task::Transfer(shuffle, _) => self.tasks[&Task::Barrier(shuffle)].done.is_none(),
            Task::Barrier(_) => !self.is_complete(),
            Task::Unpack(..) => true,
        }
    }

    /// Compares what was returned with what the maps hold: every row once, in order.
    pub(super) fn verify(&self) -> Result<(), String> {
        for (side, source) in self.sources.iter().enumerate() {
            let mut expected = Expected::new(source, self.plan.maps, |map| {
                self.tasks[&Task::Transfer(source.shuffle, map)]
                    .history
                    .clone()
            });
            for partition in self.plan.outputs.iter().map(|p| p as u32) {
                let Some((_, Value::Rows(rows), _)) = self.unpacked(partition) else {
                    return Err(format!("partition {partition} was not returned"));
                };
                expected.verify(partition, &rows[side])?;
            }
        }
        Ok(())
    }

    fn unpacked(&self, partition: u32) -> Option<&(u64, Value, ServerId)> {
        let mut tasks = self.tasks.iter();
        let (_, state) = tasks
            .find(|(task, _)| matches!(task, Task::Unpack(_, output) if *output == partition))?;
        state.done.as_ref()
    }
}
