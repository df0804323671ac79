//! Messages into packets.

use std::collections::VecDeque;

use prost::Message as _;

use treadle_types::Command;

use super::column::head;
use super::commands::Commands;
use super::direction::Message;
use super::family::Family;
use super::notices::{Finished, Notices};
use super::{PACKET, proto};
use crate::message::{ToClient, ToWorker};

/// The field of [`proto::Packet`].
const SECTIONS: u32 = 1;
/// What a section and the heads of its columns add, at most.
const SECTION: usize = 128;

/// Packs messages of one direction, in order.
///
/// A packet is closed when it is full, or when it is taken. A message that is too large for a small
/// packet gets one to itself.
#[derive(Debug)]
pub struct Encoder<M: Message> {
    columns: M::Columns,
    /// Closed sections of the packet.
    packet: Vec<u8>,
    /// An upper bound of the packet's length.
    size: usize,
    full: VecDeque<Vec<u8>>,
    waiting: usize,
}

impl<M: Message> Default for Encoder<M> {
    fn default() -> Self {
        Self {
            columns: M::Columns::default(),
            packet: Vec::new(),
            size: 0,
            full: VecDeque::new(),
            waiting: 0,
        }
    }
}

impl<M: Message> Encoder<M> {
    /// Appends a message.
    pub fn push(&mut self, message: &M) {
        if let Some(pieces) = message.split() {
            for piece in &pieces {
                self.push_one(piece);
            }
        } else {
            self.push_one(message);
        }
    }

    /// Makes room for something of that cost, and appends it to the columns; `false`: it is not for
    /// them.
    #[inline]
    fn put(&mut self, cost: usize, put: impl FnOnce(&mut M::Columns) -> bool) -> bool {
        if self.size + cost + SECTION > PACKET && self.size > 0 {
            self.close();
        }
        let opens = self.columns.is_empty();
        let is_put = put(&mut self.columns);
        if is_put {
            self.size += if opens { cost + SECTION } else { cost };
            if self.size > PACKET {
                self.close();
            }
        }
        is_put
    }

    fn push_one(&mut self, message: &M) {
        let cost = message.cost();
        if !self.put(cost, |columns| message.put(columns)) {
            self.close_section();
            let section = proto::Section {
                section: Some(message.section()),
            };
            head(SECTIONS, section.encoded_len(), &mut self.packet);
            section
                .encode(&mut self.packet)
                .expect("a vector has room for it");
            self.size += cost + SECTION;
            if self.size > PACKET {
                self.close();
            }
        }
    }

    fn close_section(&mut self) {
        if self.columns.is_empty() {
            return;
        }
        let written = self.columns.written();
        let field = M::Columns::FIELD;
        let inner = prost::encoding::key_len(field)
            + prost::encoding::encoded_len_varint(written as u64)
            + written;
        self.packet.reserve(inner + 8);
        head(SECTIONS, inner, &mut self.packet);
        head(field, written, &mut self.packet);
        self.columns.write(&mut self.packet);
    }

    fn close(&mut self) {
        self.close_section();
        if !self.packet.is_empty() {
            self.waiting += self.packet.len();
            self.full.push_back(std::mem::take(&mut self.packet));
        }
        self.size = 0;
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.packet.is_empty() && self.columns.is_empty()
    }

    /// Bytes that wait to be taken, about.
    pub fn waiting(&self) -> usize {
        self.waiting + self.size
    }

    /// Takes the next packet: the contents of an object of kind [`MESSAGES`](super::MESSAGES).
    pub fn take(&mut self) -> Option<Vec<u8>> {
        if self.full.is_empty() {
            self.close();
        }
        let packet = self.full.pop_front()?;
        self.waiting -= packet.len();
        Some(packet)
    }
}

impl Encoder<ToWorker> {
    /// As [`Encoder::push`] of a [`ToWorker::Command`].
    #[inline]
    pub(crate) fn push_command(&mut self, command: &Command) {
        self.put(Commands::cost(command), |columns| {
            columns.push(command);
            true
        });
    }
}

impl Encoder<ToClient> {
    /// As [`Encoder::push`] of a notice that a task has a value.
    #[inline]
    pub(crate) fn push_finished(&mut self, id: u32, finished: &Finished<'_>) {
        self.put(Notices::cost_of(finished), |columns| {
            columns.push_finished(id, finished);
            true
        });
    }
}
