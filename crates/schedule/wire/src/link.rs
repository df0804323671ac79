//! Packets over a connection.

use std::collections::VecDeque;
use std::marker::PhantomData;

use bytes::Bytes;
use treadle_messages::{Hello, Welcome};
use treadle_net::{Incoming, Peer, Received, SMALL, Sending, Wait};

use super::{
    Decoder, Encoder, HELLO, LARGEST_MESSAGE, LONGEST_HELLO, MESSAGES, Message, WELCOME,
    decode_welcome, encode_hello,
};
use crate::NodeError;

/// Packets written at a time.
const BATCH: usize = 4;

/// One end of a control connection: messages of one direction out, of the other in. It never waits.
#[derive(Debug)]
pub struct Link<In: Message, Out: Message> {
    peer: Peer,
    out: Encoder<Out>,
    /// Large packets that the other side may not have yet, with their lengths.
    leaving: VecDeque<(usize, Sending)>,
    /// A large packet that is on its way in; what follows it waits for it.
    arriving: Option<Incoming>,
    received: Vec<Received>,
    most: u64,
    direction: PhantomData<fn() -> In>,
}

/// An object of a control connection.
#[derive(Debug)]
pub struct Packet {
    pub kind: u32,
    /// Its contents.
    pub bytes: Bytes,
}

impl<In: Message, Out: Message> Link<In, Out> {
    /// Over this peer, which nobody else sends on or receives from. An object of more than `most`
    /// bytes is refused.
    pub fn new(peer: Peer, most: u64) -> Self {
        Self {
            peer,
            out: Encoder::default(),
            leaving: VecDeque::new(),
            arriving: None,
            received: Vec::new(),
            most,
            direction: PhantomData,
        }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Appends a message to what the next [`Link::flush`] sends.
    #[inline]
    pub fn push(&mut self, message: &Out) {
        self.out.push(message);
    }

    /// What the next [`Link::flush`] sends.
    #[inline]
    pub fn out(&mut self) -> &mut Encoder<Out> {
        &mut self.out
    }

    /// Bytes that were pushed and not sent, about.
    pub fn waiting(&self) -> usize {
        self.out.waiting()
    }

    /// Bytes that are kept for the other side, about: those that wait, and large packets that it does
    /// not have yet. The connection has room for a few MiB besides.
    pub fn kept(&self) -> usize {
        let leaving = self
            .leaving
            .iter()
            .filter(|(_, sending)| !sending.is_done());
        self.out.waiting() + leaving.map(|(bytes, _)| bytes).sum::<usize>()
    }

    /// Sends what was pushed, as far as the connection has room; returns whether that was all.
    ///
    /// # Errors
    /// For a packet that is too large for any object.
    pub fn flush(&mut self) -> Result<bool, NodeError> {
        while !self.out.is_empty() {
            if !self.peer.has_room() {
                return Ok(false);
            }
            let mut batch: [Vec<u8>; BATCH] = Default::default();
            let mut count = 0;
            let mut large = None;
            while count < BATCH
                && large.is_none()
                && let Some(packet) = self.out.take()
            {
                if (packet.len() as u64) < SMALL {
                    batch[count] = packet;
                    count += 1;
                } else {
                    large = Some(packet);
                }
            }
            let mut small = batch[..count].iter().map(|packet| (MESSAGES, &packet[..]));
            while small.len() > 0 {
                self.peer.send_batch(&mut small);
            }
            if let Some(packet) = large {
                while self.leaving.front().is_some_and(|(_, sent)| sent.is_done()) {
                    self.leaving.pop_front();
                }
                let bytes = packet.len();
                let sending = self.peer.send(MESSAGES, &[packet.into()])?;
                self.leaving.push_back((bytes, sending));
            }
        }
        Ok(true)
    }

    /// Sends a packet without messages, if there is room: the other side wakes up for those that
    /// will follow in a moment.
    pub fn announce(&self) {
        if self.peer.has_room() {
            self.peer.send_batch(&mut [(MESSAGES, &[][..])].into_iter());
        }
    }

    /// Appends what has arrived, at most `most` packets; returns whether there may be more.
    ///
    /// # Errors
    /// When the connection ended and everything was received, or for an object that is no packet.
    pub fn receive(&mut self, most: usize, into: &mut Vec<Packet>) -> Result<bool, NodeError> {
        let end = into.len() + most;
        while into.len() < end {
            if let Some(arriving) = self.arriving.take() {
                if !arriving.is_done() {
                    self.arriving = Some(arriving);
                    return Ok(false);
                }
                into.push(packet(arriving.take()?)?);
            }
            let wanted = end - into.len();
            self.peer.take_small(wanted, &mut self.received);
            let count = self.received.len();
            for received in self.received.drain(..) {
                into.push(packet(received)?);
            }
            if count == wanted {
                break;
            }
            // Whatever is next is not small, or not here yet.
            let Some(incoming) = self.peer.try_next()? else {
                return Ok(false);
            };
            let bytes = incoming.header().1.iter().sum();
            if bytes > self.most {
                return Err(NodeError::TooLarge {
                    bytes,
                    most: self.most,
                });
            }
            incoming.accept(Vec::new())?;
            self.arriving = Some(incoming);
        }
        Ok(true)
    }

    /// Whether a large packet that [`Link::receive`] has begun to take is here: the peer does not say
    /// so itself.
    pub fn has_arrived(&self) -> bool {
        self.arriving.as_ref().is_some_and(Incoming::is_done)
    }

    /// Bytes that are here of a large packet that is on its way in.
    pub fn arriving(&self) -> u64 {
        self.arriving
            .as_ref()
            .map_or(0, |packet| packet.progress().0)
    }

    /// The messages of a packet.
    ///
    /// # Errors
    /// For an object that holds none.
    pub fn decode(packet: Packet) -> Result<Decoder<In>, NodeError> {
        match packet.kind {
            MESSAGES => Ok(Decoder::new(packet.bytes)),
            kind => Err(NodeError::Kind(kind)),
        }
    }
}

fn packet(received: Received) -> Result<Packet, NodeError> {
    let kind = received.kind;
    let mut frames = received.frames.into_iter();
    match (frames.next(), frames.next()) {
        (Some(frame), None) => Ok(Packet {
            kind,
            bytes: frame.into_bytes(),
        }),
        _ => Err(NodeError::Kind(kind)),
    }
}

/// Introduces a node to the scheduler. Returns the node's number, and what the scheduler says about
/// itself.
///
/// # Errors
/// When the scheduler refuses it, or the connection or the wait ends.
pub fn introduce(
    peer: &Peer,
    hello: &Hello,
    wait: &mut Wait<'_>,
) -> Result<(u32, Bytes), NodeError> {
    let encoded = encode_hello(hello);
    if encoded.len() > LONGEST_HELLO {
        return Err(NodeError::Introduction {
            name: hello.name.clone(),
            bytes: encoded.len(),
            most: LONGEST_HELLO,
        });
    }
    peer.send(HELLO, &[encoded.into()])?;
    let incoming = peer.next(wait)?;
    let (bytes, most) = (incoming.header().1.iter().sum(), LARGEST_MESSAGE);
    if bytes > most {
        return Err(NodeError::TooLarge { bytes, most });
    }
    incoming.accept(Vec::new())?;
    incoming.wait(wait)?;
    let answer = packet(incoming.take()?)?;
    if answer.kind != WELCOME {
        return Err(NodeError::Kind(answer.kind));
    }
    match decode_welcome(&answer.bytes)? {
        Welcome::Accepted { id, info } => Ok((id, info)),
        Welcome::Refused(reason) => Err(NodeError::Refused(reason)),
    }
}
