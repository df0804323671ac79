//! Messages into packets.

use std::collections::VecDeque;

use prost::Message as _;
use treadle_codec::{Columns, head};

use super::direction::Message;
use super::{PACKET, proto};

/// The field of [`proto::Packet`].
const SECTIONS: u32 = 1;
/// What a section and the heads of its columns add, at most.
const SECTION: usize = 128;

/// Packs messages of one direction, in order.
///
/// A packet is closed when it is full, or when it is taken. A message that is too large for a small
/// packet gets one to itself.
pub struct Encoder<M: Message> {
    columns: M::Columns,
    /// Whether there is something in them.
    is_open: bool,
    /// Closed sections of the packet.
    packet: Vec<u8>,
    /// An upper bound of the packet's length.
    size: usize,
    full: VecDeque<Vec<u8>>,
    waiting: usize,
}

impl<M: Message> std::fmt::Debug for Encoder<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Encoder({} bytes wait)", self.waiting())
    }
}

impl<M: Message> Default for Encoder<M> {
    fn default() -> Self {
        Self {
            columns: M::Columns::default(),
            is_open: false,
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

    /// Closes the packet, unless it has room for so many bytes more.
    #[inline]
    fn make_room(&mut self, cost: usize) {
        if self.size + cost + SECTION > PACKET && self.size > 0 {
            self.close();
        }
    }

    /// Closes the packet if it is full.
    #[inline]
    fn filled(&mut self, cost: usize) {
        self.size += cost;
        if self.size > PACKET {
            self.close();
        }
    }

    /// As [`Encoder::push`] of a message that is this row of the columns.
    #[inline]
    pub fn push_row(&mut self, row: M::Row<'_>) {
        let mut cost = M::cost(row);
        self.make_room(cost);
        M::put(&mut self.columns, row);
        if !std::mem::replace(&mut self.is_open, true) {
            cost += SECTION;
        }
        self.filled(cost);
    }

    fn push_one(&mut self, message: &M) {
        if let Some(row) = message.row() {
            return self.push_row(row);
        }
        let section = proto::Section {
            section: Some(message.to_wire()),
        };
        let length = section.encoded_len();
        self.make_room(length);
        self.close_section();
        head(SECTIONS, length, &mut self.packet);
        section
            .encode(&mut self.packet)
            .expect("a vector has room for it");
        self.filled(length + SECTION);
    }

    fn close_section(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let (mut field, mut written) = (0, 0);
        self.columns.each(&mut |column| {
            field += 1;
            written += column.written(field);
        });
        let field = M::COLUMNS;
        let inner = prost::encoding::key_len(field)
            + prost::encoding::encoded_len_varint(written as u64)
            + written;
        let packet = &mut self.packet;
        packet.reserve(inner + 8);
        head(SECTIONS, inner, packet);
        head(field, written, packet);
        let mut field = 0;
        self.columns.each(&mut |column| {
            field += 1;
            column.write(field, packet);
        });
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
        self.full.is_empty() && self.packet.is_empty() && !self.is_open
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
