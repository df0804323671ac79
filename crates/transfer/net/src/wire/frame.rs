//! Frames: what control and descriptor connections carry.

use prost::Message as _;
use treadle_transfer::layout::{INLINE, Layout, MAX_FRAMES};
use treadle_transfer::{Message, StripeId, TransferId};

use super::proto::control::Message as Wire;
use super::proto::{self, Segment};
use super::{WireError, malformed, u32_at};
use crate::checksum::crc32c;

/// Bytes before a frame's payload.
pub const FRAME_HEADER: usize = 12;
/// The longest payload of a control frame, in bytes.
pub const MAX_CONTROL: usize = 64 * 1024;
/// The longest payload of an object's frame, in bytes: every size takes at most 10.
pub const MAX_OBJECT: usize = MAX_FRAMES * 10 + INLINE as usize + 64;
/// What a header costs the receiver beyond its bytes: for the object, and for each of its frames.
const HEADER_COST: u64 = 128;
const FRAME_COST: u64 = 64;
/// The longest reason that is sent, in bytes.
const MAX_REASON: usize = 1024;

/// What a frame on a control or descriptor connection says.
#[derive(Debug, PartialEq)]
pub enum Frame<'a> {
    /// For the state machine.
    Message(Message),
    /// An object's header, and its inline bytes.
    Object(Header, &'a [u8]),
    /// Segments that the other side has unmapped, and files that it keeps.
    Released {
        /// The segments' numbers.
        segments: Vec<u64>,
        /// The files' numbers.
        files: Vec<u64>,
    },
    /// Describes the descriptors that came with it.
    Descriptors(TransferId, Vec<Segment>),
}

/// What an object is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number.
    pub object: TransferId,
    /// The application's.
    pub kind: u32,
    /// The length of each frame in bytes.
    pub sizes: Vec<u64>,
    /// Whether the regions come as shared memory.
    pub shared: bool,
    /// Where they are, if that is in files that the receiver keeps: one for each, or none.
    pub segments: Vec<Segment>,
    /// Where the frames are.
    pub layout: Layout,
    /// What it costs the receiver, in bytes.
    pub cost: u64,
}

pub(super) const CONTROL: u8 = 1;
pub(super) const OBJECT: u8 = 2;

/// What the header of an object costs the receiver, in bytes.
fn cost(frame: usize, sizes: &[u64]) -> u64 {
    frame as u64 + HEADER_COST + sizes.len() as u64 * FRAME_COST
}

/// Fills in the header of the frame whose payload was written after `start + FRAME_HEADER`.
fn finish_frame(out: &mut [u8], start: usize, kind: u8) {
    let length = out.len() - start - FRAME_HEADER;
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    out[start + 8..start + 12].copy_from_slice(&[kind, 0, 0, 0]);
    let checksum = crc32c(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Appends an object's frame; returns what it costs the receiver. `shared`: its regions are shared
/// memory, in these files of the receiver's if there are some. `inline` gives the bytes of the frames
/// that the layout puts into the header.
pub fn encode_object<'a>(
    object: TransferId,
    kind: u32,
    sizes: &[u64],
    shared: Option<&[Segment]>,
    inline: impl Iterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) -> u64 {
    let start = out.len();
    out.resize(start + FRAME_HEADER + 4, 0);
    let header = proto::Object {
        object: object.0,
        kind,
        sizes: sizes.to_vec(),
        shared: shared.is_some(),
        segments: shared.unwrap_or_default().to_vec(),
    };
    header.encode(out).expect("a vector grows");
    let length = (out.len() - start - FRAME_HEADER - 4) as u32;
    out[start + FRAME_HEADER..start + FRAME_HEADER + 4].copy_from_slice(&length.to_le_bytes());
    for bytes in inline {
        out.extend_from_slice(bytes);
    }
    finish_frame(out, start, OBJECT);
    cost(out.len() - start, sizes)
}

/// Appends a message's frame.
///
/// # Panics
/// For an offer, which is an object's frame.
pub fn encode_message(message: &Message, out: &mut Vec<u8>) {
    encode_control(
        match message {
            Message::Offer { .. } => unreachable!("offers are encoded as objects"),
            Message::Accept { object } => Wire::Accept(proto::Accept { object: object.0 }),
            Message::Refuse { object, reason } => Wire::Refuse(proto::Refuse {
                object: object.0,
                reason: shortened(reason),
            }),
            Message::Placed { object } => Wire::Placed(proto::Placed { object: object.0 }),
            Message::Cancel { object } => Wire::Cancel(proto::Cancel { object: object.0 }),
            Message::Credit { bytes } => Wire::Credit(proto::Credit { bytes: *bytes }),
            Message::Dial { stripe } => Wire::Dial(proto::Dial { stripe: stripe.0 }),
            Message::DialFailed { stripe, reason } => Wire::DialFailed(proto::DialFailed {
                stripe: stripe.0,
                reason: shortened(reason),
            }),
            Message::Broken { stripe } => Wire::Broken(proto::Broken { stripe: stripe.0 }),
            Message::Report {
                stripe,
                extents,
                corrupt,
            } => Wire::Report(proto::Report {
                stripe: stripe.0,
                extents: *extents,
                corrupt: *corrupt,
            }),
            Message::Ping { token } => Wire::Ping(proto::Ping { token: *token }),
            Message::Pong { token } => Wire::Pong(proto::Pong { token: *token }),
            Message::Goodbye => Wire::Goodbye(proto::Goodbye {}),
        },
        out,
    );
}

/// Appends the frame that says which segments were unmapped, and which files are kept.
pub fn encode_released(segments: Vec<u64>, files: Vec<u64>, out: &mut Vec<u8>) {
    encode_control(Wire::Released(proto::Released { segments, files }), out);
}

/// Appends the frame that goes with descriptors.
pub fn encode_descriptors(object: TransferId, segments: &[Segment], out: &mut Vec<u8>) {
    let message = proto::Descriptors {
        object: object.0,
        segments: segments.to_vec(),
    };
    encode_control(Wire::Descriptors(message), out);
}

fn encode_control(message: Wire, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + FRAME_HEADER, 0);
    let control = proto::Control {
        message: Some(message),
    };
    control.encode(out).expect("a vector grows");
    finish_frame(out, start, CONTROL);
}

