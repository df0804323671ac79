//! An engine among neighbours.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeSet;
use std::time::Duration;

use treadle_broadcast::{
    CastId, Config, Effect, Effects, Event, Me, Member, Message, Neighbour, Offer, Previous, Relay,
    Runs, Settled, Shape, Version, Violation,
};
use treadle_types::{ClientId, WorkerId};

pub(crate) const SESSION: ClientId = ClientId(0);
pub(crate) const TOP: Neighbour = Neighbour::Top(SESSION);
pub(crate) const OUTSTANDING: usize = 3;

pub(crate) fn member(id: u32) -> Member {
    Member {
        worker: WorkerId(id),
        host: id / 2,
        address: "host:1".into(),
    }
}

pub(crate) fn worker(id: u32) -> Neighbour {
    Neighbour::Worker(WorkerId(id))
}

pub(crate) fn config() -> Config {
    Config {
        inline: 10,
        window: 64,
        outstanding: OUTSTANDING,
        introduced: 1024,
        ..Config::default()
    }
}

/// A fresh offer of the top.
pub(crate) fn offer(number: u64, members: Runs, size: u64) -> Offer {
    let count = members.len() as u32;
    Offer {
        cast: CastId {
            session: SESSION,
            number,
        },
        previous: Previous([(count, number.saturating_sub(1))].into_iter().collect()),
        members,
        size,
        shape: Shape {
            degree: 2,
            local: 2,
            chunk: 16,
            chosen: false,
        },
        version: Version::default(),
        fresh: true,
        unordered: false,
        mapped: false,
        aborted: false,
        settled: Settled::default(),
    }
}

/// Engine 0, to whom the top and all others are connected.
pub(crate) struct Engine {
    pub(crate) relay: Relay,
    /// The ordered cast that runs.
    pub(crate) running: Option<CastId>,
    /// Unordered casts that run beside it.
    pub(crate) beside: BTreeSet<CastId>,
    unordered: BTreeSet<CastId>,
    pub(crate) now: Duration,
}

impl Engine {
    pub(crate) fn new() -> Self {
        let mut engine = Self {
            relay: Relay::new(Me::Engine(member(0)), config()),
            running: None,
            beside: BTreeSet::new(),
            unordered: BTreeSet::new(),
            now: Duration::ZERO,
        };
        for who in [TOP, worker(1), worker(2), worker(3), worker(4)] {
            engine.handle(Event::Connected(who)).unwrap();
        }
        let members = (0..5).map(member).collect();
        engine.tell(TOP, Message::Introduce(members)).unwrap();
        engine
    }

    pub(crate) fn handle(&mut self, event: Event) -> Result<Vec<Effect>, Violation> {
        self.now += Duration::from_millis(1);
        let offered = match &event {
            Event::Message(_, Message::Offer(offer)) => Some((offer.cast, offer.unordered)),
            _ => None,
        };
        let mut effects = Effects::default();
        let result = self.relay.handle(event, self.now, &mut effects);
        self.relay.check().unwrap();
        // Of two sessions.
        assert!(self.relay.casts() <= 2 * OUTSTANDING);
        if let Some((cast, true)) = offered
            && result.is_ok()
        {
            self.unordered.insert(cast);
        }
        for effect in &effects.0 {
            if let Effect::Run(cast) = effect {
                if self.unordered.contains(cast) {
                    assert!(self.beside.insert(*cast), "{cast:?} runs twice at once");
                } else {
                    assert_eq!(self.running.replace(*cast), None);
                }
            }
        }
        result.map(|()| effects.0)
    }

    pub(crate) fn tell(
        &mut self,
        from: Neighbour,
        message: Message,
    ) -> Result<Vec<Effect>, Violation> {
        self.handle(Event::Message(from, message))
    }
}

pub(crate) fn offers(offer: Offer) -> Message {
    Message::Offer(Box::new(offer))
}
