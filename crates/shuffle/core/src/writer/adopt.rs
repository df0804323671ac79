//! A new plan: which parts a transfer keeps, and which it gathers anew.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::writer::TransferError;
use crate::writer::part::{Part, Step};
use crate::writer::peer::Item;
use crate::writer::{Effects, Writer, WriterEffect};
use crate::{GroupId, Plan, ToMaster, ToServer, Transfer};

impl Writer {
    pub(super) fn plan(&mut self, plan: &Arc<Plan>, effects: &mut Effects) {
        let shuffle = plan.shuffle;
        self.asked.remove(&shuffle);
        let known = self.plans.get(&shuffle);
        if known.is_some_and(|known| known.generation > plan.generation) {
            return;
        }
        self.plans.insert(shuffle, plan.clone());
        for transfer in self.transfers_of(shuffle) {
            self.adopt(transfer, plan, effects);
        }
    }

    /// A transfer goes by this plan from now on.
    pub(super) fn adopt(&mut self, transfer: Transfer, plan: &Plan, effects: &mut Effects) {
        let Some(running) = self.transfers.get_mut(&transfer) else {
            return;
        };
        running.began.get_or_insert(plan.generation);
        let mut parts = running.parts.iter();
        let other = parts.find(|(_, part)| part.differs && plan.is_final);
        if let Some((&group, _)) = other {
            if !running.replaces {
                return self.fail(transfer, TransferError::Late(transfer), effects);
            }
            effects.push(WriterEffect::Report(ToMaster::Differs {
                shuffle: transfer.shuffle,
                group,
                map: Some(transfer.map),
                is_late: false,
            }));
        }
        let parts = running.parts.iter();
        let goes = parts.filter(|&(&id, part)| {
            // What a closed group does not have whole goes whole to the next one.
            let group = plan.group(id);
            !group.is_some_and(|group| group.takes() || part.step == Step::Held)
        });
        let gone: Vec<GroupId> = goes.map(|(&id, _)| id).collect();
        for part in gone {
            if plan.group(part).is_some() {
                self.abandon(transfer, part, effects);
            }
            self.drop_part(transfer, part, effects);
        }
        self.drop_copies(transfer, plan);
        self.ask_copies(transfer, plan);
        let Some(running) = self.transfers.get_mut(&transfer) else {
            return;
        };
        let mut ready = Vec::new();
        let sections = running
            .parts
            .keys()
            .filter_map(|&id| Some((plan.group(id)?.section(), id)));
        let sections: BTreeMap<u64, GroupId> = sections.collect();
        for group in plan.groups.iter().filter(|group| group.is_open) {
            let Some(&id) = sections.get(&group.section()) else {
                running.parts.insert(group.id, Part::new(transfer, group));
                effects.push(WriterEffect::Gather {
                    transfer,
                    group: group.id,
                    partitions: group.partitions.clone(),
                });
                continue;
            };
            let Some(part) = running.parts.get_mut(&id) else {
                continue;
            };
            if part.step == Step::Waiting {
                part.step = Step::Pushing;
                part.differs = false;
                part.waits = None;
                self.peers.queue(part.pushes(transfer, id));
            }
            match part.step {
                Step::Pushing if part.is_pushed() => ready.push((id, true)),
                Step::Asking => ready.push((id, false)),
                _ => {}
            }
        }
        for (id, is_pushed) in ready {
            match is_pushed {
                true => self.hold(transfer, id, id, transfer.attempt, effects),
                false => self.resolve(transfer, id, effects),
            }
        }
        self.finish(transfer, effects);
    }

    /// Copies that are gone get nothing, and answer nothing.
    fn drop_copies(&mut self, transfer: Transfer, plan: &Plan) {
        let Some(running) = self.transfers.get_mut(&transfer) else {
            return;
        };
        let is_there = |copy: GroupId| plan.group_of_copy(copy).is_some();
        for (&id, part) in &mut running.parts {
            let copies = part.copies.iter().map(|copy| copy.id);
            let asked = part.asked.iter().map(|(copy, _)| *copy);
            for copy in copies.chain(asked).filter(|&copy| !is_there(copy)) {
                self.peers.forget(transfer, id, copy);
            }
            part.copies.retain(|copy| is_there(copy.id));
            part.asked.retain(|(copy, _)| is_there(*copy));
        }
    }

    /// Copies that have come since others were asked are asked, too: they were filled from one of those, which
    /// may have less than another.
    fn ask_copies(&mut self, transfer: Transfer, plan: &Plan) {
        let Some(running) = self.transfers.get_mut(&transfer) else {
            return;
        };
        let asking = running.parts.iter();
        let asking = asking.filter(|(_, part)| part.step == Step::Asking);
        let asked = asking.filter_map(|(&id, part)| {
            Some((id, running.asks(plan, plan.group(id)?, part.is_final)))
        });
        for (id, copies) in asked.collect::<Vec<_>>() {
            let Some(part) = running.parts.get_mut(&id) else {
                continue;
            };
            for copy in copies {
                if part.asked.iter().all(|(other, _)| *other != copy) {
                    part.asked.push((copy, None));
                    self.peers.queue([Item::ask(transfer, id, copy)]);
                }
            }
        }
    }

    /// The servers may drop what they have of a part.
    fn abandon(&mut self, transfer: Transfer, part: GroupId, effects: &mut Effects) {
        let running = self.transfers.get(&transfer);
        let pushed = running.map(|running| running.pushed()).unwrap_or_default();
        let pushed = pushed.into_iter().filter(|(id, _)| *id == part);
        for group in pushed.flat_map(|(_, copies)| copies) {
            effects.push(WriterEffect::Send {
                to: group.server,
                message: ToServer::Abandon { group, transfer },
            });
        }
    }
}
