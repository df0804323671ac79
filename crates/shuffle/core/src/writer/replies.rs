//! What servers answer.

use crate::config::RESENDS;
use crate::writer::part::{Part, Resolved, Step};
use crate::writer::peer::Item;
use crate::writer::{Effects, Writer, WriterEffect};
use crate::{Answer, FromServer, GroupId, Refusal, ServerId, ToMaster, Transfer};

impl Writer {
    pub(super) fn hear(&mut self, from: ServerId, message: FromServer, effects: &mut Effects) {
        match message {
            FromServer::Acked {
                shuffle,
                group,
                batch,
            } => {
                let transfer = Transfer {
                    shuffle,
                    map: batch.map,
                    attempt: batch.attempt,
                };
                self.acked(transfer, group, batch.number, effects);
            }
            FromServer::Refused {
                shuffle,
                group,
                batch,
                reason,
            } => {
                let transfer = Transfer {
                    shuffle,
                    map: batch.map,
                    attempt: batch.attempt,
                };
                self.refused(from, (transfer, group), batch.number, reason, effects);
            }
            FromServer::Answer {
                group,
                transfer,
                answer,
            } => self.answered(from, (transfer, group), answer, effects),
            FromServer::Rows { .. } | FromServer::Unread { .. } => {}
        }
    }

    fn acked(&mut self, transfer: Transfer, copy: GroupId, number: u32, effects: &mut Effects) {
        let Some((id, _)) = self.part_of(transfer, copy) else {
            return;
        };
        let item = Item::push(transfer, id, copy, number);
        let Some(push) = self.peers.answered(item, self.now, &self.config) else {
            return;
        };
        let server = copy.server;
        if let Some(times) = self.peers.taken(server, push, self.now, &self.config) {
            self.slow(server, times, effects);
        }
        let Some(part) = self.part(transfer, id) else {
            return;
        };
        if let Some(copy) = part.copy_mut(copy) {
            copy.unacked.remove(&number);
            copy.is_fine();
        }
        if part.is_pushed() && part.step == Step::Pushing {
            self.hold(transfer, id, id, transfer.attempt, effects);
        }
    }

    /// Whether something that was answered was awaited.
    fn answered_item(&mut self, item: Item) -> bool {
        let answered = self.peers.answered(item, self.now, &self.config);
        self.peers.refused(item.at.server, self.now);
        answered.is_some()
    }

    fn part_of(&mut self, transfer: Transfer, copy: GroupId) -> Option<(GroupId, &mut Part)> {
        let running = self.transfers.get_mut(&transfer)?;
        let id = running.part_of(copy)?;
        Some((id, running.parts.get_mut(&id)?))
    }

    fn refused(
        &mut self,
        server: ServerId,
        (transfer, copy): (Transfer, GroupId),
        number: u32,
        reason: Refusal,
        effects: &mut Effects,
    ) {
        let Some((id, _)) = self.part_of(transfer, copy) else {
            return;
        };
        let item = Item::push(transfer, id, copy, number);
        if !self.answered_item(item) {
            return;
        }
        let now = self.now;
        let Some(part) = self.part(transfer, id) else {
            return;
        };
        if reason == Refusal::Malformed
            && let Some(copy) = part.copy_mut(copy)
            && copy.malformed < RESENDS
        {
            copy.malformed += 1;
            copy.trouble.get_or_insert(now);
            self.peers.queue([item]);
            return self.peers.postpone(server, now, &self.config);
        }
        let spoils = matches!(
            reason,
            Refusal::Damaged | Refusal::Malformed | Refusal::NoRoom(_)
        );
        if part.may_poison() && spoils {
            return self.poison(transfer, id, copy, effects);
        }
        if let Some(error) = Self::fatal(transfer, server, &reason) {
            return self.fail(transfer, error, effects);
        }
        let Some(part) = self.part(transfer, id) else {
            return;
        };
        match reason {
            // Whether the rows are among those that are complete is the question.
            Refusal::Sealed => self.ask_all(transfer, id, effects),
            Refusal::Alone => {
                self.peers.alone(server);
                self.peers.queue([item]);
            }
            Refusal::Sleep(pause) => {
                // A failure before counts no more, however long the pause is.
                if let Some(copy) = part.copy_mut(copy) {
                    copy.is_fine();
                }
                self.peers.sleep(server, transfer.shuffle, now + pause);
                self.peers.queue([item]);
            }
            Refusal::Stale(_) | Refusal::Stranger(_) => {
                part.step = Step::Waiting;
                part.waits.get_or_insert(now);
                self.forget(transfer, id);
                self.ask(transfer.shuffle, effects);
            }
            _ => {
                if let Some(copy) = part.copy_mut(copy) {
                    match reason {
                        Refusal::Busy => {
                            copy.trouble = None;
                            copy.busy.get_or_insert(now);
                        }
                        _ => _ = copy.trouble.get_or_insert(now),
                    }
                }
                self.peers.queue([item]);
                self.peers.postpone(server, now, &self.config);
                if reason == Refusal::Unknown {
                    self.ask(transfer.shuffle, effects);
                }
            }
        }
    }

