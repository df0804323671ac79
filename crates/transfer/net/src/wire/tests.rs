use proptest::prelude::*;
use treadle_transfer::layout::{EXTENT, Layout};
use treadle_transfer::{Extent, Message, StripeId, TransferId};

use super::frame::{CONTROL, OBJECT};
use super::*;

fn messages() -> impl Strategy<Value = Message> {
    let object = any::<u64>().prop_map(TransferId);
    let stripe = any::<u32>().prop_map(StripeId);
    prop_oneof![
        object.clone().prop_map(|object| Message::Accept { object }),
        (object.clone(), ".{0,40}").prop_map(|(object, reason)| Message::Refuse { object, reason }),
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
        length in 1..=EXTENT, checksum in any::<Option<u32>>(), at in 0..EXTENT_HEADER, bit in 0..8u32,
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
