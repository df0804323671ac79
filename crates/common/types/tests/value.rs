//! Values survive encoding, and whatever else comes is refused.

use proptest::prelude::*;
use treadle_types::Value;
use treadle_types::value::{DecodeError, MAX_DEPTH};

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-1e9..1e9f64).prop_map(Value::Float),
        ".*".prop_map(Value::Str),
        any::<Vec<u8>>().prop_map(Value::Bytes),
        any::<Vec<u8>>().prop_map(Value::Pickle),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec((inner.clone(), inner), 0..8).prop_map(Value::Dict),
        ]
    })
}

proptest! {
    #[test]
    fn a_value_survives(value in values()) {
        prop_assert_eq!(Value::from_bytes(&value.to_bytes()), Ok(value));
    }

    #[test]
    fn what_can_be_read_has_one_encoding(bytes in any::<Vec<u8>>()) {
        if let Ok(value) = Value::from_bytes(&bytes) {
            prop_assert_eq!(value.to_bytes(), bytes);
        }
    }

    #[test]
    fn a_cut_is_noticed(value in values(), at in any::<prop::sample::Index>()) {
        let bytes = value.to_bytes();
        let cut = &bytes[..at.index(bytes.len())];
        prop_assert_eq!(Value::from_bytes(cut), Err(DecodeError::Truncated));
    }
}

#[test]
fn the_extremes_of_integers_survive() {
    for value in [0, -1, 1, i64::MAX, i64::MIN] {
        let value = Value::Int(value);
        assert_eq!(Value::from_bytes(&value.to_bytes()), Ok(value));
    }
}

#[test]
fn nesting_is_bounded() {
    let mut value = Value::None;
    for _ in 0..=MAX_DEPTH {
        value = Value::List(vec![value]);
    }
    assert_eq!(
        Value::from_bytes(&value.to_bytes()),
        Err(DecodeError::TooDeep)
    );
}

#[test]
fn trailing_bytes_are_refused() {
    assert_eq!(Value::from_bytes(&[0, 0]), Err(DecodeError::Trailing(1)));
}
