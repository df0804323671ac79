//! Questions that are answered when something has come about.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_scheduler::State;
use treadle_types::Runs;
use treadle_types::{TaskId, Value, WorkerId};

use crate::calls::error_text;
use crate::nodes::Node;
use crate::state::Core;

/// How many may wait.
const MOST: usize = 4096;
/// For how long values may move. Workers that retire take as long as their tasks.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// These workers are gone.
    Gone(Vec<WorkerId>),
    /// These values, by task and generation, are at so many workers, of those if there are any.
    Copies(Vec<(TaskId, u32)>, usize, Vec<WorkerId>),
    /// These values, which come or have come, are at all of these workers that are left.
    Held(Vec<(TaskId, u32)>, Runs),
    /// These values have left those workers.
    Moved(Vec<(TaskId, u32, WorkerId)>),
}

#[derive(Debug)]
struct Question {
    asker: Node,
    id: u64,
    since: Duration,
    wanted: Wanted,
    answer: Value,
}

/// The questions that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<Question>);

impl Waiting {
    /// `false`: there are too many already.
    pub(crate) fn add(
        &mut self,
        since: Duration,
        asker: Node,
        id: u64,
        wanted: Wanted,
        answer: Value,
    ) -> bool {
        if self.0.len() >= MOST {
            return false;
        }
        self.0.push(Question {
            asker,
            id,
            since,
            wanted,
            answer,
        });
        true
    }

    /// A worker is gone.
    pub(crate) fn gone(&mut self, worker: WorkerId) {
        for question in &mut self.0 {
            if let Wanted::Gone(workers) = &mut question.wanted {
                workers.retain(|other| *other != worker);
            }
        }
    }

    /// Who waits.
    pub(crate) fn askers(&self) -> impl Iterator<Item = Node> + '_ {
        self.0.iter().map(|question| question.asker)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Core {
    /// A node needs no answers any more.
    pub(crate) fn unwait(&mut self, asker: Node) {
        self.waiting.0.retain(|question| question.asker != asker);
    }

    /// Answers what has come about, or takes too long.
    pub(crate) fn look_after_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut place = 0;
        while place < self.waiting.0.len() {
            let question = &self.waiting.0[place];
            let is_late = self.now >= question.since + PATIENCE
                && !matches!(question.wanted, Wanted::Gone(_));
            if self.has_come_about(&question.wanted) {
                let question = self.waiting.0.swap_remove(place);
                let answer = question.answer.to_bytes().into();
                self.answer(question.asker, question.id, Ok(answer));
            } else if is_late {
                let question = self.waiting.0.swap_remove(place);
                let text = format!("the values have not moved within {PATIENCE:?}");
                self.answer(question.asker, question.id, Err(error_text(text)));
            } else {
                place += 1;
            }
        }
    }

    fn has_come_about(&self, wanted: &Wanted) -> bool {
        let there = |task: TaskId, generation: u32| {
            let view = self.scheduler.task(task)?;
            let is_it = self.keys.generation(task) == generation;
            (is_it && view.state() == State::Memory).then_some(view)
        };
        match wanted {
            Wanted::Gone(workers) => workers.is_empty(),
            Wanted::Copies(tasks, copies, among) => tasks.iter().all(|&(task, generation)| {
                // One that is gone, or lives here, is not copied.
                let Some(view) = there(task, generation) else {
                    return true;
                };
                let counts = |worker: &WorkerId| among.is_empty() || among.contains(worker);
                let most = self.workers.iter().filter(|node| counts(&node.id)).count();
                view.inline().is_some()
                    || view.is_actor()
                    || view.holders().filter(counts).count() >= (*copies).min(most)
            }),
            Wanted::Held(tasks, workers) => {
                let here = self.workers.iter().map(|node| node.id);
                let left: Vec<_> = here.filter(|id| workers.contains(id.0.into())).collect();
                tasks.iter().all(|&(task, generation)| {
                    let view = self.scheduler.task(task);
                    let view = view.filter(|_| self.keys.generation(task) == generation);
                    view.is_none_or(|view| match view.state() {
                        State::Waiting => left.is_empty(),
                        State::Memory => {
                            let holders: BTreeSet<_> = view.holders().collect();
                            left.iter().all(|id| holders.contains(id))
                        }
                        _ => true,
                    })
                })
            }
            Wanted::Moved(moves) => moves.iter().all(|&(task, generation, from)| {
                let view = there(task, generation);
                view.is_none_or(|view| view.holders().all(|holder| holder != from))
            }),
        }
    }
}
