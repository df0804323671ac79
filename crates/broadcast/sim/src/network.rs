//! Connections: messages arrive in order, some time after they were sent, or the connection breaks.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_broadcast::{CastId, CastResult, Event, Message, Neighbour, Outcome};

use crate::world::{Item, Pid, World};
use treadle_sim_kernel::Link;

/// What travels with a message.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    None,
    /// Bytes of a payload, by what they are bytes of.
    Payload(u64),
    /// Results, in the order of the message.
    Results(Vec<u64>),
}

/// A connection between two nodes.
#[derive(Default)]
pub(crate) struct Connection {
    /// Which of the connections between the two.
    pub(crate) generation: u32,
    pub(crate) is_open: bool,
    /// To the one and to the other.
    links: [Link; 2],
    /// Who will hear that it is there, and who has.
    notified: [bool; 2],
    seen: [bool; 2],
    /// Payloads that are under way.
    in_flight: [BTreeMap<CastId, InFlight>; 2],
}

/// What of a payload is under way on a connection.
#[derive(Default)]
struct InFlight {
    bytes: u64,
    /// How often it was asked for since nothing was.
    asked: u64,
}

impl Connection {
    /// Whether it is still the same, and not broken.
    fn is_now(&self, generation: u32) -> bool {
        self.is_open && self.generation == generation
    }
}

fn key(one: Pid, other: Pid) -> (Pid, Pid) {
    (one.min(other), one.max(other))
}

impl World {
    fn connection(&mut self, one: Pid, other: Pid) -> &mut Connection {
        self.connections.entry(key(one, other)).or_default()
    }

    pub(crate) fn dial(&mut self, from: Pid, to: Pid) {
        let wait = self.latency(from, to) * 2;
        self.kernel.schedule(wait, Item::Dial(from, to));
    }

    /// A connection is there, or will not be.
    pub(crate) fn dialled(&mut self, from: Pid, to: Pid) {
        let (Neighbour::Worker(worker), now) = (self.procs[to].neighbour, self.kernel.now()) else {
            return;
        };
        if self.kernel.cut_until(from, to).is_some() || !self.procs[to].is_alive {
            let patience = match self.procs[to].is_alive {
                true => Duration::from_millis(50),
                false => Duration::ZERO,
            };
            return self
                .kernel
                .schedule(patience, Item::Event(from, Event::Unreachable(worker)));
        }
        if !self.procs[from].is_alive {
            return;
        }
        let connection = self.connection(from, to);
        if !connection.is_open {
            *connection = Connection {
                generation: connection.generation + 1,
                is_open: true,
                links: connection.links,
                ..Connection::default()
            };
        }
        for (at, other) in [(to, from), (from, to)] {
            let neighbour = self.procs[other].neighbour;
            let connection = self.connection(from, to);
            let side = usize::from(at > other);
            if !std::mem::replace(&mut connection.notified[side], true) {
                let generation = connection.generation;
                let event = Event::Connected(neighbour);
                let at_once = connection.links[side].arrival(now);
                self.kernel
                    .schedule_at(at_once, Item::Link(at, other, generation, event));
            }
        }
    }

    /// A connection breaks; each side hears it after a while. What is under way is lost, but for what
    /// `lingers`.
    pub(crate) fn sever(&mut self, one: Pid, other: Pid, lingers: bool) {
        let Some(connection) = self.connections.get_mut(&key(one, other)) else {
            return;
        };
        if !connection.is_open {
            return;
        }
        connection.is_open = false;
        connection.in_flight = Default::default();
        let generation = connection.generation;
        if !lingers {
            self.severed.insert((key(one, other), generation));
        }
        for (at, from) in [(one, other), (other, one)] {
            let event = Event::Broken(self.procs[from].neighbour);
            let side = usize::from(at > from);
            let soon = self.kernel.now() + self.kernel.random.micros(10, 2_000);
            let connection = self.connection(one, other);
            if connection.notified[side] {
                let last = connection.links[side].arrival(soon);
                let when = if lingers { last } else { soon };
                self.kernel
                    .schedule_at(when, Item::Link(at, from, generation, event));
            }
        }
    }

