//! The virtual control connection, and what it does in place of a peer with a guard missing.

use std::time::Duration;

use treadle_transfer::{Event, Message};

use super::side::Inbound;
use super::world::{Guard, Item, Packet, World};

impl World {
    pub(crate) fn tell(&mut self, from: usize, message: Message) {
        match &message {
            Message::Accept { .. } | Message::Refuse { .. } if !Guard::NoAnswer.holds() => return,
            Message::Offer { .. } if !Guard::Reorder.holds() => {
                match self.held_offer[from].take() {
                    None => self.held_offer[from] = Some(message),
                    Some(held) => {
                        self.packet(from, Packet::Message(message));
                        self.packet(from, Packet::Message(held));
                    }
                }
                return;
            }
            Message::Accept { object } if !Guard::PlacedEarly.holds() => {
                let object = *object;
                self.packet(from, Packet::Message(message));
                self.packet(from, Packet::Message(Message::Placed { object }));
                return;
            }
            Message::Credit { .. } if !Guard::FreeCredit.holds() => {
                self.packet(from, Packet::Message(Message::Credit { bytes: 1 << 40 }));
                return;
            }
            Message::Broken { stripe } if !Guard::RequeueEarly.holds() => {
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
                if !Guard::ReportAll.holds() {
                    extents = handed;
                }
                extents = extents.saturating_sub(u64::from(!Guard::ReportLess.holds()));
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
        let delay = self.kernel.random.micros(low, high);
        let at = self.sides[from].control.arrival(self.kernel.now() + delay);
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
        self.event(side, Event::Received(message))
    }
}
