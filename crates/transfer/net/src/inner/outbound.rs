//! Objects on their way out: offered, sent in extents, done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_transfer::layout::EXTENT;
use treadle_transfer::{Event, Extent, Failure, StripeId, TransferId};

use super::{Garbage, Inner};
use crate::objects::{Completion, Timings};
use crate::peer::Shared;
use crate::segments::Exports;
use crate::wire;

/// An object on its way out.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Its frame on the control connection; empty once it is written.
    pub(crate) header: Vec<u8>,
    pub(crate) regions: Vec<Bytes>,
    /// Whether extents of them have checksums.
    pub(crate) is_checked: bool,
    pub(crate) exports: Option<Exports>,
    /// The other side has the descriptors.
    pub(crate) is_known: bool,
    pub(crate) started: Instant,
    pub(crate) accepted: Option<Instant>,
    pub(crate) completion: Option<Arc<Completion>>,
}

impl Inner {
    /// Whether no header waits for credit.
    pub(crate) fn all_offered(&self) -> bool {
        self.held == 0
    }

    /// Bytes of headers that wait to be written.
    pub(crate) fn queued(&self) -> usize {
        self.held + self.control.queued()
    }

    pub(crate) fn send(
        &mut self,
        object: TransferId,
        outbound: Outbound,
        event: Event,
        now: Duration,
    ) {
        self.held += outbound.header.len();
        self.outgoing.insert(object, outbound);
        self.handle(event, now);
    }

    /// Sends an object of one frame that fits into its header.
    pub(crate) fn send_small(&mut self, kind: u32, bytes: &[u8], now: Duration) {
        let object = self.next_object();
        let mut header = Vec::with_capacity(bytes.len() + 64);
        let inline = [bytes].into_iter();
        let sizes = [bytes.len() as u64];
        let cost = wire::encode_object(object, kind, &sizes, None, inline, &mut header);
        let event = Event::Send {
            object,
            regions: Vec::new(),
            cost,
            shared: false,
        };
        let outbound = Outbound {
            header,
            regions: Vec::new(),
            is_checked: true,
            exports: None,
            is_known: false,
            started: Instant::now(),
            accepted: None,
            completion: None,
        };
        self.send(object, outbound, event, now);
    }

    /// The next extents for a stripe, at most so many of so many bytes, with their bytes, and whether these
    /// need a checksum.
    pub(crate) fn next_extents(
        &mut self,
        stripe: StripeId,
        (most, most_bytes): (usize, u64),
        now: Duration,
        into: &mut VecDeque<(Extent, Bytes, bool)>,
    ) {
        let mut taken = 0;
        while into.len() < most
            && taken + EXTENT <= most_bytes
            && let Some(extent) = self.pair.next_extent(stripe, now)
        {
            let Some(outbound) = self.outgoing.get(&extent.object) else {
                continue;
            };
            let range = extent.offset as usize..(extent.offset + extent.length) as usize;
            let bytes = outbound.regions[extent.region as usize].slice(range);
            if let Some(completion) = &outbound.completion {
                completion
                    .written
                    .fetch_add(extent.length, Ordering::Relaxed);
            }
            taken += extent.length;
            into.push_back((extent, bytes, outbound.is_checked));
        }
    }

    /// Writes an object's header, and passes the descriptors of its memory.
    pub(super) fn offer(&mut self, object: TransferId) {
        let Some(outbound) = self.outgoing.get_mut(&object) else {
            return;
        };
        self.held -= outbound.header.len();
        let header = std::mem::take(&mut outbound.header);
        if let Some(exports) = &outbound.exports {
            if outbound.is_known {
                self.lent.lend(exports);
            } else if let Some(channel) = &self.channel {
                self.lent.lend(exports);
                channel.send(object, exports);
                self.descriptors = true;
            }
        }
        let urgent = !self.corked;
        self.control.push_whole(urgent, header);
    }

    pub(super) fn sent(
        &mut self,
        object: TransferId,
        outcome: Result<(), Failure>,
        shared: &Arc<Shared>,
    ) {
        let Some(mut outbound) = self.outgoing.remove(&object) else {
            return;
        };
        self.held -= outbound.header.len();
        if let Some(completion) = outbound.completion.take() {
            let timings = Timings {
                started: outbound.started,
                accepted: outbound.accepted,
                finished: Instant::now(),
            };
            if outcome.is_ok() && outbound.exports.is_some() {
                let bytes: usize = outbound.regions.iter().map(Bytes::len).sum();
                let streamed = completion.written.load(Ordering::Relaxed) > 0;
                if !streamed {
                    shared
                        .bytes_shared
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
            let _ = completion.outcome.set(outcome.map(|()| timings));
            self.changed |= self.just_sent != Some(object);
        }
        if !outbound.regions.is_empty() {
            self.garbage.push(Garbage::Outbound(outbound));
        }
    }

    /// The other side has memory for an object now.
    pub(crate) fn peer_accepted(&mut self, object: TransferId) {
        if let Some(outbound) = self.outgoing.get_mut(&object) {
            outbound.accepted = Some(Instant::now());
            if outbound.is_known {
                // It did not keep what it would have mapped.
                self.lent.forget_files();
            }
        }
    }

    pub(crate) fn next_object(&mut self) -> TransferId {
        self.next_object += 1;
        TransferId(self.next_object)
    }
}
