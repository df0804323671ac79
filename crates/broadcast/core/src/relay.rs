//! The machine.

use alloc::vec;

mod cast;
mod check;
mod engine;
mod neighbours;
mod offers;
mod payload;
mod placing;
mod results;
mod settle;
mod silence;
mod timers;
mod top;

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use thiserror::Error;
use treadle_types::{ClientId, WorkerId};

use crate::Guard;
use crate::relay::cast::{Cast, Session};
use crate::relay::engine::Engine;
use crate::relay::timers::{Timer, Timers};
use crate::relay::top::Top;
use crate::{
    CastId, Config, Effects, Event, Member, Message, Neighbour, Outcome, Output, Runs, Settled,
    TreeError,
};

/// Who a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Me {
    /// The top of a session.
    Top {
        session: ClientId,
        /// The number of its host, if engines can be there with whom it shares memory.
        host: Option<u32>,
    },
    Engine(Member),
}

/// What somebody did that is not allowed. It changed nothing, but for what it said to be settled; a neighbour
/// that did it is not worth a connection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// A cast out of turn, or to somebody who was not introduced.
    #[error("cast {number} cannot be made: {reason}")]
    Cast {
        /// The cast.
        number: u64,
        /// Why.
        reason: &'static str,
    },
    /// A cast with a tree that there is not.
    #[error("{0}")]
    Tree(#[from] TreeError),
    /// A message that breaks the protocol.
    #[error("{from:?} broke the protocol: {reason}")]
    Protocol {
        from: Neighbour,
        reason: &'static str,
    },
}

/// A node of the broadcast plane.
///
/// An event costs time in proportion to the ranges of ids that it concerns, and at relays to the
/// members that are given to children; losing a neighbour or a worker looks at all casts.
pub struct Relay {
    config: Config,
    engine: Option<Engine>,
    top: Option<Top>,
    now: Duration,
    sessions: BTreeMap<ClientId, Session>,
    links: BTreeMap<Neighbour, NeighbourState>,
    directory: BTreeMap<u64, Member>,
    /// The ids of the directory.
    known: Runs,
    /// Workers, and clients, that were declared gone.
    gone: Runs,
    gone_clients: Runs,
    /// Who could not be reached, and until when that speaks against it.
    avoided: BTreeMap<u64, Duration>,
    timers: Timers,
}

/// A connection, or one that is being made.
#[derive(Default)]
struct NeighbourState {
    is_connected: bool,
    /// Whom the neighbour has been introduced to.
    introduced: Runs,
    /// When it said something, or the connection was there.
    heard: Duration,
    /// It has said nothing for long, although others depend on it.
    is_silent: bool,
}

impl Relay {
    /// A node without neighbours.
    pub fn new(me: Me, config: Config) -> Self {
        let mut relay = Self {
            config,
            engine: None,
            top: None,
            now: Duration::ZERO,
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            directory: BTreeMap::new(),
            known: Runs::new(),
            gone: Runs::new(),
            gone_clients: Runs::new(),
            avoided: BTreeMap::new(),
            timers: Timers::default(),
        };
        match me {
            Me::Top { session, host } => {
                relay.sessions.insert(session, Session::default());
                relay.top = Some(Top::new(session, host));
            }
            Me::Engine(member) => {
                relay.engine = Some(Engine {
                    member,
                    running: None,
                    ready: VecDeque::new(),
                });
            }
        }
        relay
    }

    /// Takes an event in; what follows from it is appended to `effects`. `now` is a time that does not
    /// go back.
    ///
    /// # Errors
    /// [`Violation`]: the event is refused.
    pub fn handle(
        &mut self,
        event: Event,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.now = self.now.max(now);
        let outcome = self.take(event, effects);
        // Also what is refused may have said what is settled, and so whose turn it is.
        self.start(effects);
        self.flush_dirty(effects);
        outcome
    }

    fn take(&mut self, event: Event, out: &mut Effects) -> Result<(), Violation> {
        match event {
            Event::Introduce(members) => self.introduced(None, members)?,
            Event::Cast {
                number,
                members,
                size,
                unordered,
                tree,
            } => self.make(number, &members, (size, unordered, tree), out)?,
            Event::Extend { number, members } => self.extend(number, &members, out)?,
            Event::Abort { number, interrupt } => {
                if let Some(session) = self.top.as_ref().map(|top| top.session) {
                    self.abort(CastId { session, number }, interrupt, out);
                }
            }
            Event::Connected(who) => self.connected(who, out),
            Event::Broken(who) => self.broken(who, out),
            Event::Unreachable(worker) => self.unreachable(worker, out),
            Event::Message(from, message) => self.hear(from, message, out)?,
            Event::Gone(worker, cause) => self.gone(worker, &cause, out),
            Event::ClientGone(client) => self.client_gone(client, out),
            Event::Reserved { cast, result } => self.reserved(cast, result, out),
            Event::Ran { cast, size } => self.ran(cast, Outcome::Finished { size }, out),
            Event::Withdrawn(cast) => self.ran(cast, Outcome::Aborted, out),
            Event::Wrote { cast, text } => {
                if let Some(engine) = &self.engine {
                    let (number, engine) = (cast.number, engine.member.worker);
                    let output = Output {
                        number,
                        engine,
                        text,
                    };
                    self.wrote(None, cast.session, vec![output], out);
                }
            }
            Event::Settled { session, settled } => self.hear_settled(session, &settled, out),
            Event::Tick => self.tick(out),
        }
        Ok(())
    }

