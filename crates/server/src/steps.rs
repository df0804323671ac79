//! Every step of tasks, told to the sidecar while somebody wants to know.

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use treadle_messages::{FailedKind, LostWorker};
use treadle_scheduler::{State, Step};
use treadle_types::{Failure, Value};

use crate::operations::{dict, int};
use crate::state::Core;

/// Steps in one message.
const TOGETHER: usize = 4096;

impl Core {
    /// Tells the sidecar what became of tasks in the event at hand, before clients are told, and
    /// while their keys are known.
    #[cold]
    pub(crate) fn tell_steps(&mut self) {
        let steps = self.scheduler.take_steps();
        if self.clients.sidecar.is_none() {
            return;
        }
        for some in steps.chunks(TOGETHER) {
            let some: Vec<Value> = some.iter().map(|step| self.told(step)).collect();
            self.inform_sidecar("steps", dict([("steps", Value::List(some))]));
        }
    }

    /// Key, state, the address of its worker, time, cause, the seconds that it ran, the bytes of its
    /// value, the type of that, why it failed, what it reads.
    fn told(&self, step: &Step) -> Value {
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
    fn why(&self, failure: &Failure) -> Value {
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
