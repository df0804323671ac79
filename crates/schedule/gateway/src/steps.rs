//! Every step of tasks, told to the sidecar while somebody wants to know.

use alloc::collections::VecDeque;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use treadle_messages::{FailedKind, LostWorker};
use treadle_scheduler::{State, Step};
use treadle_types::{ClientId, Failure, Value};

use crate::nodes::Node;
use crate::operations::{dict, int};
use crate::state::Core;

/// Steps in one message.
const TOGETHER: usize = 4096;

/// Steps that the sidecar was told and has not said that it knows, at most. What comes beyond is dropped,
/// until it knows of half of them: then it is told how many these are, and looks at all tasks anew.
const MOST: usize = 1 << 20;

/// What the sidecar was told of steps and has not said that it knows.
#[derive(Debug, Default)]
pub(crate) struct Told {
    to: Option<ClientId>,
    /// The numbers of the messages, oldest first, and how many steps are in each.
    open: VecDeque<(u64, usize)>,
    /// How many steps there are in all of them.
    count: usize,
    /// How many were dropped since.
    dropped: u64,
}

impl Told {
    /// One more message; of a sidecar that is new, none before counts.
    fn add(&mut self, number: u64, count: usize) {
        self.open.push_back((number, count));
        self.count += count;
    }

    /// Who begins to follow steps looks at all tasks first, and who ends does not care.
    pub(crate) fn stop_dropping(&mut self) {
        self.dropped = 0;
    }

    /// The sidecar knows what was in a message: how many steps were dropped, if it is to be told now.
    fn knows(&mut self, number: u64) -> Option<u64> {
        let index = self.open.iter().position(|(open, _)| *open == number)?;
        let (_, count) = self.open.remove(index)?;
        self.count -= count;
        let is_time = self.dropped > 0 && self.count <= MOST / 2;
        is_time.then(|| core::mem::take(&mut self.dropped))
    }
}

impl Core {
    /// Tells the sidecar what became of tasks in the event at hand, before clients are told, and
    /// while their keys are known.
    #[cold]
    pub(crate) fn tell_steps(&mut self) {
        // Taken in any case: otherwise they would pile up.
        let steps = self.scheduler.take_steps();
        if self.clients.sidecar.is_none() {
            return;
        }
        if self.told.to != self.clients.sidecar {
            let to = self.clients.sidecar;
            self.told = Told {
                to,
                ..Told::default()
            };
        }
        for some in steps.chunks(TOGETHER) {
            if self.told.dropped > 0 || self.told.count >= MOST {
                self.told.dropped += some.len() as u64;
                continue;
            }
            let all: Vec<Value> = some.iter().map(|step| self.told_of(step)).collect();
            let number = self.inform_sidecar("steps", dict([("steps", Value::List(all))]));
            self.told.add(number, some.len());
        }
    }

    /// A node has answered: the sidecar says so that it knows of steps.
    pub(crate) fn hear_of_steps(&mut self, from: Node, number: u64) {
        if !matches!(from, Node::Client(client) if self.told.to == Some(client)) {
            return;
        }
        if let Some(dropped) = self.told.knows(number) {
            let about = [
                ("steps", Value::List(Vec::new())),
                ("dropped", int(dropped)),
            ];
            let number = self.inform_sidecar("steps", dict(about));
            self.told.add(number, 0);
        }
    }

    /// Key, state, the address of its worker, time, cause, the seconds that it ran, the bytes of its
    /// value, the type of that, why it failed, what it reads.
    fn told_of(&self, step: &Step) -> Value {
        let at = &step.transition;
        let view = self.scheduler.task(at.task);
        let time = (self.settings.started + at.time).as_secs_f64();
        let (ran, nbytes) = match step.ran {
            Some((duration, nbytes)) => (Value::Float(duration.as_secs_f64()), int(nbytes)),
            None => {
                let nbytes = view.and_then(|view| view.nbytes());
                (Value::None, nbytes.map_or(Value::None, int))
            }
        };
        let class = view.filter(|_| at.state == State::Memory);
        let inputs = view.filter(|_| at.state == State::Waiting);
        let failed = view.filter(|_| at.state == State::Failed);
        let failed = failed.and_then(|view| view.failure().cloned());
        Value::Tuple(vec![
            self.key(at.task),
            Value::str(at.state.name()),
            at.worker.map_or(Value::None, |worker| self.address(worker)),
            Value::Float(time),
            int(at.cause),
            ran,
            nbytes,
            class.map_or(Value::None, |view| Value::Bytes(view.class().to_vec())),
            failed.map_or(Value::None, |failure| self.why(&failure)),
            inputs.map_or(Value::None, |view| {
                Value::List(view.inputs().map(|task| self.key(task)).collect())
            }),
        ])
    }

    /// Why a task failed: the kind, the key at fault, and more, as clients are told.
    pub(crate) fn why(&self, failure: &Failure) -> Value {
        let culprit = self.key(failure.culprit());
        let (kind, more) = match self.failed(failure).kind {
            FailedKind::Raised(error) => ("raised", Value::Bytes(error.to_vec())),
            FailedKind::WorkersLost(workers) => (
                "workers-lost",
                Value::List(workers.into_iter().map(lost).collect()),
            ),
            FailedKind::DataLost(worker) => ("data-lost", lost(worker)),
            FailedKind::ActorLost(worker) => ("actor-lost", lost(worker)),
            FailedKind::Unavailable(input) => {
                let input = Value::from_bytes(&input);
                ("unavailable", input.unwrap_or(Value::None))
            }
        };
        Value::Tuple(vec![Value::str(kind), culprit, more])
    }
}

fn lost(worker: LostWorker) -> Value {
    dict([
        ("name", Value::Str(worker.name)),
        ("address", Value::Str(worker.address)),
        ("cause", Value::Str(worker.cause.to_string())),
        ("log", Value::Str(worker.log)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_told_when_half_is_known() {
        let mut told = Told::default();
        for number in 0..4 {
            told.add(number, MOST / 4);
        }
        told.dropped = 7;
        assert_eq!(told.knows(9), None);
        assert_eq!(told.knows(0), None);
        assert_eq!(told.knows(0), None);
        assert_eq!(told.knows(2), Some(7));
        assert_eq!(told.knows(1), None);
        assert_eq!(told.count, MOST / 4);
    }
}