fn shortened(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

/// The length of the frame at the start of `bytes`, or `None` while its header is not whole.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    if bytes.len() < FRAME_HEADER {
        return Ok(None);
    }
    let length = u32_at(bytes, 0) as usize;
    let limit = match bytes[8] {
        CONTROL => MAX_CONTROL,
        OBJECT => MAX_OBJECT,
        kind => return Err(WireError::Kind(kind)),
    };
    if length > limit {
        return Err(WireError::Length {
            length: length as u64,
            limit: limit as u64,
        });
    }
    Ok(Some(FRAME_HEADER + length))
}

/// Decodes a whole frame. `None` for a message of a later minor version.
pub fn decode_frame(frame: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    if frame_length(frame)? != Some(frame.len()) {
        return Err(malformed("it is not a whole frame"));
    }
    if u32_at(frame, 4) != crc32c(&frame[8..]) {
        return Err(WireError::Checksum);
    }
    let payload = &frame[FRAME_HEADER..];
    if frame[8] == OBJECT {
        return decode_object(payload, frame.len()).map(Some);
    }
    let control = proto::Control::decode(payload).map_err(malformed)?;
    Ok(control.message.map(decode_control))
}

fn decode_object(payload: &[u8], frame: usize) -> Result<Frame<'_>, WireError> {
    if payload.len() < 4 {
        return Err(malformed("an object without a header"));
    }
    let (length, rest) = (u32_at(payload, 0) as usize, &payload[4..]);
    if length > rest.len() {
        return Err(WireError::Length {
            length: length as u64,
            limit: rest.len() as u64,
        });
    }
    let (header, inline) = rest.split_at(length);
    let object = proto::Object::decode(header).map_err(malformed)?;
    let layout = Layout::of(&object.sizes)?;
    if layout.inline != inline.len() as u64 {
        return Err(malformed(
            "the inline bytes are not those that the sizes announce",
        ));
    }
    if !object.segments.is_empty() && object.segments.len() != layout.regions.len() {
        return Err(malformed("the segments are not one for each region"));
    }
    let header = Header {
        object: TransferId(object.object),
        kind: object.kind,
        shared: object.shared && !layout.regions.is_empty(),
        segments: object.segments,
        cost: cost(frame, &object.sizes),
        sizes: object.sizes,
        layout,
    };
    Ok(Frame::Object(header, inline))
}

fn decode_control<'a>(message: Wire) -> Frame<'a> {
    Frame::Message(match message {
        Wire::Accept(m) => Message::Accept {
            object: TransferId(m.object),
        },
        Wire::Refuse(m) => Message::Refuse {
            object: TransferId(m.object),
            reason: m.reason,
        },
        Wire::Placed(m) => Message::Placed {
            object: TransferId(m.object),
        },
        Wire::Cancel(m) => Message::Cancel {
            object: TransferId(m.object),
        },
        Wire::Credit(m) => Message::Credit { bytes: m.bytes },
        Wire::Dial(m) => Message::Dial {
            stripe: StripeId(m.stripe),
        },
        Wire::DialFailed(m) => Message::DialFailed {
            stripe: StripeId(m.stripe),
            reason: m.reason,
        },
        Wire::Broken(m) => Message::Broken {
            stripe: StripeId(m.stripe),
        },
        Wire::Report(m) => Message::Report {
            stripe: StripeId(m.stripe),
            extents: m.extents,
            corrupt: m.corrupt,
        },
        Wire::Ping(m) => Message::Ping { token: m.token },
        Wire::Pong(m) => Message::Pong { token: m.token },
        Wire::Goodbye(_) => Message::Goodbye,
        Wire::Released(m) => {
            return Frame::Released {
                segments: m.segments,
                files: m.files,
            };
        }
        Wire::Descriptors(m) => {
            return Frame::Descriptors(TransferId(m.object), m.segments);
        }
    })
}
