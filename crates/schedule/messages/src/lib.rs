//! What nodes say to each other, one thing each. The wire packs many of them into one message, in
//! order.
//!
//! The crate is pure: plain data.

#![no_std]

extern crate alloc;

mod length;

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_broadcast::{Runs, Settled};
use treadle_scheduler::Stuck;
use treadle_shuffle::{ToMaster, ToNode};
use treadle_types::{Cause, ClientId, Command, Report, WorkerId};

pub use length::{LARGEST_MESSAGE, LARGEST_VALUE, TooLong, fits};

/// A shared object of a client's recipes.
#[derive(Clone, PartialEq, Debug)]
pub struct Definition {
    pub client: ClientId,
    /// The client's number for it, never used twice.
    pub number: u32,
    /// A name for people: of a function, as Dask's `funcname` gives it.
    pub name: String,
    /// The object, pickled.
    pub pickle: Bytes,
}

/// A question to another node, routed by the scheduler; see `docs/internals/cluster.md`.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// The asker's number for it, which the answer carries.
    pub id: u64,
    /// Whom to ask: `""` the scheduler itself, `"sidecar"` its Python side, the address or the name
    /// of a worker, `"client-…"` a client by its name. In a call that arrives: who asks.
    pub node: String,
    /// What to do.
    pub operation: String,
    /// With what: an encoded [`Value`](treadle_types::Value).
    pub argument: Bytes,
}

/// An answer to a [`Call`].
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The asker's number.
    pub id: u64,
    /// An encoded value; or, an error: one too, which the Python side turns into an exception.
    pub result: Result<Bytes, Bytes>,
}

/// The first words of a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Hello {
    pub role: Role,
    /// Its name: unique among workers; for clients the `id` that distributed gives them.
    pub name: String,
    /// `major.minor` of its Python: functions travel as pickles, so all must have the same.
    pub python: String,
    /// Treadle's version.
    pub version: String,
    /// What else is known of it (versions of packages, process id, …): an encoded value.
    pub info: Bytes,
}

/// What a node is.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    Client,
    /// The scheduler's Python side. It is a client too: it can hold futures.
    Sidecar,
    Worker {
        /// Where its values are to be had: an address of its listener.
        address: String,
        /// The machine: nodes of one host share memory.
        host: String,
        /// How many tasks it runs at once.
        threads: u32,
        /// Bytes of memory for values; 0: no limit.
        memory: u64,
        /// Abstract resources.
        resources: Vec<(String, f64)>,
    },
}

/// What the scheduler answers to a [`Hello`].
#[derive(Clone, PartialEq, Debug)]
pub enum Welcome {
    /// The node's number: a [`WorkerId`] or [`ClientId`], and the scheduler's own information, an
    /// encoded value.
    Accepted {
        /// The number.
        id: u32,
        /// About the scheduler.
        info: Bytes,
    },
    /// Why it may not take part.
    Refused(String),
}

/// Why a worker is told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// It was drained, as it or somebody else wanted.
    Drained,
    /// Somebody wants it closed.
    Asked,
    /// The scheduler ends.
    Over,
    /// It told what cannot be: another process in its place may do better.
    Dismissed,
}

/// Scheduler to worker.
#[derive(Clone, PartialEq, Debug)]
pub enum ToWorker {
    /// Something to do.
    Command(Command),
    /// A definition, before the first task that uses it.
    Define(Definition),
    /// A client is gone, with its definitions.
    ForgetClient(ClientId),
    /// A client that [asked who is there](FromClient::Members) is gone, and its casts with it.
    SessionOver(ClientId),
    /// What is settled of a client's casts.
    Settled { client: ClientId, settled: Settled },
    /// Definitions of a client that no task uses any more, nor will.
    Withdraw {
        client: ClientId,
        /// Its numbers of them.
        numbers: Vec<u32>,
    },
    /// Where a worker is, before the first command that names it.
    Peer {
        worker: WorkerId,
        /// The address of its listener.
        address: String,
    },
    /// A worker is gone: requests to it shall fail at once. Once a client has asked [who is
    /// there](FromClient::Members), every worker is told of every one.
    PeerLost(WorkerId),
    /// A question for its Python side.
    Call(Call),
    /// An answer to its own question.
    Answer(Answer),
    /// End, now.
    Leave {
        /// Why.
        cause: Leave,
        /// The same in words.
        reason: String,
    },
    /// From the master of the shuffle plane.
    ToNode(ToNode),
}

