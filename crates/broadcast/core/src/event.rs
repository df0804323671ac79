//! What happens to a node, and what follows.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::{Cause, ClientId, WorkerId};

use crate::{CastId, Member, Message, Neighbour, Outcome, Output, Runs, Settled, Tree};

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Top: engines that exist. Each is said before it is a member of a cast.
    Introduce(Vec<Member>),
    /// Top: the user casts. The host keeps the payload, whole, under the number until
    /// [`Effect::Drop`].
    Cast {
        /// [`Relay::next_number`](crate::Relay::next_number).
        number: u64,
        /// Ids of workers.
        members: Runs,
        /// Bytes of the payload.
        size: u64,
        /// See [`Offer::unordered`](crate::Offer::unordered).
        unordered: bool,
        /// What the user asks of the tree.
        tree: Tree,
    },
    /// Top: an unfinished cast is for these members too. Those that it is for already, and a cast
    /// that is complete, change nothing.
    Extend {
        /// The cast.
        number: u64,
        /// Ids of workers.
        members: Runs,
    },
    /// Top: members that have not begun are not to.
    Abort {
        /// The cast.
        number: u64,
        /// Those that have begun are interrupted.
        interrupt: bool,
    },
    /// There is a connection to somebody, from whichever side. If there was one before, it was
    /// [`Broken`](Event::Broken) first, and what was sent on that is not sent on this one.
    Connected(Neighbour),
    /// There is none any more. What was sent on it may not have arrived.
    Broken(Neighbour),
    /// A connection that was asked for could not be made.
    Unreachable(WorkerId),
    /// A neighbour said something. What comes with the message (inline payload, mapping, results) is
    /// at hand, and is dropped after the effects if none says to store it. For a chunk, the host asks
    /// [`Relay::wants_chunk`](crate::Relay::wants_chunk) first, and has put the bytes into their place
    /// if it was wanted.
    Message(Neighbour, Message),
    /// The scheduler says that a worker is gone. Its connection, if there is one, is closed.
    Gone(WorkerId, Cause),
    /// The scheduler says that a client is gone, or knows none of this id.
    ClientGone(ClientId),
    /// The answer to [`Effect::Reserve`].
    Reserved {
        cast: CastId,
        /// Whether there is memory; if not, why.
        result: Result<(), Arc<str>>,
    },
    /// The engine has finished a cast; its result has so many bytes.
    Ran {
        cast: CastId,
        /// Bytes of the result, which is a value or an exception; 0 says that there is nothing to
        /// say.
        size: u64,
    },
    /// What was to be run was taken back from the engine, which had not begun; see
    /// [`Effect::Stop`].
    Withdrawn(CastId),
    /// The engine wrote something while it runs this cast.
    Wrote { cast: CastId, text: Bytes },
    /// The top's answer to [`Effect::Ask`]: its [`Relay::settled`](crate::Relay::settled).
    Settled { session: ClientId, settled: Settled },
    /// Time passed; see [`Relay::next_deadline`](crate::Relay::next_deadline).
    Tick,
}

/// Something to do, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Tell a neighbour. What comes with the message (inline payload, chunk, mapping, results) is what
    /// the host keeps under the names that the message says.
    Send(Neighbour, Message),
    /// Make a connection to this engine: [`Event::Connected`] or [`Event::Unreachable`].
    Connect(Member),
    /// There is to be memory for a payload of so many bytes. Answer with [`Event::Reserved`], best
    /// before anything else: chunks that come before the answer are not wanted. It can be asked for
    /// again, when a payload that was to be mapped must be received.
    Reserve {
        cast: CastId,
        /// Bytes.
        size: u64,
        /// The payload will be mapped: it takes no memory of this node, but may exceed its limit.
        mapped: bool,
    },
    /// Keep the payload that came with the message, inline or as a mapping; in the place of what there
    /// is of it already.
    StorePayload(CastId),
    /// Keep the results of these engines that came with the event.
    StoreResults {
        cast: CastId,
        /// Ids of workers.
        engines: Runs,
    },
    /// The payload is whole and it is its turn: run it. [`Event::Ran`] or [`Event::Withdrawn`]
    /// follows; until then nothing else is run, except casts that are
    /// [unordered](crate::Offer::unordered).
    Run(CastId),
    /// The engine is not to run this, if it has not begun: [`Event::Withdrawn`].
    Stop {
        cast: CastId,
        /// If it has begun, interrupt it.
        interrupt: bool,
    },
    /// Nobody needs the payload and the results of a cast any more. What is on its way to a socket
    /// is sent all the same.
    Drop(CastId),
    /// The same for all casts of a session.
    DropSession(ClientId),
    /// Ask the session's client through the scheduler what is settled: [`Event::Settled`]; if there
    /// is no such client, [`Event::ClientGone`]. No answer is one too.
    Ask(ClientId),
    /// Top: what came of a cast at some engines, each once. If they finished, their results came with
    /// the event.
    Result {
        /// The cast.
        number: u64,
        /// Ids of workers.
        engines: Runs,
        /// What came of it.
        outcome: Outcome,
    },
    /// Top: an engine wrote something.
    Output(Output),
    /// Top: every member has its result.
    Complete {
        /// The cast.
        number: u64,
    },
}

/// The effects of one or more events, in order; they are appended, clear them when you have acted.
#[derive(Debug, Default)]
pub struct Effects(pub Vec<Effect>);

impl Effects {
    #[inline]
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    #[inline]
    pub(crate) fn send(&mut self, to: Neighbour, message: Message) {
        self.0.push(Effect::Send(to, message));
    }
}
