//! The virtual control connection, and what it does in place of a peer with a guard missing.

use std::time::Duration;

use treadle_transfer::{Event, Message};

use super::side::Inbound;
use super::world::{Item, Mutation, Packet, World};

impl World {
    pub(crate) fn tell(&mut self, from: usize, message: Message) {
        match (self.mutation, &message) {
            (Mutation::NoAnswer, Message::Accept { .. } | Message::Refuse { .. }) => return,
            (Mutation::Reorder, Message::Offer { .. }) => {
                match self.held_offer[from].take() {
                    None => self.held_offer[from] = Some(message),
                    Some(held) => {
                        self.packet(from, Packet::Message(message));
                        self.packet(from, Packet::Message(held));
                    }
                }
                return;
            }
            (Mutation::PlacedEarly, Message::Accept { object }) => {
                let object = *object;
                self.packet(from, Packet::Message(message));
                self.packet(from, Packet::Message(Message::Placed { object }));
                return;
            }
            (Mutation::FreeCredit, Message::Credit { .. }) => {
                self.packet(from, Packet::Message(Message::Credit { bytes: 1 << 40 }));
                return;
            }
            (Mutation::RequeueEarly, Message::Broken { stripe }) => {
                let (stripe, extents, corrupt) = (*stripe, 0, false);
                let report = Message::Report {
                    stripe,
                    extents,
                    corrupt,
                };
                self.schedule(from, Duration::ZERO, Item::Control(Packet::Message(report)));
            }
            _ => {}
        }
        let message = match message {
            Message::Report {
                stripe,
                mut extents,
                corrupt,
            } => {
                let handed = self
                    .stripes
                    .get(&(1 - from, stripe))
                    .map_or(0, |s| s.handed);
                match self.mutation {
                    Mutation::ReportAll => extents = handed,
                    Mutation::ReportLess => extents = extents.saturating_sub(1),
                    _ => {}
                }
                Message::Report {
                    stripe,
                    extents,
                    corrupt,
                }
            }
            other => other,
        };
        self.packet(from, Packet::Message(message));
    }

    pub(crate) fn packet(&mut self, from: usize, packet: Packet) {
        if self.control_cut {
            return;
        }
        let (low, high) = self.plan.network.control;
        let delay = self.random.micros(low, high);
        let at = (self.now + delay).max(self.sides[from].control_arrival);
        self.sides[from].control_arrival = at;
        self.schedule_at(1 - from, at, Item::Control(packet));
    }

    pub(crate) fn told(&mut self, side: usize, message: Message) -> Result<(), String> {
        if let Message::Offer {
            object,
            regions,
            cost,
            shared,
        } = &message
        {
            let inbound = Inbound::new(regions, *cost, *shared);
            self.sides[side].inbox.insert(*object, inbound);
        }
        self.event(side, Event::Told(message))
    }
}