/// Worker to scheduler.
#[derive(Clone, PartialEq, Debug)]
pub enum FromWorker {
    /// What happened.
    Report(Report),
    /// What is settled of a client's casts? Answered by [`ToWorker::Settled`], or
    /// [`ToWorker::SessionOver`].
    AskSettled(ClientId),
    /// For the master of the shuffle plane.
    ToMaster(ToMaster),
    /// Let me go: my values have to move away first. Answered by [`ToWorker::Leave`].
    Drain,
    /// A question.
    Call(Call),
    Answer(Answer),
    /// The last word: why it ends, and the last lines of its log.
    Leaving {
        /// Why.
        cause: Cause,
        /// Lines.
        log: String,
    },
}

/// A batch of a client's tasks, as columns of local ids; see
/// [`Submission`](treadle_scheduler::Submission), whose columns these become.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    /// The client's number of the submission.
    pub number: u32,
    /// Whether the submission ends here.
    pub last: bool,
    /// The local id of the first of `keys`; the others follow.
    pub first: u32,
    /// Keys that the client has not mentioned before, encoded.
    pub keys: Vec<Bytes>,
    /// Local ids.
    pub tasks: Vec<u32>,
    /// Into `inputs`; one more than there are tasks.
    pub offsets: Vec<u32>,
    /// Local ids.
    pub inputs: Vec<u32>,
    /// Readers within the submission.
    pub readers: Vec<u32>,
    /// Positions in the planned order.
    pub ranks: Vec<u32>,
    /// The definitions that each recipe uses: into `definitions`; one more than there are tasks.
    /// The first one of a task is its function.
    pub definition_offsets: Vec<u32>,
    /// Numbers of definitions.
    pub definitions: Vec<u32>,
    /// What to run: the length of the key, the key, and the recipe proper. Workers learn a task's key
    /// from it.
    pub recipes: Vec<Bytes>,
    /// Indices into `option_sets`.
    pub options: Vec<u16>,
    /// The options that occur.
    pub option_sets: Vec<TaskOptions>,
    /// Local ids of the tasks that the client has futures of.
    pub wanted: Vec<u32>,
}

/// How tasks want to be run, with names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskOptions {
    /// Higher runs earlier.
    pub priority: i32,
    /// How often a task that raised is run again.
    pub retries: u32,
    /// Names, addresses or hosts of workers; empty: any.
    pub workers: Vec<String>,
    /// Whether others will do if none of these is there.
    pub allow_other: bool,
    /// Abstract resources.
    pub resources: Vec<(String, f64)>,
    /// The values are actors.
    pub actor: bool,
    /// The tasks do more than return a value: see [`treadle_types::Options::effects`].
    pub effects: bool,
    /// What they did stays when their workers are lost: see [`treadle_types::Options::lasting`].
    pub lasting: bool,
}

/// A shuffle of a submission. It ends with its barrier.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Registration {
    /// The client's number of the submission.
    pub submission: u32,
    /// The name by which its tasks call it. Workers ask for its number by this name.
    pub name: String,
    /// The rank of the barrier in the submission.
    pub barrier: u32,
    /// How many inputs it has: those of the barrier.
    pub maps: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// The partitions that somebody wants.
    pub outputs: Runs,
    /// The name of a shuffle whose outputs are read together with those of this one.
    pub aligned: Option<String>,
    /// What workers need to know of it. The scheduler passes it on.
    pub spec: Bytes,
    /// What people call such a shuffle: `shuffle`, `merge`, `rechunk`.
    pub kind: String,
    /// The master of the stand-alone service that keeps its rows; `None`: workers do.
    pub service: Option<String>,
    /// Ranks of tasks of the submission that read one partition, as far as they are known.
    pub readers: Vec<u32>,
    /// For each of them, which.
    pub reads: Vec<u32>,
}

