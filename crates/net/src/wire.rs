//! Bytes on the wire: preambles, frames, extent headers. The schema is `proto/transfer.proto`.
//!
//! Every decoder takes bytes that may come from anybody, checks a length before it allocates, and
//! never panics; the fuzz targets in `fuzz/` call them.

use prost::Message as _;
use treadle_transfer::layout::{EXTENT, INLINE, Layout, LayoutError, MAX_FRAMES};
use treadle_transfer::{Extent, Message, StripeId, TransferId};

use crate::checksum::crc32c;

/// The messages of `proto/transfer.proto`.
#[allow(missing_docs, unreachable_pub)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/treadle.transfer.rs"));
}

pub use proto::Segment;
use proto::control::Message as Wire;

/// First bytes of every connection.
pub const MAGIC: &[u8; 8] = b"TREADLE\n";
/// Version of the protocol: sides with another major version do not understand each other.
pub const VERSION: Version = Version { major: 1, minor: 1 };
/// Bytes of a preamble.
pub const PREAMBLE: usize = 16;
/// The longest `Hello` or `Proof`, in bytes.
pub const MAX_HELLO: usize = 16 * 1024;
/// Bytes before a frame's payload.
pub const FRAME_HEADER: usize = 12;
/// The longest payload of a control frame, in bytes.
pub const MAX_CONTROL: usize = 64 * 1024;
/// The longest payload of an object's frame, in bytes: every size takes at most 10.
pub const MAX_OBJECT: usize = MAX_FRAMES * 10 + INLINE as usize + 64;
/// Bytes before an extent's.
pub const EXTENT_HEADER: usize = 32;
/// What a header costs the receiver beyond its bytes: for the object, and for each of its frames.
const HEADER_COST: u64 = 128;
const FRAME_COST: u64 = 64;
/// The longest reason that is sent, in bytes.
const MAX_REASON: usize = 1024;

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Differs when sides cannot understand each other.
    pub major: u16,
    /// Grows with additions that an older side ignores.
    pub minor: u16,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Bytes that are not what the protocol says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// Not this protocol.
    #[error("the first bytes are not Treadle's; is this the right port?")]
    Magic,
    /// The other side starts a TLS handshake, or refuses what it takes for one.
    #[error(
        "the other side speaks TLS, this side does not; write treadle+tls://… on both sides, or on \
         neither"
    )]
    Tls,
    /// Another major version.
    #[error(
        "this side speaks version {VERSION} of the protocol, the other side {0}; use the same release of treadle on both"
    )]
    Version(Version),
    /// A length above its limit.
    #[error("a length of {length} bytes; at most {limit} are allowed here")]
    Length {
        /// What was announced.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// The checksum does not agree.
    #[error("the checksum of a frame does not agree: its bytes were damaged on the way")]
    Checksum,
    /// No such kind of frame.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Bytes that the schema does not allow.
    #[error("a message that cannot be decoded: {0}")]
    Message(String),
    /// Sizes that no object can have.
    #[error("{0}")]
    Layout(#[from] LayoutError),
}

/// What the header of an object costs the receiver, in bytes.
fn cost(frame: usize, sizes: &[u64]) -> u64 {
    frame as u64 + HEADER_COST + sizes.len() as u64 * FRAME_COST
}

fn malformed(error: impl std::fmt::Display) -> WireError {
    WireError::Message(error.to_string())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A preamble and what follows it.
pub fn encode_preamble(hello: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.major.to_le_bytes());
    out.extend_from_slice(&VERSION.minor.to_le_bytes());
    out.extend_from_slice(&(hello.len() as u32).to_le_bytes());
    out.extend_from_slice(hello);
}

/// The length of the `Hello` after this preamble, or `None` while it is not whole. Wrong bytes are
/// found at the first of them.
pub fn decode_preamble(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        // A TLS record: of a handshake, or an alert.
        return Err(if matches!(bytes, [21 | 22, ..]) {
            WireError::Tls
        } else {
            WireError::Magic
        });
    }
    if bytes.len() < PREAMBLE {
        return Ok(None);
    }
    let version = Version {
        major: u16::from_le_bytes([bytes[8], bytes[9]]),
        minor: u16::from_le_bytes([bytes[10], bytes[11]]),
    };
    if version.major != VERSION.major {
        return Err(WireError::Version(version));
    }
    let length = u32_at(bytes, 12) as usize;
    if length > MAX_HELLO {
        return Err(WireError::Length {
            length: length as u64,
            limit: MAX_HELLO as u64,
        });
    }
    Ok(Some(length))
}

/// A message of the handshake.
pub fn decode_hello<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, WireError> {
    M::decode(bytes).map_err(malformed)
}

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

const CONTROL: u8 = 1;
const OBJECT: u8 = 2;

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

/// The header of an extent whose bytes have this checksum.
pub fn encode_extent(extent: &Extent, checksum: u32) -> [u8; EXTENT_HEADER] {
    let mut header = [0; EXTENT_HEADER];
    header[..8].copy_from_slice(&extent.object.0.to_le_bytes());
    header[8..16].copy_from_slice(&extent.offset.to_le_bytes());
    header[16..20].copy_from_slice(&extent.region.to_le_bytes());
    header[20..24].copy_from_slice(&(extent.length as u32).to_le_bytes());
    header[24..28].copy_from_slice(&checksum.to_le_bytes());
    let own = crc32c(&header[..28]);
    header[28..].copy_from_slice(&own.to_le_bytes());
    header
}