    /// A group is complete: one of those with these partitions has the rows of the map.
    fn ask_all(&mut self, transfer: Transfer, id: GroupId, effects: &mut Effects) {
        self.forget(transfer, id);
        let running = self.transfers.get(&transfer);
        let plan = self.plans.get(&transfer.shuffle);
        let chain = running.zip(plan).and_then(|(running, plan)| {
            let group = plan.group(id)?;
            Some(running.asks(plan, group, true))
        });
        let chain = chain.unwrap_or_default();
        let Some(part) = self.part(transfer, id) else {
            return;
        };
        part.is_final = true;
        part.ask(chain);
        let questions = part.questions(transfer, id);
        self.peers.queue(questions);
        self.resolve(transfer, id, effects);
    }

    fn answered(
        &mut self,
        server: ServerId,
        (transfer, copy): (Transfer, GroupId),
        answer: Answer,
        effects: &mut Effects,
    ) {
        let Some((id, _)) = self.part_of(transfer, copy) else {
            return;
        };
        let item = Item::ask(transfer, id, copy);
        if !self.answered_item(item) {
            return;
        }
        let now = self.now;
        let Some(part) = self.part(transfer, id) else {
            return;
        };
        if part.step != Step::Asking {
            return;
        }
        if matches!(answer, Answer::Refused(Refusal::Busy | Refusal::Unknown)) {
            part.waits.get_or_insert(now);
            self.peers.queue([item]);
            self.peers.postpone(server, now, &self.config);
            return;
        }
        if let Some(copy) = part.copy_mut(copy) {
            copy.is_fine();
        }
        let mut asked = part.asked.iter_mut();
        if let Some((_, place)) = asked.find(|(other, _)| *other == copy) {
            *place = Some(answer);
        }
        self.resolve(transfer, id, effects);
    }

    /// Goes on, if all copies that were asked have answered.
    pub(super) fn resolve(&mut self, transfer: Transfer, id: GroupId, effects: &mut Effects) {
        let now = self.now;
        let Some(plan) = self.plans.get(&transfer.shuffle).cloned() else {
            return;
        };
        let Some(part) = self
            .part(transfer, id)
            .filter(|part| part.step == Step::Asking)
        else {
            return;
        };
        match part.resolve(&plan) {
            Resolved::Open => {}
            Resolved::Have(group, holder) => self.hold(transfer, id, group, holder, effects),
            Resolved::Missing => {
                part.step = Step::Pushing;
                part.asked.clear();
                part.waits = None;
                let pushes = part.pushes(transfer, id);
                self.peers.queue(pushes);
                if self.part(transfer, id).is_some_and(|part| part.is_pushed()) {
                    self.hold(transfer, id, id, transfer.attempt, effects);
                }
            }
            Resolved::Differs(group) => {
                // The master makes everything anew, or says that what was committed stays.
                part.step = Step::Waiting;
                part.waits.get_or_insert(now);
                part.differs = true;
                self.forget(transfer, id);
                let running = self.transfers.get(&transfer);
                let is_late = running.is_some_and(|running| !running.replaces);
                effects.push(WriterEffect::Report(ToMaster::Differs {
                    shuffle: transfer.shuffle,
                    group,
                    map: Some(transfer.map),
                    is_late,
                }));
            }
            Resolved::Sealed => {
                part.differs = true;
                let copy = part.copies.first().map_or(id, |copy| copy.id);
                self.poison(transfer, id, copy, effects);
            }
            Resolved::Moved => {
                part.step = Step::Waiting;
                part.waits.get_or_insert(now);
                self.forget(transfer, id);
                self.ask(transfer.shuffle, effects);
            }
        }
    }

    /// A connection is gone. What was sent on it may have come, and is sent again: that changes
    /// nothing where it has.
    pub(super) fn disconnected(&mut self, server: ServerId) {
        let now = self.now;
        for (transfer, id, copy) in self.peers.disconnected(server, now, &self.config) {
            let Some(part) = self.part(transfer, id) else {
                continue;
            };
            match part.copy_mut(copy) {
                Some(copy) => copy.trouble.get_or_insert(now),
                None => part.waits.get_or_insert(now),
            };
        }
    }
}
