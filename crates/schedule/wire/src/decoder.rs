//! Packets into messages.

use bytes::{Buf, Bytes};
use prost::Message as _;
use prost::encoding::{WireType, decode_key, decode_varint};
use treadle_codec::{Detacher, Rows, WireError};
use treadle_net::SMALL;

use super::direction::Message;
use super::proto;

/// The messages of a packet, in order.
///
/// Nothing is allocated by what a packet says about itself: sections are read one at a time, counts
/// are compared with the bytes that are there, and a packet that is not small holds one message. After
/// an error come no more messages; those that came before it are whole.
pub struct Decoder<M: Message> {
    packet: usize,
    rest: Bytes,
    rows: Option<M::Rows>,
    messages: usize,
}

impl<M: Message> std::fmt::Debug for Decoder<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder({} of {} bytes)", self.rest.len(), self.packet)
    }
}

impl<M: Message> Decoder<M> {
    /// Reads a packet: the contents of an object of kind [`MESSAGES`](super::MESSAGES).
    pub fn new(packet: Bytes) -> Self {
        Self {
            packet: packet.len(),
            rest: packet,
            rows: None,
            messages: 0,
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Option<M>, WireError> {
        loop {
            if let Some(rows) = &mut self.rows {
                if let Some(message) = M::get(rows)? {
                    return self.count(message).map(Some);
                }
                rows.end()?;
                self.rows = None;
            }
            if !self.rest.has_remaining() {
                return Ok(None);
            }
            let detacher = Detacher::new(self.packet);
            match M::rows(self.section()?, detacher) {
                Ok(rows) => self.rows = Some(rows),
                Err(section) => return self.count(M::of_wire(section, detacher)?).map(Some),
            }
        }
    }

    #[inline]
    fn count(&mut self, message: M) -> Result<M, WireError> {
        self.messages += 1;
        if self.messages > 1 && self.packet as u64 >= SMALL {
            return Err(WireError::Crowded(self.packet));
        }
        Ok(message)
    }

    fn section(&mut self) -> Result<proto::section::Section, WireError> {
        let (1, WireType::LengthDelimited) = decode_key(&mut self.rest)? else {
            return Err(WireError::Missing("section"));
        };
        let length = decode_varint(&mut self.rest)?;
        if length > self.rest.len() as u64 {
            return Err(WireError::Short { column: "sections" });
        }
        let section = self.rest.split_to(length as usize);
        let section = proto::Section::decode(section)?;
        section.section.ok_or(WireError::Missing("kind"))
    }
}

impl<M: Message> Iterator for Decoder<M> {
    type Item = Result<M, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(Some(message)) => Some(Ok(message)),
            Ok(None) => None,
            Err(error) => {
                self.rest = Bytes::new();
                self.rows = None;
                Some(Err(error))
            }
        }
    }
}