/// Client to scheduler.
#[derive(Clone, PartialEq, Debug)]
pub enum FromClient {
    /// A definition, before the first batch that uses it. Its `client` is set by the scheduler.
    Define(Definition),
    /// Definitions that no later batch uses: in answer to [`ToClient::Unused`].
    Undefine(Vec<u32>),
    /// A shuffle, before the first batch of the submission that has its tasks.
    Register(Registration),
    /// Tasks.
    Submit(Batch),
    /// A value that no task computes. A small one comes with the message. For another the answer is
    /// [`ToClient::Place`]: the client brings it to these workers, each of which reports it to the
    /// scheduler.
    Put {
        /// Its local id, new.
        id: u32,
        /// Its key, encoded.
        key: Bytes,
        /// Its size.
        nbytes: u64,
        /// The value, where it is small.
        inline: Option<Bytes>,
        /// Its type, as workers name it.
        class: Bytes,
        /// Names, addresses or hosts of workers to choose from; empty: any.
        workers: Vec<String>,
        /// How many workers shall have it; at most as many as there are.
        copies: u32,
        /// Whether the client keeps it under this id, also when the id is released, to put it again
        /// on [`ToClient::Bring`]; until [`ToClient::Unkeep`] or [`FromClient::Unkept`].
        kept: bool,
    },
    /// The client does not keep these any more, or cannot bring them again: ids of its last
    /// [`FromClient::Put`] of each.
    Unkept(Vec<u32>),
    /// The client has futures of keys that others made.
    Want {
        /// The local id of the first of `keys`, all new; the others follow.
        first: u32,
        /// The keys, encoded.
        keys: Vec<Bytes>,
    },
    /// It has no futures of these any more; it will not mention the ids again.
    Release(Vec<u32>),
    Cancel {
        /// Local ids.
        ids: Vec<u32>,
        /// Also where other clients want them.
        force: bool,
        /// For the other clients: reason and message, an encoded value.
        reason: Bytes,
    },
    /// Run again what failed.
    Retry(Vec<u32>),
    /// Tell me from now on who the workers are.
    Members,
    /// What is settled of this client's casts, for a worker that asked.
    SettledTold {
        /// For whom.
        worker: WorkerId,
        settled: Settled,
    },
    /// A question.
    Call(Call),
    Answer(Answer),
    /// The connection ends as it should.
    Goodbye,
}

/// How a task stands; see [`treadle_scheduler::Notice`].
#[derive(Clone, PartialEq, Debug)]
pub enum Standing {
    /// It has a value.
    Finished {
        /// Its size.
        nbytes: u64,
        /// The value, where it is small.
        inline: Option<Bytes>,
        /// The type of a value that is not inline.
        class: Bytes,
        /// A worker that has it.
        holder: Option<WorkerId>,
        /// The value's attempt, to ask the holder for it.
        object: u64,
    },
    /// It has none.
    Failed(Failed),
    /// It was cancelled; reason and message, an encoded value.
    Cancelled(Bytes),
    /// Wait for the next notice.
    Pending,
    /// The key is unknown to the scheduler, and nobody is making it.
    Unknown,
}

/// A failure, with keys and names; see [`treadle_types::Failure`].
#[derive(Clone, PartialEq, Debug)]
pub struct Failed {
    /// The key of the task at fault, encoded.
    pub key: Bytes,
    /// Why.
    pub kind: FailedKind,
}

