//! What happens to the scheduler.

use alloc::vec::Vec;
use bytes::Bytes;
use treadle_types::{Cause, ClientId, Constraint, Options, Report, Symbol, TaskId, WorkerId};

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A worker registered. Its id was never used before.
    WorkerJoined {
        worker: WorkerId,
        /// What it has to offer.
        profile: WorkerProfile,
    },
    /// A worker is gone, or counts as gone: whatever it still says is a stranger's.
    WorkerLost {
        worker: WorkerId,
        /// Why.
        cause: Cause,
    },
    /// A worker shall leave: it gets no new tasks, what has not started is taken back, its values
    /// are copied elsewhere; then comes [`Effect::Drained`](crate::Effect::Drained).
    Drain(WorkerId),
    /// A worker has other abstract resources from now on. What was sent to it stays there, and uses what
    /// it used.
    Offer {
        worker: WorkerId,
        /// Amounts, each resource once.
        resources: Vec<(Symbol, f64)>,
    },
    /// A client connected. Its id was never used before.
    ClientJoined(ClientId),
    /// A client is gone: nothing is wanted on its behalf any more.
    ClientLeft(ClientId),
    /// A client sent tasks.
    Submit(Submission),
    /// A client has a value to keep, which no task computes: it was scattered, or is a large
    /// constant of a graph. The client wants it.
    Put {
        client: ClientId,
        /// Its id, from [`Scheduler::allocate`](crate::Scheduler::allocate), or of a value that
        /// exists already.
        task: TaskId,
        /// The size in bytes.
        nbytes: u64,
        /// The value, where it is small.
        inline: Option<Bytes>,
        /// The type, opaque here.
        class: Bytes,
        /// The workers that have it. May be empty without an inline value: then the client brings
        /// it to workers, and the first that reports it as
        /// [`Stored`](treadle_types::Report::Stored) makes it a value; tasks that read it wait. They
        /// fail if no client that was to bring it wants it any more.
        holders: Vec<WorkerId>,
        /// Whether the client keeps a value that is not inline, even when it does not want it any
        /// more: until [`Effect::Unkeep`](crate::Effect::Unkeep) or [`Event::Unkept`]. If it is
        /// lost and needed, [`Effect::Bring`](crate::Effect::Bring) asks for it.
        kept: bool,
    },
    /// A client does not keep values any more, or cannot bring what it was asked for.
    Unkept {
        client: ClientId,
        /// The tasks whose values are meant.
        tasks: Vec<TaskId>,
    },
    /// A client has futures of these tasks.
    Want {
        client: ClientId,
        /// The tasks; all exist.
        tasks: Vec<TaskId>,
    },
    /// A client has no futures of these tasks any more.
    Unwant {
        client: ClientId,
        tasks: Vec<TaskId>,
    },
    /// A client cancels tasks, and with them what depends on them.
    Cancel {
        client: ClientId,
        tasks: Vec<TaskId>,
        /// Also where another client wants them.
        force: bool,
    },
    /// A client wants failed tasks to be run again; also the failed ones that they depend on.
    Retry {
        client: ClientId,
        tasks: Vec<TaskId>,
    },
    /// A worker reported.
    Report { worker: WorkerId, report: Report },
    /// Values shall be at so many workers; at fewer, and the surplus is dropped.
    Replicate {
        /// The tasks whose values are meant.
        tasks: Vec<TaskId>,
        /// How many workers shall hold each.
        copies: u32,
        /// Among these workers; empty: all.
        among: Vec<WorkerId>,
    },
    /// A value shall move from one worker to another.
    Move {
        /// The task whose value is meant.
        task: TaskId,
        /// Who has it.
        from: WorkerId,
        /// Who shall have it.
        to: WorkerId,
    },
    /// A plane says that the values of finished tasks are gone: they are computed again where they
    /// are needed. Values that live at the scheduler stay, unless their tasks have
    /// [effects](treadle_types::Options::effects), or are computed from what such tasks did: what led to
    /// the others is not known any more.
    /// Those that have read a value and ended stay as they are: the plane names those that it means.
    Invalidate(Vec<TaskId>),
    /// Values are gone, as with [`Invalidate`](Self::Invalidate), and those that come in their place may be
    /// others, says a plane. So what was computed from them is not valid any more. Both are said in one
    /// event: nothing may begin with the one gone and the other still there.
    Discard {
        /// The tasks whose values are gone.
        gone: Vec<TaskId>,
        /// All tasks that are computed from these values. Their values are gone, too, and attempts that
        /// are at workers do not count: they are cancelled, and begin anew.
        derived: Vec<TaskId>,
    },
    /// A plane says where tasks read what is no value, until it says otherwise. Tasks that are gone are
    /// left out.
    Locate(Vec<Located>),
    /// Everything is cancelled and dropped; workers stay.
    Restart,
    /// Time has passed. Comes at least every [`TICK`](crate::TICK).
    Tick,
}

