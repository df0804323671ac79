//! What lies between a process and the registry: sessions, questions, answers and changes under way.

use std::time::Duration;

use treadle_shuffle_registry::{Failure, RegisteringEvent, Rival, WatchingEvent};

use super::{Ask, Event, HEARTBEAT, Item, Link, Who, World};
use crate::registry::Changed;

impl World {
    pub(super) fn link(&mut self, who: Who) -> &mut Link {
        match who {
            Who::Server(server) => &mut self.servers[server].link,
            Who::Master(master) => &mut self.masters[master].link,
        }
    }

    pub(super) fn is_reached(&self, who: Who) -> bool {
        let now = self.kernel.now();
        self.registry.is_up && self.cut_until.get(&who).is_none_or(|until| *until <= now)
    }

    pub(super) fn latency(&mut self) -> Duration {
        self.kernel.random.micros(100, 20_000)
    }

    /// Sends something to a process. What goes to one process keeps its order.
    pub(super) fn send(&mut self, who: Who, event: Event) {
        let epoch = self.link(who).epoch;
        self.kernel
            .schedule(Duration::from_millis(10), Item::Event(who, epoch, event));
    }

    pub(super) fn ask(&mut self, who: Who, ask: Ask) {
        let (latency, epoch) = (self.latency(), self.link(who).epoch);
        self.kernel.schedule(latency, Item::Ask(who, epoch, ask));
    }

    /// The registry is asked something.
    pub(super) fn asked(&mut self, who: Who, epoch: u64, ask: Ask) {
        if self.link(who).epoch != epoch {
            return;
        }
        let session = self.link(who).session;
        let now = self.kernel.now();
        let is_known = session.is_some_and(|session| self.registry.hear(session, now));
        if !self.is_reached(who) || (!is_known && !matches!(ask, Ask::Connect)) {
            let failure = Failure {
                why: "no answer".to_owned(),
                is_refusal: false,
            };
            let event = match who {
                Who::Server(_) => Event::Server(RegisteringEvent::Failed(failure)),
                Who::Master(_) => Event::Master(WatchingEvent::Failed(failure)),
            };
            let late = self.config.answer;
            self.kernel.schedule(late, Item::Event(who, epoch, event));
            return;
        }
        match ask {
            Ask::Connect => {
                let session = self.registry.begin(now);
                self.send(who, Event::Connected(session));
            }
            Ask::List => {
                let entries = self.registry.list();
                let unreadable = Vec::new();
                self.send(
                    who,
                    Event::Master(WatchingEvent::Listed {
                        entries,
                        unreadable,
                    }),
                );
            }
            Ask::Rivals(name) => {
                let nodes = self.registry.list().into_iter();
                let rivals = nodes.filter(|entry| entry.name == name);
                let rivals = rivals.map(|entry| Rival {
                    incarnation: entry.incarnation,
                    address: entry.address.clone(),
                });
                let rivals = RegisteringEvent::Rivals(rivals.collect());
                self.send(who, Event::Server(rivals));
            }
            Ask::Write(entry) => {
                let written = session.and_then(|session| self.registry.write(session, entry));
                self.publish(written.unwrap_or_default());
                self.send(who, Event::Server(RegisteringEvent::Written));
            }
            Ask::Remove(key) => {
                let gone = self.registry.remove(&key);
                self.publish(gone);
                if let Who::Server(server) = who
                    && self.servers[server].entry.key() == key
                {
                    self.send(who, Event::Server(RegisteringEvent::Removed));
                }
            }
        }
    }

    /// Tells the masters that watch.
    pub(super) fn publish(&mut self, changes: Vec<Changed>) {
        for change in changes {
            for number in 0..self.masters.len() {
                let who = Who::Master(number);
                if self.is_reached(who) && self.link(who).is_connected {
                    let event = match change.clone() {
                        Changed::Put(entry) => WatchingEvent::Put(entry),
                        Changed::Gone(key) => WatchingEvent::Gone(key),
                    };
                    self.send(who, Event::Master(event));
                }
            }
        }
    }

    pub(super) fn heartbeat(&mut self, who: Who) -> Result<(), String> {
        if let Who::Server(server) = who
            && !self.servers[server].is_alive
        {
            return Ok(());
        }
        self.kernel.schedule(HEARTBEAT, Item::Heartbeat(who));
        let now = self.kernel.now();
        let is_reached = self.is_reached(who);
        let before = self.link(who).before;
        if let Some(before) = before.filter(|_| is_reached && self.keeps) {
            self.registry.hear(before, now);
        }
        let Some(session) = self.link(who).session else {
            return Ok(());
        };
        let was_connected = self.link(who).is_connected;
        if !is_reached {
            self.link(who).is_connected = false;
            if was_connected {
                return self.happens(who, interrupted(who));
            }
        } else if !self.registry.hear(session, now) {
            self.link(who).epoch += 1;
            self.link(who).session = None;
            return self.happens(who, ended(who));
        } else if !was_connected {
            self.link(who).is_connected = true;
            return self.happens(who, resumed(who));
        }
        Ok(())
    }

    /// A session is left for another.
    pub(super) fn put_aside(&mut self, who: Who) {
        let link = self.link(who);
        link.epoch += 1;
        let session = link.session.take();
        link.before = link.before.or(session);
    }

    /// The session that was left is closed.
    pub(super) fn close(&mut self, who: Who) {
        let before = self.link(who).before.take();
        if self.is_reached(who)
            && let Some(session) = before
        {
            let gone = self.registry.end(session);
            self.publish(gone);
        }
    }
}

fn interrupted(who: Who) -> Event {
    let why = "cut".to_owned();
    match who {
        Who::Server(_) => Event::Server(RegisteringEvent::Interrupted(why)),
        Who::Master(_) => Event::Master(WatchingEvent::Interrupted(why)),
    }
}

fn resumed(who: Who) -> Event {
    match who {
        Who::Server(_) => Event::Server(RegisteringEvent::Resumed),
        Who::Master(_) => Event::Master(WatchingEvent::Resumed),
    }
}

fn ended(who: Who) -> Event {
    let why = "the session has ended".to_owned();
    match who {
        Who::Server(_) => Event::Server(RegisteringEvent::Ended(why)),
        Who::Master(_) => Event::Master(WatchingEvent::Ended(why)),
    }
}
