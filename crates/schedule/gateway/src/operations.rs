//! What the scheduler itself answers; the shapes are in `docs/internals/cluster-calls.md`.

mod holdings;
mod identity;
mod life;
mod moving;
mod tasks;

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use treadle_messages::Call;
use treadle_scheduler::SchedulerError;
use treadle_types::value::DecodeError;
use treadle_types::{Value, WorkerId};

use crate::effect::Effect;
use crate::nodes::Node;
use crate::state::Core;

/// An answer; `None`: it comes later.
pub type Answered = Result<Option<Value>, OperationError>;

/// Why the scheduler does not answer a question, as its asker is told.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// Nobody answers questions of this name.
    #[error("the scheduler does not serve {0:?}")]
    Unknown(String),
    /// The argument is no value.
    #[error("the argument of {operation:?}: {source}")]
    Argument {
        /// What was asked.
        operation: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// Something is wrong with the arguments, or with who asks.
    #[error("{0}")]
    Invalid(&'static str),
    /// It cannot be, for this reason.
    #[error("{0}")]
    Refused(String),
    /// There is no room for it.
    #[error("too many questions wait for something")]
    Crowded,
    /// The scheduler refuses it.
    #[error(transparent)]
    Event(#[from] SchedulerError),
}

/// What a question brings: keyword arguments.
#[derive(Debug)]
pub struct Arguments(Value);

impl Arguments {
    /// What a question brings.
    ///
    /// # Errors
    /// [`OperationError::Argument`].
    pub fn of(call: &Call) -> Result<Self, OperationError> {
        let value = Value::from_bytes(&call.argument);
        let value = value.map_err(|source| OperationError::Argument {
            operation: call.operation.clone(),
            source,
        })?;
        Ok(Self(value))
    }

    pub fn into_value(self) -> Value {
        self.0
    }

    /// A keyword; `None` for one that is absent or Python's `None`.
    fn get(&self, name: &str) -> Option<&Value> {
        match self.0.get(name) {
            None | Some(Value::None) => None,
            Some(value) => Some(value),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Str(text)) => Some(text),
            _ => None,
        }
    }

    pub fn integer(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Value::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// Whether a keyword is `True`.
    pub fn is_set(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Bool(true)))
    }

    /// A sequence; one that is not is a sequence of itself.
    pub(crate) fn list(&self, name: &str) -> Option<&[Value]> {
        match self.get(name)? {
            Value::List(items) | Value::Tuple(items) => Some(items),
            other => Some(core::slice::from_ref(other)),
        }
    }

    /// Keys: a list of them, since a tuple may be one.
    pub(crate) fn keys(&self) -> Option<&[Value]> {
        if let Value::List(keys) = &self.0 {
            return Some(keys);
        }
        match self.get("keys")? {
            Value::List(keys) => Some(keys),
            other => Some(core::slice::from_ref(other)),
        }
    }
}

/// A dictionary with texts for keys.
pub fn dict<const N: usize>(entries: [(&'static str, Value); N]) -> Value {
    let entries = entries.into_iter();
    Value::Dict(
        entries
            .map(|(name, value)| (Value::str(name), value))
            .collect(),
    )
}

/// An integer, or the largest one.
pub fn int(value: impl TryInto<i64>) -> Value {
    Value::Int(value.try_into().unwrap_or(i64::MAX))
}

impl Core {
    /// Answers a question to the scheduler.
    pub(crate) fn operate(&mut self, asker: Node, call: &Call) -> Answered {
        let arguments = &Arguments::of(call)?;
        let id = call.id;
        match call.operation.as_str() {
            "identity" => self.identity(arguments),
            "ncores" => self.ncores(arguments, false),
            "ncores_running" => self.ncores(arguments, true),
            "running" => self.running(arguments),
            "who_has" => self.who_has(asker, arguments),
            "has_what" => self.has_what(arguments),
            "nbytes" => self.nbytes(arguments),
            "managed" => self.managed(arguments),
            "small_values" => self.small_values(arguments),
            "objects" => self.objects(arguments),
            "processing" => self.processing(arguments),
            "story" => self.story(arguments),
            "tasks" => self.list_tasks(arguments),
            "progress" => self.progress(arguments),
            "load" => self.load(),
            "activity" => self.activity(),
            "recipe" => self.recipe(arguments),
            "observe" => self.observe(asker, arguments),
            "desire" => self.desire(asker, arguments, true),
            "undesire" => self.desire(asker, arguments, false),
            "replicate" => self.replicate(asker, id, arguments),
            "set_resources" => self.set_resources(asker, arguments),
            "held" => self.held(asker, id, arguments),
            "move" => self.move_values(asker, id, arguments),
            "rebalance" => self.rebalance(asker, id, arguments),
            "retire_workers" => self.retire_workers(asker, id, arguments),
            "remove_worker" | "close_worker" => self.close_worker(arguments),
            "restart" => self.restart(),
            "allowed_failures" => self.allowed_failures(arguments),
            "supervise" => self.supervise(arguments),
            "worker-exited" => self.told_of_exit(arguments),
            "shuffles" => Ok(Some(self.list_shuffles(arguments))),
            "shuffle_records" => self.shuffle_records(),
            "shuffle" => Ok(Some(self.about_shuffle(arguments.text("name")))),
            "shuffle_lost" => self.shuffle_lost(arguments),
            "host_shuffle" => self.host_shuffle(arguments),
            "end_shuffle" => self.end_hosted_shuffle(arguments),
            "invalidate" => self.invalidate(arguments),
            "terminate" | "shutdown" => {
                self.out.push(Effect::End);
                Ok(Some(Value::None))
            }
            other => Err(OperationError::Unknown(other.to_owned())),
        }
    }

    /// The workers that are meant: those that are named, all by default.
    pub(crate) fn named_workers(&self, arguments: &Arguments) -> Vec<WorkerId> {
        let Some(names) = arguments.list("workers").or(arguments.list("names")) else {
            return self.workers.ids();
        };
        let find = |name: &Value| match name {
            Value::Str(name) => self.workers.find(name),
            Value::Int(number) => self.workers.find(&number.to_string()),
            _ => None,
        };
        // Whoever is gone has nothing; distributed leaves it out, too.
        names.iter().filter_map(find).collect()
    }

    pub(crate) fn address(&self, worker: WorkerId) -> Value {
        let node = self.workers.get(worker);
        Value::Str(node.map_or_else(String::new, |node| node.address.clone()))
    }

    /// A key, decoded.
    pub(crate) fn key(&self, task: treadle_types::TaskId) -> Value {
        let key = self.keys.key(task);
        Value::from_bytes(key).unwrap_or_else(|_| Value::Bytes(key.to_vec()))
    }

    pub(crate) fn task_of(&self, key: &Value) -> Option<treadle_types::TaskId> {
        self.keys.find(&key.to_bytes())
    }
}
