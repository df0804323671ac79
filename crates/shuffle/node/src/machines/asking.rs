//! What the writer and the reader here want of their host: rows that are gathered, and messages to servers.

use std::sync::Arc;

use bytes::Bytes;
use treadle_reactor::awake;
use treadle_shuffle::{
    FromServer, GroupId, LinkId, Push, Reader, ReaderEffect, ReaderEvent, Refusal, ServerEvent,
    ServerId, ToMaster, ToServer, Transfer, WriterEffect, WriterEvent,
};

use crate::Callbacks;
use crate::machines::{Gathered, Machines, Step};
use crate::outgoing::Reply;

impl Machines {
    /// Handles a message of a server.
    pub(crate) fn replied(&mut self, from: ServerId, (message, pieces): Reply) {
        if let FromServer::Unread { reason, .. } | FromServer::Refused { reason, .. } = &message
            && matches!(reason, Refusal::Sleep(_))
        {
            self.stats.slept += 1;
        }
        match message {
            FromServer::Rows { read, .. } => {
                let read = Reader::read_of(read);
                self.tasks.came(read, from, message, pieces);
            }
            FromServer::Unread { .. } => {
                let event = ReaderEvent::Server {
                    from,
                    message,
                    computed: Vec::new(),
                };
                self.steps.push_back(Step::Reader(event));
            }
            _ => {
                // Of the writer's pushes and of those that fill another copy: each knows its own.
                let peer = ServerEvent::Peer(message.clone());
                self.steps.push_back(Step::Server(peer));
                let event = WriterEvent::Server { from, message };
                self.steps.push_back(Step::Writer(event));
            }
        }
    }

    /// Rows were gathered, perhaps of several maps.
    pub(crate) fn gathered(&mut self, all: Vec<(Transfer, GroupId, Gathered)>) {
        let all = all.into_iter().map(|(transfer, group, gathered)| {
            let batches = self.keep_gathered(transfer, group, gathered);
            (transfer, group, batches)
        });
        let event = WriterEvent::GatheredTogether(all.collect());
        self.steps.push_back(Step::Writer(event));
    }

    fn keep_gathered(
        &mut self,
        transfer: Transfer,
        group: GroupId,
        gathered: Gathered,
    ) -> treadle_shuffle::Gathered {
        self.stats.gathered += gathered.bytes.len() as u64;
        let headers = gathered.batches.iter().map(|batch| &batch.header);
        for header in headers.clone() {
            self.stats.uncompressed += header.tally.bytes;
            self.stats.compressed += header.stored();
        }
        let batches = headers.map(|header| (header.tally, header.length()));
        let batches = batches.collect();
        self.arenas.insert((transfer, group), gathered);
        treadle_shuffle::Gathered { batches }
    }

    /// The bytes of a push of this process; `None`: the transfer has freed them.
    pub(super) fn batch(&self, push: &Push) -> Option<Bytes> {
        let transfer = Transfer {
            shuffle: push.shuffle,
            map: push.batch.map,
            attempt: push.batch.attempt,
        };
        let first = GroupId {
            server: ServerId::default(),
            ..push.group
        };
        let exact = self.arenas.get(&(transfer, push.group));
        // All copies of a group get the same batches, under the name of the first one.
        let mut of_copies = self.arenas.range((transfer, first)..);
        let of_copies = of_copies
            .next()
            .filter(|((of, group), _)| *of == transfer && group.epoch == push.group.epoch);
        let gathered = exact.or(of_copies.map(|(_, gathered)| gathered))?;
        let batch = gathered.batches.get(push.batch.number as usize)?;
        let header = &batch.header;
        if (header.tally, header.length()) != (push.tally, push.length) {
            return None;
        }
        let end = batch.offset + usize::try_from(push.length).ok()?;
        Some(gathered.bytes.slice(batch.offset..end))
    }

    pub(super) fn tell_writer(&mut self, event: WriterEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.writer.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        debug_assert_eq!(self.writer.check(), Ok(()));
        for effect in effects {
            match effect {
                WriterEffect::Gather {
                    transfer,
                    group,
                    partitions,
                } => {
                    self.tasks.gather(transfer, group, partitions);
                }
                WriterEffect::Send { to, message } => self.request(to, message),
                WriterEffect::Free { transfer, group } => {
                    self.tasks.free(transfer, group);
                    if let Some(gathered) = self.arenas.remove(&(transfer, group)) {
                        self.stats.gathered -= gathered.bytes.len() as u64;
                        self.after.garbage.push(gathered.bytes);
                    }
                }
                WriterEffect::Done(receipt) => {
                    self.stats.transfers += 1;
                    let transfer = receipt.transfer;
                    let plan = self.writer.plan_of(transfer.shuffle);
                    let plan = Arc::clone(plan.expect("it has ended by a plan"));
                    self.tasks.transferred(transfer, Ok((receipt, plan)));
                }
                WriterEffect::Failed { transfer, error } => {
                    self.tasks.transferred(transfer, Err(error));
                }
                // It is sent after the task's result.
                WriterEffect::Report(message @ ToMaster::Transferred { transfer, .. }) => {
                    let messages = self.transferred.entry(transfer.attempt).or_default();
                    messages.push(message);
                }
                WriterEffect::Report(message) => {
                    self.tell_master(LinkId::ONLY, message, callbacks);
                }
            }
        }
    }

    pub(super) fn tell_reader(&mut self, event: ReaderEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.reader.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        debug_assert_eq!(self.reader.check(), Ok(()));
        for effect in effects {
            match effect {
                ReaderEffect::Send { to, message } => self.request(to, message),
                ReaderEffect::Keep { read } => self.tasks.keep(read),
                ReaderEffect::Return { read, .. } => {
                    self.stats.reads += 1;
                    self.tasks.read_over(read, Ok(()));
                }
                ReaderEffect::Failed { read, error } => {
                    self.tasks.read_over(read, Err(error));
                }
                ReaderEffect::Report(message) => {
                    self.tell_master(LinkId::ONLY, message, callbacks);
                }
            }
        }
    }

    /// Sends a message of the writer or the reader to a server.
    pub(super) fn request(&mut self, to: ServerId, message: ToServer) {
        if to == self.me {
            self.steps.push_back(Step::Request(message));
            return;
        }
        let mut batches = Vec::new();
        let message = match message {
            ToServer::Push(push) => {
                let pushes = self.with_batches(vec![push], &mut batches);
                pushes.into_iter().next().map(ToServer::Push)
            }
            ToServer::Pushes { pushes } => {
                let pushes = self.with_batches(pushes, &mut batches);
                (!pushes.is_empty()).then_some(ToServer::Pushes { pushes })
            }
            message => Some(message),
        };
        if let Some(message) = message
            && !self.outgoing.send(to, &message, batches)
        {
            self.unreached(to);
        }
    }

    /// The pushes whose batches are here, and these. Of the others the transfers have just ended, and freed them.
    fn with_batches(&mut self, pushes: Vec<Push>, batches: &mut Vec<Bytes>) -> Vec<Push> {
        let is_here = |push: &Push| {
            let Some(batch) = self.batch(push) else {
                return false;
            };
            self.stats.pushed += batch.len() as u64;
            self.usage(push.shuffle).pushed += batch.len() as u64;
            batches.push(batch);
            true
        };
        pushes.into_iter().filter(is_here).collect()
    }
}
