//! What the fuzz targets in `fuzz/` call. Each takes any bytes, and panics when a decoder breaks its
//! word; the tests here replay the corpus that is kept in `fuzz/corpus/`.

mod pair;
#[cfg(test)]
mod tests;

use treadle_security::secret::Secret;
use treadle_transfer::Message;
use treadle_transfer::layout::MAX_FRAMES;

use crate::handshake::{Handshake, Step};
use crate::wire::{self, EXTENT_HEADER, Frame, PREAMBLE, proto};

pub use self::pair::pair;

/// Takes the bytes apart, and panics when that goes wrong.
pub type Target = fn(&[u8]);

/// Every target of this crate, by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("preamble", preamble),
    ("hello", hello),
    ("frames", frames),
    ("extents", extents),
    ("handshake", handshake),
    ("pair", pair),
];

/// The first bytes of a connection.
pub fn preamble(bytes: &[u8]) {
    let whole = wire::decode_preamble(bytes);
    if let Ok(Some(length)) = whole {
        assert!(length <= wire::MAX_HELLO);
    }
    // A wrong byte stays wrong, however much follows it.
    for end in 0..bytes.len().min(PREAMBLE) {
        if let Err(error) = wire::decode_preamble(&bytes[..end]) {
            assert_eq!(whole.as_ref(), Err(&error));
        }
    }
}

/// The messages of the handshake.
pub fn hello(bytes: &[u8]) {
    let _ = wire::decode_hello::<proto::Hello>(bytes);
    let _ = wire::decode_hello::<proto::Proof>(bytes);
}

/// What arrives on a control connection: as it is, and with the checksums made right.
pub fn frames(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(length)) = wire::frame_length(rest)
        && length <= rest.len()
    {
        let (frame, next) = rest.split_at(length);
        let _ = wire::decode_frame(frame);
        let mut frame = frame.to_vec();
        let checksum = crate::checksum::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(Some(decoded)) = wire::decode_frame(&frame) {
            decoded_frame(decoded, frame.len());
        }
        rest = next;
    }
}

fn decoded_frame(frame: Frame<'_>, length: usize) {
    match frame {
        Frame::Message(message) => {
            let mut again = Vec::new();
            wire::encode_message(&message, &mut again);
            let decoded = wire::decode_frame(&again);
            let reason_cut = matches!(
                &message,
                Message::Refuse { reason, .. } | Message::DialFailed { reason, .. }
                    if reason.len() > 1000
            );
            assert!(reason_cut || decoded == Ok(Some(Frame::Message(message))));
        }
        Frame::Object(header, inline) => {
            assert!(header.sizes.len() <= MAX_FRAMES);
            assert_eq!(header.sizes.len(), header.layout.places.len());
            assert_eq!(header.layout.inline, inline.len() as u64);
            let segments = header.segments.len();
            assert!(segments == 0 || segments == header.layout.regions.len());
            assert!(inline.len() < length);
            // What is kept of it is paid for with credit.
            let kept = 24 * header.sizes.len() + 24 * header.layout.regions.len() + inline.len();
            assert!(header.cost >= kept as u64);
        }
        Frame::Released { segments, files } => assert!(segments.len() + files.len() <= length),
        Frame::Descriptors(_, segments) => assert!(segments.len() <= length),
    }
}

/// What arrives on a stripe: headers, as they are, and with the checksums made right.
pub fn extents(bytes: &[u8]) {
    for header in bytes.chunks_exact(EXTENT_HEADER) {
        let mut header: [u8; EXTENT_HEADER] = header.try_into().expect("a whole chunk");
        let _ = wire::decode_extent(&header);
        let checksum = crate::checksum::crc32c(&header[..EXTENT_HEADER - 4]);
        header[EXTENT_HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
        if let Ok((extent, checksum)) = wire::decode_extent(&header) {
            assert_eq!(wire::encode_extent(&extent, checksum), header);
        }
    }
}

/// Either side of a handshake, with a secret or without. Nobody proves a secret by chance.
pub fn handshake(bytes: &[u8]) {
    let [choice, bytes @ ..] = bytes else { return };
    let key = (choice & 2 > 0).then(|| Secret::new([7; 32]).expect("long enough"));
    let hello = || proto::Hello {
        nonce: vec![9; 32],
        ..Default::default()
    };
    let mut side = if choice & 1 > 0 {
        Handshake::client(hello(), key.clone())
    } else {
        Handshake::listener()
    };
    let piece = usize::from(choice >> 2) + 1;
    let mut rest = bytes;
    loop {
        let wanted = side.wanted();
        assert!(wanted <= wire::MAX_HELLO);
        assert!(side.output.len() <= 2 * wire::MAX_HELLO);
        if wanted == 0 || rest.is_empty() {
            return;
        }
        let (now, later) = rest.split_at(wanted.min(piece).min(rest.len()));
        rest = later;
        side.receive(now);
        match side.advance() {
            Ok(Step::Pending) => {}
            Ok(Step::Asked) if choice & 4 > 0 => side.refuse("not today"),
            Ok(Step::Asked) => side.answer(hello(), key.clone()),
            Ok(Step::Done) => {
                assert!(key.is_none(), "a proof out of nothing");
                let _ = side.session_secret();
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;