/// The extent that a header announces, and the checksum of its bytes.
pub fn decode_extent(header: &[u8; EXTENT_HEADER]) -> Result<(Extent, u32), WireError> {
    if u32_at(header, 28) != crc32c(&header[..28]) {
        return Err(WireError::Checksum);
    }
    let length = u64::from(u32_at(header, 20));
    if length == 0 || length > EXTENT {
        return Err(WireError::Length {
            length,
            limit: EXTENT,
        });
    }
    let extent = Extent {
        object: TransferId(u64_at(header, 0)),
        region: u32_at(header, 16),
        offset: u64_at(header, 8),
        length,
    };
    Ok((extent, u32_at(header, 24)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let object = any::<u64>().prop_map(TransferId);
        let stripe = any::<u32>().prop_map(StripeId);
        prop_oneof![
            object.clone().prop_map(|object| Message::Accept { object }),
            (object.clone(), ".{0,40}")
                .prop_map(|(object, reason)| Message::Refuse { object, reason }),
            object.prop_map(|object| Message::Placed { object }),
            any::<u64>().prop_map(|bytes| Message::Credit { bytes }),
            (stripe.clone(), ".{0,40}")
                .prop_map(|(stripe, reason)| Message::DialFailed { stripe, reason }),
            (stripe, any::<u64>(), any::<bool>()).prop_map(|(stripe, extents, corrupt)| {
                Message::Report {
                    stripe,
                    extents,
                    corrupt,
                }
            }),
            any::<u64>().prop_map(|token| Message::Ping { token }),
            Just(Message::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back(message in messages()) {
            let mut out = vec![1, 2, 3];
            encode_message(&message, &mut out);
            let frame = &out[3..];
            prop_assert_eq!(frame_length(frame).unwrap(), Some(frame.len()));
            prop_assert_eq!(decode_frame(frame).unwrap(), Some(Frame::Message(message)));
        }

        #[test]
        fn objects_come_back(
            object in any::<u64>(), kind in any::<u32>(), shared in any::<bool>(),
            sizes in prop::collection::vec(0..100_000u64, 0..20), known in any::<bool>(),
        ) {
            let layout = Layout::of(&sizes).unwrap();
            let segment = |(id, length): (usize, &u64)| Segment {
                id: id as u64, offset: object, length: *length, file: u64::from(kind),
            };
            let segments: Vec<_> = match known {
                true => layout.regions.iter().enumerate().map(segment).collect(),
                false => Vec::new(),
            };
            let inline: Vec<u8> = (0..layout.inline).map(|byte| byte as u8).collect();
            let mut frame = Vec::new();
            let cost = encode_object(
                TransferId(object), kind, &sizes, shared.then_some(&segments),
                [inline.as_slice()].into_iter(), &mut frame,
            );
            let Some(Frame::Object(header, bytes)) = decode_frame(&frame).unwrap() else {
                panic!("not an object");
            };
            prop_assert_eq!(header.cost, cost);
            prop_assert_eq!(header.object, TransferId(object));
            prop_assert_eq!(header.kind, kind);
            prop_assert_eq!(header.shared, shared && !layout.regions.is_empty());
            prop_assert_eq!(header.segments, if shared { segments } else { Vec::new() });
            prop_assert_eq!(header.layout, layout);
            prop_assert_eq!(header.sizes, sizes);
            prop_assert_eq!(bytes, inline);
        }

        #[test]
        fn one_flipped_bit_is_found(message in messages(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let mut frame = Vec::new();
            encode_message(&message, &mut frame);
            let at = at.index(frame.len());
            frame[at] ^= 1u8 << bit;
            prop_assert!(decode_frame(&frame).is_err());
        }

        #[test]
        fn one_flipped_bit_in_an_extent_header_is_found(
            object in any::<u64>(), region in any::<u32>(), offset in any::<u64>(),
            length in 1..=EXTENT, checksum in any::<u32>(), at in 0..EXTENT_HEADER, bit in 0..8u32,
        ) {
            let extent = Extent { object: TransferId(object), region, offset, length };
            let mut header = encode_extent(&extent, checksum);
            prop_assert_eq!(decode_extent(&header).unwrap(), (extent, checksum));
            header[at] ^= 1u8 << bit;
            prop_assert_eq!(decode_extent(&header), Err(WireError::Checksum));
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_preamble(&bytes);
            let _ = decode_hello::<proto::Hello>(&bytes);
            let _ = frame_length(&bytes);
            let _ = decode_frame(&bytes);
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Vec::new();
        encode_preamble(b"", &mut bytes);
        assert_eq!(decode_preamble(&bytes), Ok(Some(0)));
        bytes[8] = 7;
        let theirs = Version {
            major: 7,
            ..VERSION
        };
        let error = decode_preamble(&bytes).unwrap_err().to_string();
        for version in [VERSION, theirs] {
            assert!(error.contains(&version.to_string()), "{error}");
        }
    }

    #[test]
    fn strangers_are_found_at_their_first_byte() {
        assert_eq!(decode_preamble(b"G"), Err(WireError::Magic));
        assert_eq!(decode_preamble(&[22, 3, 1]), Err(WireError::Tls));
        assert_eq!(decode_preamble(&[21, 3, 3]), Err(WireError::Tls));
        assert_eq!(decode_preamble(b"TREAD"), Ok(None));
    }

    #[test]
    fn lengths_are_limited() {
        let mut bytes = Vec::new();
        encode_preamble(b"", &mut bytes);
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(
            decode_preamble(&bytes),
            Err(WireError::Length { .. })
        ));
        let mut frame = vec![0xff; 12];
        for kind in [CONTROL, OBJECT] {
            frame[8] = kind;
            assert!(matches!(
                frame_length(&frame),
                Err(WireError::Length { .. })
            ));
        }
    }
}
