//! What servers answer.

use crate::writer::peer::Item;
use crate::writer::{Effects, Step, Writer, WriterEffect};
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

    fn acked(&mut self, transfer: Transfer, group: GroupId, number: u32, effects: &mut Effects) {
        if !self.peers.answered(Item::Push(transfer, group, number)) {
            return;
        }
        let Some(part) = self.part(transfer, group) else {
            return;
        };
        part.unacked.remove(&number);
        part.trouble = None;
        if part.unacked.is_empty() && part.step == Step::Pushing {
            self.hold(transfer, group, transfer.attempt, effects);
        }
    }

    fn refused(
        &mut self,
        server: ServerId,
        (transfer, group): (Transfer, GroupId),
        number: u32,
        reason: Refusal,
        effects: &mut Effects,
    ) {
        let item = Item::Push(transfer, group, number);
        if !self.peers.answered(item) {
            return;
        }
        if let Some(error) = Self::fatal(transfer, server, &reason) {
            return self.fail(transfer, error, effects);
        }
        let now = self.now;
        let Some(part) = self.part(transfer, group) else {
            return;
        };
        match reason {
            // Whether the rows are among those that are complete is the question.
            Refusal::Sealed => {
                part.step = Step::Asking;
                self.peers.forget(transfer, group);
                self.peers.queue_ask(transfer, group);
            }
            Refusal::Stale(_) | Refusal::Stranger(_) => {
                part.step = Step::Waiting;
                part.trouble.get_or_insert(now);
                self.peers.forget(transfer, group);
                self.ask(transfer.shuffle, effects);
            }
            _ => {
                part.trouble.get_or_insert(now);
                let numbers = [number].into();
                self.peers.queue(transfer, group, &numbers);
                self.peers.postpone(server, now, &self.config);
                if reason == Refusal::Unknown {
                    self.ask(transfer.shuffle, effects);
                }
            }
        }
    }

    fn answered(
        &mut self,
        server: ServerId,
        (transfer, group): (Transfer, GroupId),
        answer: Answer,
        effects: &mut Effects,
    ) {
        if !self.peers.answered(Item::Ask(transfer, group)) {
            return;
        }
        let now = self.now;
        let Some(part) = self.part(transfer, group) else {
            return;
        };
        if part.step != Step::Asking {
            return;
        }
        match answer {
            Answer::Have(holder) => self.hold(transfer, group, holder, effects),
            Answer::Missing => {
                part.step = Step::Pushing;
                part.trouble = None;
                let numbers = part.unacked.clone();
                self.peers.queue(transfer, group, &numbers);
            }
            Answer::Differs => {
                // The master makes everything anew.
                part.step = Step::Waiting;
                part.trouble.get_or_insert(now);
                effects.push(WriterEffect::Report(ToMaster::Differs {
                    shuffle: transfer.shuffle,
                    group,
                    map: Some(transfer.map),
                }));
            }
            Answer::Refused(Refusal::Busy | Refusal::Unknown) => {
                part.trouble.get_or_insert(now);
                self.peers.queue_ask(transfer, group);
                self.peers.postpone(server, now, &self.config);
            }
            Answer::Refused(_) => {
                part.step = Step::Waiting;
                part.trouble.get_or_insert(now);
                self.ask(transfer.shuffle, effects);
            }
        }
    }

    /// A connection is gone. What was sent on it may have come, and is sent again: that changes
    /// nothing where it has.
    pub(super) fn disconnected(&mut self, server: ServerId) {
        let now = self.now;
        for (transfer, group) in self.peers.disconnected(server, now, &self.config) {
            if let Some(part) = self.part(transfer, group) {
                part.trouble.get_or_insert(now);
            }
        }
    }
}