/// What a worker has to offer.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerProfile {
    /// Its own name, for messages.
    pub name: Symbol,
    /// The machine that it runs on: values move for next to nothing within one.
    pub host: Symbol,
    /// What tasks may call it in their restrictions: its name, address, host.
    pub aliases: Vec<Symbol>,
    /// How many tasks it runs at once.
    pub threads: u32,
    /// Bytes of memory for values; 0: without a limit.
    pub memory: u64,
    /// Amounts of abstract resources.
    pub resources: Vec<(Symbol, f64)>,
}

/// A batch of tasks, as columns. A submission may come in several batches; the tasks of a batch
/// read tasks of the same or an earlier batch, or tasks of other submissions.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Submission {
    /// Who sent it.
    pub client: ClientId,
    /// The number of the submission, the same in all of its batches; they grow with time.
    pub number: u32,
    /// Whether this is the last batch of the submission.
    pub last: bool,
    /// The tasks: ids from [`Scheduler::allocate`](crate::Scheduler::allocate), or of tasks that
    /// exist already, whose new recipes are ignored.
    pub tasks: Vec<TaskId>,
    /// `inputs[offsets[i]..offsets[i + 1]]` are the inputs of task `i`, in the order of its recipe,
    /// each once. One more entry than there are tasks.
    pub offsets: Vec<u32>,
    /// See `offsets`.
    pub inputs: Vec<TaskId>,
    /// For each task, how many tasks of the whole submission read it, those of later batches
    /// included: a value waits for readers that have not been sent yet.
    pub readers: Vec<u32>,
    /// For each task, its position in the planned order of the submission.
    pub ranks: Vec<u32>,
    /// For each task, the function that it runs: durations are learnt by function.
    pub functions: Vec<Symbol>,
    /// For each task, what to run.
    pub recipes: Vec<Bytes>,
    /// For each task, the index of its options.
    pub options: Vec<u16>,
    /// The options that occur.
    pub option_sets: Vec<Options>,
    /// The constraints that the options refer to.
    pub constraints: Vec<Constraint>,
    /// The tasks that the client wants, of this batch or earlier ones. A task without announced
    /// readers has to be wanted in its own batch, or it is forgotten with it.
    pub wanted: Vec<TaskId>,
    /// Tasks of the batch that read what is no value.
    pub located: Vec<Located>,
}

/// A task that reads something that is no value, such as a partition of a shuffle. It counts as the bytes
/// of an input do where a worker is chosen, and the task is not sent ahead of its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    pub task: TaskId,
    /// Where that is. `None`: it is not known yet.
    pub worker: Option<WorkerId>,
    /// How many bytes it has, as far as is known.
    pub nbytes: u64,
}

impl Submission {
    /// The inputs of the task at a position of the batch; the offsets must be sound.
    pub(crate) fn inputs_of(&self, index: usize) -> &[TaskId] {
        &self.inputs[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }
}
