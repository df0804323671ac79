//! Replays what fuzzing found for the decoder of values (`fuzz/`).

#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;
#[path = "../../../../fuzz/value.rs"]
#[allow(unreachable_pub, reason = "it is a module of the fuzz target, too")]
mod value;

use treadle_types::Value;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("value", value::value);
}

#[test]
fn the_corpus_has_what_is_valid() {
    let leaves = vec![
        Value::None,
        Value::Bool(true),
        Value::Bool(false),
        Value::Int(i64::MIN),
        Value::Float(-0.5),
        Value::str("text"),
        Value::Bytes(vec![0, 255]),
        Value::Pickle(vec![128, 5]),
    ];
    let nested = Value::Dict(vec![
        (Value::str("list"), Value::List(leaves.clone())),
        (Value::Tuple(Vec::new()), Value::Int(300)),
    ]);
    for (name, value) in [("tuple", Value::Tuple(leaves)), ("nested", nested)] {
        corpus::compare("value", name, &value.to_bytes());
    }
}
