//! What happens to a worker, and what follows.

use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use treadle_types::{ClientId, Command, ObjectId, Report, Returned, WorkerId};

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The scheduler said something.
    Command(Command),
    /// An executor is done with a task. The value, where it is kept, is in the store.
    Ran {
        /// The attempt.
        object: ObjectId,
        /// What came of it.
        outcome: Outcome,
        /// How long the function ran.
        duration: Duration,
    },
    /// A running task gives its slot away: it waits for something else, or says that it is long.
    Seceded(ObjectId),
    /// A task that gave its slot away wants one again; see [`Effect::Resume`].
    Rejoining(ObjectId),
    /// A fetch has ended.
    Fetched {
        /// The value.
        object: ObjectId,
        /// Who was asked.
        from: WorkerId,
        /// The size of the value, which is now in the store; `None`: it did not come.
        nbytes: Option<u64>,
    },
    /// A fetch has ended: there is no room here for the value, for which nobody who has it is to
    /// blame.
    NoRoom {
        /// The value.
        object: ObjectId,
        /// Who was asked.
        from: WorkerId,
    },
    /// A fetch has ended: who was asked has the value, and cannot serialise it.
    Immovable {
        /// The value.
        object: ObjectId,
        /// Who was asked.
        from: WorkerId,
        /// Why it cannot, as an exception, encoded.
        error: Bytes,
    },
    /// A client has put a value into the store. The scheduler hears that it is
    /// [`Stored`](Report::Stored), once.
    Put {
        /// The value.
        object: ObjectId,
        /// Its size in bytes.
        nbytes: u64,
    },
    /// A value that was in the store cannot be read any more.
    Gone(ObjectId),
    /// Whether there is memory to start tasks.
    Paused(bool),
    /// Whether somebody wants no task to start: not even one at a time, as while it is
    /// [paused](Self::Paused).
    Held(bool),
}

/// What came of running a task.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// A value.
    Returned(Returned),
    /// An exception, encoded.
    Raised(Bytes),
    /// The task asks to run again, elsewhere if possible.
    GivenBack,
    /// The function was not called, since this input cannot be read from the store any more: the
    /// value counts as [gone](Event::Gone), and the task is given back.
    Missing(ObjectId),
}

/// The effects of one or more events, in order; they are appended, clear them when you have acted.
#[derive(Debug, Default)]
pub struct Effects(pub Vec<Effect>);

/// Something to do, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Run a task: a slot is free, and its inputs are in the store or in the effect. The inputs stay
    /// in the store until the task is reported as done, whatever is released meanwhile, if the
    /// embedder pins them now.
    Run(Run),
    /// A task that wanted a slot again has one.
    Resume(ObjectId),
    /// A running task was cancelled: nobody wants its value. Its slot is free once it ends.
    Interrupt(ObjectId),
    /// Get a value from another worker into the store. Ends with [`Event::Fetched`]
    /// or [`Event::Immovable`].
    Fetch {
        /// The value.
        object: ObjectId,
        /// Who has it.
        from: WorkerId,
        /// Its size in bytes, as far as it is known.
        nbytes: u64,
    },
    /// Drop a value from the store.
    Drop(ObjectId),
    /// Tell the scheduler.
    Report(Report),
}

/// A task to run now.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The attempt.
    pub object: ObjectId,
    /// Whose definitions the recipe refers to.
    pub client: ClientId,
    /// What to run.
    pub recipe: Bytes,
    /// The inputs, in the order of the recipe: values in the store, or here.
    pub inputs: Vec<(ObjectId, Option<Bytes>)>,
    /// Whether the value goes into the store even if it travels inline.
    pub keep: bool,
    /// Whether the value is an actor.
    pub actor: bool,
}

impl Effects {
    #[inline]
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    #[inline]
    pub(crate) fn report(&mut self, report: Report) {
        self.0.push(Effect::Report(report));
    }
}