    pub(crate) fn transmit(
        &mut self,
        from: Pid,
        to: Pid,
        message: Message,
        body: Body,
    ) -> Result<(), String> {
        let bytes = length(&message, self.plan.config.inline);
        let is_near = self.is_near(from, to);
        let sent = &mut self.procs[from].sent;
        *sent = (sent.0 + 1, sent.1 + bytes);
        let received = &mut self.procs[to].received;
        *received = (received.0 + 1, received.1 + bytes);
        let mut at = self.kernel.now();
        if !is_near {
            let rate = self.plan.bandwidth;
            let time = Duration::from_secs_f64(bytes as f64 / rate) + self.plan.overhead;
            let node = &mut self.procs[from];
            (_, at) = node.uplink.send(at, time);
        }
        let mut latency = self.latency(from, to);
        let (percent, most) = self.plan.late;
        if percent > 0 && self.kernel.random.chance(percent) {
            latency += self.kernel.random.micros(0, most.as_micros() as u64);
        }
        self.oracle.sent(from, &message, &body);
        let window = self.plan.config.window;
        let side = usize::from(to > from);
        let connection = self.connection(from, to);
        // What is sent on an earlier connection, before it is known to be broken, is lost.
        if !connection.is_open || !connection.seen[usize::from(from > to)] {
            return Ok(());
        }
        if let Message::Chunk { cast, length, .. } = &message {
            let in_flight = connection.in_flight[side].entry(*cast).or_default();
            in_flight.bytes += u64::from(*length);
            // A child that asks again does not take back what is under way: there may be a window
            // more each time, and one that it acknowledges by what came twice.
            if in_flight.bytes > (2 + in_flight.asked) * window {
                let bytes = in_flight.bytes;
                return Err(format!("{bytes} bytes of {cast:?} are under way to {to}"));
            }
        }
        let (at, generation) = (
            connection.links[side].arrival(at + latency),
            connection.generation,
        );
        self.kernel
            .schedule_at(at, Item::Deliver(from, to, generation, message, body));
        Ok(())
    }

    /// A node has heard that the connection is there.
    pub(crate) fn see(&mut self, at: Pid, other: Pid, generation: u32) {
        let connection = self.connection(at, other);
        if connection.generation == generation {
            connection.seen[usize::from(at > other)] = true;
        }
    }

    /// Whether a message that was sent on a connection still arrives.
    pub(crate) fn arrives(
        &mut self,
        from: Pid,
        to: Pid,
        generation: u32,
        message: &Message,
    ) -> bool {
        let side = usize::from(to > from);
        if let Message::Chunk { cast, length, .. } = message {
            let connection = self.connection(from, to);
            if connection.is_now(generation)
                && let Some(in_flight) = connection.in_flight[side].get_mut(cast)
            {
                in_flight.bytes -= u64::from(*length);
                if in_flight.bytes == 0 {
                    connection.in_flight[side].remove(cast);
                }
            }
        }
        if let Message::Want { cast, .. } = message {
            let connection = self.connection(from, to);
            if connection.is_now(generation) {
                connection.in_flight[1 - side]
                    .entry(*cast)
                    .or_default()
                    .asked += 1;
            }
        }
        !self.severed.contains(&(key(from, to), generation))
    }

    pub(crate) fn latency(&mut self, from: Pid, to: Pid) -> Duration {
        let (low, high) = match self.is_near(from, to) {
            true => self.plan.local,
            false => self.plan.latency,
        };
        self.kernel.random.micros(low, high)
    }

    pub(crate) fn is_near(&self, one: Pid, other: Pid) -> bool {
        let host = self.procs[one].host;
        host.is_some() && host == self.procs[other].host
    }
}

/// Bytes of a message on the wire, about.
fn length(message: &Message, inline: u64) -> u64 {
    let length = |result: &CastResult| match result.outcome {
        Outcome::Finished { size } => 16 + size * result.engines.len(),
        _ => 32,
    };
    32 + match message {
        Message::Introduce(members) => 40 * members.len() as u64,
        Message::Offer(offer) => {
            let inline = if offer.size <= inline { offer.size } else { 0 };
            inline + 8 * (offer.members.ranges().len() + offer.previous.0.len()) as u64 + 64
        }
        Message::Chunk { length, .. } => u64::from(*length),
        Message::Results { results, .. } => results.iter().map(length).sum(),
        Message::Outputs { outputs, .. } => outputs.iter().map(|o| 16 + o.text.len() as u64).sum(),
        _ => 16,
    }
}