/// Why a task failed.
#[derive(Clone, PartialEq, Debug)]
pub enum FailedKind {
    /// It raised: what the worker's Python side made of the exception.
    Raised(Bytes),
    /// Workers were lost while they ran it: for each its name and address, the cause and the last
    /// lines of its log.
    WorkersLost(Vec<LostWorker>),
    /// Its value cannot be computed again, and is gone with this worker.
    DataLost(LostWorker),
    /// Its value is an actor, and is gone with this worker.
    ActorLost(LostWorker),
    /// An input could not be got: its key, encoded.
    Unavailable(Bytes),
}

/// A worker that was lost.
#[derive(Clone, PartialEq, Debug)]
pub struct LostWorker {
    pub name: String,
    pub address: String,
    /// Why.
    pub cause: Cause,
    /// The last lines of its log, as far as they are known.
    pub log: String,
}

/// A worker, as clients that cast know it.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// Its number: of this registration, and never used again.
    pub worker: WorkerId,
    pub name: String,
    /// The address of its listener.
    pub address: String,
    /// The machine.
    pub host: String,
}

/// Scheduler to client.
#[derive(Clone, PartialEq, Debug)]
pub enum ToClient {
    /// How a task stands that the client wants.
    Notice {
        /// The local id.
        id: u32,
        /// How it stands.
        standing: Standing,
    },
    /// Where to bring a value that was [`Put`](FromClient::Put).
    Place {
        /// The local id.
        id: u32,
        /// Its name, as [`ObjectId::to_u64`](treadle_types::ObjectId::to_u64).
        object: u64,
        /// Ids of workers. Empty: the value is there already, or no worker is; a notice says which.
        /// A client that is to bring it to several has been told [who is there](ToClient::Joined).
        workers: Runs,
    },
    /// Values that were [kept](FromClient::Put) under these ids are lost: the client puts them again,
    /// or says that it [cannot](FromClient::Unkept).
    Bring(Vec<u32>),
    /// Nobody needs what was kept under these ids.
    Unkeep(Vec<u32>),
    /// Where a worker is, before the first notice that names it.
    Peer {
        worker: WorkerId,
        /// The address of its listener.
        address: String,
    },
    /// A worker is gone.
    PeerLost(WorkerId),
    /// Workers that are there, each once: in answer to [`FromClient::Members`] all of them, then
    /// whoever joins.
    Joined(Vec<Member>),
    /// A worker that had [joined](ToClient::Joined) is gone, followed by [`ToClient::PeerLost`].
    Left {
        worker: WorkerId,
        /// Why.
        cause: Cause,
    },
    /// A worker asks what is settled of this client's casts.
    SettledAsked(WorkerId),
    /// Numbers of definitions that no task has used for long. The client shall
    /// [give them up](FromClient::Undefine), and define anew what it needs again.
    Unused(Vec<u32>),
    /// A question.
    Call(Call),
    Answer(Answer),
    /// Nothing moves.
    Stuck {
        /// Keys of some of the tasks, encoded.
        keys: Vec<Bytes>,
        /// Why.
        reason: Stuck,
    },
    /// Everything was cancelled and dropped.
    Restarted,
}

/// The kinds of objects with values between workers, and between clients and workers, on connections of
/// their own: see `proto/data.proto`. Objects of broadcast and shuffle come to the same listener:
/// `treadle-schedule-wire` checks that no two kinds have one number.
#[derive(Clone, Copy, Debug)]
pub enum Data {}

impl Data {
    /// A request for a value: `Get`.
    pub const GET: u32 = 1;
    /// The answer with it: `Value`, then its frames.
    pub const VALUE: u32 = 2;
    /// The answer without: `NoValue`.
    pub const NO_VALUE: u32 = 3;
    /// The answer about a value that cannot be serialised: `Unserialisable`.
    pub const UNSERIALISABLE: u32 = 6;
    /// A value that a client brings: `Put`, then its frames.
    pub const PUT: u32 = 4;
    /// The answer to it: `Taken`.
    pub const TAKEN: u32 = 5;
    /// The serialised kind of a value that is small: one frame, encoded by
    /// [`treadle_types::value`].
    pub const SMALL: u32 = u32::MAX;
}