    fn hear(
        &mut self,
        from: Neighbour,
        message: Message,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let is_connected = self.links.get(&from).is_some_and(|link| link.is_connected);
        if !is_connected && Guard::Dead.holds() {
            if self.is_gone(from) {
                // What the scheduler says overtakes what was on its way.
                return Ok(());
            }
            let reason = "it speaks without a connection";
            return Err(Violation::protocol(from, reason));
        }
        if let Some(link) = self.links.get_mut(&from) {
            (link.heard, link.is_silent) = (self.now, false);
        }
        let is_down = matches!(
            message,
            Message::Introduce(_)
                | Message::Offer(_)
                | Message::Chunk { .. }
                | Message::Mapping { .. }
                | Message::Abort { .. }
        );
        if is_down && self.top.is_some() {
            let reason = "it speaks to a client as to an engine";
            return Err(Violation::protocol(from, reason));
        }
        match message {
            Message::Introduce(members) => self.introduced(Some(from), members)?,
            Message::Offer(offer) => self.offered(from, &offer, out)?,
            Message::Chunk {
                cast,
                offset,
                length,
            } => self.chunk(from, cast, offset, length, out)?,
            Message::Mapping { cast } => self.mapping(from, cast, out),
            Message::Want { cast, offset } => self.wanted(from, cast, offset, out)?,
            Message::Have { cast, offset } => self.has(from, cast, offset, out),
            Message::Decline { cast, members } => self.declined(from, cast, &members, out),
            Message::Results { session, results } => {
                self.receive_results(from, session, results, out)?
            }
            Message::Outputs { session, outputs } => self.wrote(Some(from), session, outputs, out),
            Message::Settled { session, settled } => self.hear_settled(session, &settled, out),
            Message::Abort { cast, interrupt } => {
                let is_parent = |cast: &mut Cast| cast.parent(from).is_some();
                if self.cast(cast).is_some_and(is_parent) {
                    self.abort(cast, interrupt, out);
                }
            }
        }
        Ok(())
    }

    /// Somebody says what is settled. The top knows better.
    fn hear_settled(&mut self, id: ClientId, settled: &Settled, out: &mut Effects) {
        if self.top.is_some() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            (session.heard, session.asks) = (self.now, 0);
            self.settle(id, &settled.0, out);
        }
    }

    fn tick(&mut self, out: &mut Effects) {
        while let Some((at, timer)) = self.timers.pop(self.now) {
            match timer {
                Timer::Flush(session) => self.flush(session, true, out),
                Timer::Settle(session) => self.tell_settled(session, out),
                Timer::Beat => self.beat(out),
                Timer::Silence => self.pass_over(at, out),
                Timer::Stall(cast) => self.stall(cast, out),
                Timer::Ask(session) => self.ask(session, out),
                Timer::Retry(cast) => self.retry(cast, out),
            }
        }
    }

    /// When [`Event::Tick`] is due; `None`: not before another event.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Whether the next bytes of a payload that are missing here are among those that this neighbour
    /// sends: they are to be put into their place before the event is handled. Others are thrown away.
    pub fn wants_chunk(&self, from: Neighbour, cast: CastId, offset: u64, length: u32) -> bool {
        self.is_next(from, cast, offset, length)
    }

    /// What is known to be settled of a session.
    pub fn settled(&self, session: ClientId) -> Settled {
        let session = self.sessions.get(&session);
        Settled(
            session
                .map(|session| session.settled.clone())
                .unwrap_or_default(),
        )
    }

    /// Casts that are known here and not settled.
    pub fn casts(&self) -> usize {
        let sessions = self.sessions.values();
        sessions.map(|session| session.casts.len()).sum()
    }

    /// Whether a connection is in use: a cast that is not settled came from there or went there, or
    /// the neighbour is to hear what is settled.
    pub fn is_used(&self, neighbour: Neighbour) -> bool {
        let is_parent = |cast: &Cast| cast.parents.iter().any(|parent| parent.who == neighbour);
        let is_child = |cast: &Cast| {
            let mut children = cast.children.iter();
            children.any(|child| Neighbour::Worker(child.who) == neighbour)
        };
        self.sessions.values().any(|session| {
            let mut casts = session.casts.values();
            session.owes.contains(&neighbour) || casts.any(|cast| is_parent(cast) || is_child(cast))
        })
    }

    fn cast(&mut self, id: CastId) -> Option<&mut Cast> {
        let session = self.sessions.get_mut(&id.session)?;
        session.casts.get_mut(&id.number)
    }

    /// The id of the node's engine; of a top, none that a worker has.
    fn id(&self) -> u64 {
        let engine = self.engine.as_ref();
        // `Runs` says where a range ends, which is one more.
        engine.map_or(u64::MAX - 1, |engine| u64::from(engine.member.worker.0))
    }

    /// As whom the node makes versions.
    fn maker(&self) -> Option<WorkerId> {
        Some(self.engine.as_ref()?.member.worker)
    }

    fn host(&self) -> Option<u32> {
        match (&self.engine, &self.top) {
            (Some(engine), _) => Some(engine.member.host),
            (None, Some(top)) => top.host,
            (None, None) => None,
        }
    }

    /// Whether an engine is on the same host.
    fn is_near(&self, worker: WorkerId) -> bool {
        let member = self.directory.get(&u64::from(worker.0));
        member.is_some_and(|member| Some(member.host) == self.host())
    }
}
