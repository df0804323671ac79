//! The decoder of plain values, for its fuzz target and for the test that replays the corpus.

use treadle_types::{Value, varint};

/// Decodes the bytes. What is a value has no other encoding.
pub fn value(bytes: &[u8]) {
    match Value::from_bytes(bytes) {
        Ok(value) => assert_eq!(value.to_bytes(), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok((value, length)) = varint::get(bytes) {
        let mut again = Vec::new();
        varint::put(value, &mut again);
        assert_eq!(again, &bytes[..length]);
    }
}
