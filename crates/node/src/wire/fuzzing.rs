//! What the fuzz targets call: any bytes, in each direction.

use bytes::Bytes;

use super::{Decoder, Encoder, Message};
use crate::message::{FromClient, FromWorker, ToClient, ToWorker};

/// Takes a packet apart in every direction, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn packet(bytes: &[u8]) {
    direction::<ToWorker>(bytes);
    direction::<FromWorker>(bytes);
    direction::<ToClient>(bytes);
    direction::<FromClient>(bytes);
    let _ = super::decode_hello(bytes);
    let _ = super::decode_welcome(bytes);
    let _ = super::decode_data(bytes);
}

fn direction<M: Message + std::fmt::Debug>(bytes: &[u8]) {
    let mut encoder = Encoder::default();
    let mut messages = Vec::new();
    for message in Decoder::<M>::new(Bytes::copy_from_slice(bytes)) {
        let Ok(message) = message else {
            break;
        };
        encoder.push(&message);
        messages.push(format!("{message:?}"));
    }
    let mut again = Vec::new();
    while let Some(packet) = encoder.take() {
        for message in Decoder::<M>::new(packet.into()) {
            again.push(format!("{:?}", message.expect("this side packed it")));
        }
    }
    // Long lists come in pieces.
    assert!(again == messages || again.len() > messages.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            super::packet(&bytes);
        }

        /// A section of a known family, with anything in its columns.
        #[test]
        fn any_columns(
            family in 1..5u8,
            columns in prop::collection::vec((1..20u8, prop::collection::vec(0..6u8, 0..8)), 0..12)
        ) {
            let mut section = Vec::new();
            for (field, column) in &columns {
                super::super::column::head((*field).into(), column.len(), &mut section);
                section.extend_from_slice(column);
            }
            let mut inner = Vec::new();
            super::super::column::head(family.into(), section.len(), &mut inner);
            inner.extend_from_slice(&section);
            let mut packet = Vec::new();
            super::super::column::head(1, inner.len(), &mut packet);
            packet.extend_from_slice(&inner);
            super::packet(&packet);
        }
    }
}
