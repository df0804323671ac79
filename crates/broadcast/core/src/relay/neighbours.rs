//! Who is there, and who is not any more.

use alloc::vec::Vec;
use treadle_types::{Cause, ClientId, WorkerId};

use crate::Guard;
use crate::relay::Relay;
use crate::relay::cast::HOPELESS;
use crate::relay::timers::Timer;
use crate::{CastId, Effect, Effects, Neighbour, Runs};

impl Relay {
    pub(super) fn connected(&mut self, who: Neighbour, out: &mut Effects) {
        if let Neighbour::Worker(worker) = who {
            self.avoided.remove(&u64::from(worker.0));
            if Guard::Dead.holds() && self.is_gone(who) {
                return;
            }
        }
        let link = self.links.entry(who).or_default();
        (link.is_connected, link.is_silent) = (true, false);
        link.heard = self.now;
        if let Neighbour::Worker(worker) = who {
            for id in self.all_casts() {
                if self.cast(id).is_some_and(|cast| cast.child(who).is_some()) {
                    self.send_offers(id, worker, out);
                }
            }
        }
    }

    pub(super) fn broken(&mut self, who: Neighbour, out: &mut Effects) {
        if self.links.remove(&who).is_some() {
            self.lose_neighbour(who, 1, out);
        }
    }

    pub(super) fn unreachable(&mut self, worker: WorkerId, out: &mut Effects) {
        let who = Neighbour::Worker(worker);
        // It may have connected from its side meanwhile.
        if self.links.get(&who).is_some_and(|link| !link.is_connected) {
            self.links.remove(&who);
            let until = self.now + self.config.ask;
            self.avoided.insert(u64::from(worker.0), until);
            self.lose_neighbour(who, HOPELESS, out);
        }
    }

    fn lose_neighbour(&mut self, who: Neighbour, weight: u32, out: &mut Effects) {
        for session in self.sessions.values_mut() {
            session.owes.remove(&who);
        }
        for id in self.all_casts() {
            let Some(cast) = self.cast(id) else { continue };
            let parents = cast.parents.len();
            cast.parents.retain(|parent| parent.who != who);
            if cast.parents.len() < parents && cast.payload.source == Some(who) {
                self.lose_source(id, out);
            }
            if let Neighbour::Worker(worker) = who {
                self.lose_child(id, worker, weight, out);
            }
        }
    }

    /// Whether the scheduler has said that a neighbour is gone.
    pub(super) fn is_gone(&self, who: Neighbour) -> bool {
        match who {
            Neighbour::Worker(worker) => self.gone.contains(u64::from(worker.0)),
            Neighbour::Top(client) => self.gone_clients.contains(u64::from(client.0)),
        }
    }

    /// The scheduler says that a worker is gone: it is no member of anything any more.
    pub(super) fn gone(&mut self, worker: WorkerId, cause: &Cause, out: &mut Effects) {
        let engine = u64::from(worker.0);
        if self.gone.contains(engine) {
            return;
        }
        self.gone.insert(engine);
        self.lose(worker, cause, out);
        let only = Runs::one(engine);
        if self.top.is_none() {
            for id in self.all_casts() {
                let Some(session) = self.sessions.get_mut(&id.session) else {
                    continue;
                };
                let Some(cast) = session.casts.get_mut(&id.number) else {
                    continue;
                };
                if cast.waiting.contains(engine) {
                    cast.waiting.remove(engine);
                    cast.members.remove(engine);
                    for child in &mut cast.children {
                        child.take(&only, None);
                    }
                    for parent in &mut cast.parents {
                        parent.asked.remove(engine);
                    }
                    // The scheduler tells parents that it is gone. What waited for its result goes up now.
                    session.dirty.insert(id.number);
                }
            }
        }
        let who = Neighbour::Worker(worker);
        self.links.remove(&who);
        self.lose_neighbour(who, HOPELESS, out);
        self.directory.remove(&engine);
        self.known.remove(engine);
        self.avoided.remove(&engine);
    }

    /// The scheduler says that a client is gone: so is everything of its session.
    pub(super) fn client_gone(&mut self, client: ClientId, out: &mut Effects) {
        if self.top.is_some() {
            return;
        }
        self.gone_clients.insert(u64::from(client.0));
        self.links.remove(&Neighbour::Top(client));
        let Some(session) = self.sessions.remove(&client) else {
            return;
        };
        for &number in session.casts.keys() {
            let session = client;
            self.timers.cancel(Timer::Stall(CastId { session, number }));
        }
        for timer in [
            Timer::Flush(client),
            Timer::Settle(client),
            Timer::Ask(client),
        ] {
            self.timers.cancel(timer);
        }
        if let Some(engine) = &self.engine
            && let Some(cast) = engine.running
            && cast.session == client
        {
            let interrupt = true;
            out.push(Effect::Stop { cast, interrupt });
        }
        out.push(Effect::DropSession(client));
    }

    pub(super) fn all_casts(&self) -> Vec<CastId> {
        let sessions = self.sessions.iter();
        let casts = sessions.flat_map(|(&session, known)| {
            let numbers = known.casts.keys();
            numbers.map(move |&number| CastId { session, number })
        });
        casts.collect()
    }
}
