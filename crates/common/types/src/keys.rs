//! Keys, for people: their text, and the part that tasks of one kind have in common.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::value::{Reader, Value, tag};

/// The prefix of a key that has none.
const OTHER: &str = "Other";
/// Bytes of a group's name that are kept.
pub const LONGEST_GROUP: usize = 200;
/// How deep a text of a key may be nested.
const DEEPEST: usize = 8;

/// The part of a key's text before its token, as `dask.utils.key_split` has it: the words before the first
/// one that has digits in it.
pub fn prefix_of_text(text: &str) -> &str {
    let text = text.trim_start_matches(['(', '\'', '"']);
    let mut words = text.split('-');
    let mut end = words.next().map_or(0, str::len);
    for word in words {
        let bytes = word.as_bytes();
        let is_token = bytes.len() == 8 && bytes.iter().all(u8::is_ascii_hexdigit);
        if is_token || bytes.is_empty() || !bytes.iter().all(u8::is_ascii_alphabetic) {
            break;
        }
        end += 1 + bytes.len();
    }
    let found = &text[..end];
    if found.len() == 32 && found.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return "data";
    }
    found
}

/// The same of an encoded key: a string, or a tuple that begins with one.
pub fn prefix(key: &[u8]) -> &str {
    let mut reader = Reader::new(key);
    let text = |reader: &mut Reader<'_>| -> Option<(usize, usize)> {
        if reader.byte().ok()? == tag::TUPLE {
            reader.varint().ok()?;
            if reader.byte().ok()? != tag::STR {
                return None;
            }
        } else if key.first() != Some(&tag::STR) {
            return None;
        }
        let length = usize::try_from(reader.varint().ok()?).ok()?;
        let start = reader.position();
        Some((start, start.checked_add(length)?))
    };
    let Some((start, end)) = text(&mut reader) else {
        return OTHER;
    };
    let text = key
        .get(start..end)
        .and_then(|text| core::str::from_utf8(text).ok());
    text.map_or(OTHER, prefix_of_text)
}

/// The name of a group as it is kept: its first 200 bytes, or a little less, to end with a character.
#[inline]
pub fn short(name: &str) -> &str {
    if name.len() <= LONGEST_GROUP {
        return name;
    }
    let end = (0..=LONGEST_GROUP)
        .rev()
        .find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// The name of the group of an encoded key: its [`prefix`], as it is [kept](short).
#[inline]
pub fn group(key: &[u8]) -> &str {
    short(prefix(key))
}

/// A key, as `str` shows it in Python.
pub fn display(key: &Value) -> String {
    match key {
        Value::Str(text) => text.clone(),
        other => represent(other),
    }
}

fn represent(value: &Value) -> String {
    let all = |items: &[Value]| items.iter().map(represent).collect::<Vec<_>>().join(", ");
    match value {
        Value::None => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Str(text) if text.contains('\'') && !text.contains('"') => format!("\"{text}\""),
        Value::Str(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Tuple(items) if items.len() == 1 => format!("({},)", all(items)),
        Value::Tuple(items) => format!("({})", all(items)),
        Value::List(items) => format!("[{}]", all(items)),
        Value::Bytes(_) | Value::Dict(_) | Value::Pickle(_) => "<an object>".to_owned(),
    }
}

/// What a text may be the key of: the text itself, and the tuple of texts and integers that it shows.
pub fn parse(text: &str) -> Vec<Value> {
    let mut found = Vec::new();
    if text.starts_with('(') {
        let mut rest = text;
        if let Some(value) = parse_value(&mut rest, 0)
            && rest.trim().is_empty()
        {
            found.push(value);
        }
    }
    found.push(Value::Str(text.to_owned()));
    found
}

fn parse_value(rest: &mut &str, depth: usize) -> Option<Value> {
    *rest = rest.trim_start();
    let first = rest.chars().next()?;
    if depth > DEEPEST {
        return None;
    }
    match first {
        '(' => {
            *rest = &rest[1..];
            let mut items = Vec::new();
            loop {
                *rest = rest.trim_start();
                if let Some(after) = rest.strip_prefix(')') {
                    *rest = after;
                    return Some(Value::Tuple(items));
                }
                items.push(parse_value(rest, depth + 1)?);
                *rest = rest.trim_start();
                match rest.strip_prefix(',') {
                    Some(after) => *rest = after,
                    None if rest.starts_with(')') => {}
                    None => return None,
                }
            }
        }
        '\'' | '"' => {
            let mut text = String::new();
            let mut chars = rest[1..].char_indices();
            while let Some((at, char)) = chars.next() {
                match char {
                    '\\' => text.push(chars.next()?.1),
                    char if char == first => {
                        *rest = &rest[1 + at + 1..];
                        return Some(Value::Str(text));
                    }
                    char => text.push(char),
                }
            }
            None
        }
        _ => {
            let end = rest.find([',', ')']).unwrap_or(rest.len());
            let number = rest[..end].trim().parse().ok()?;
            *rest = &rest[end..];
            Some(Value::Int(number))
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn names_of_groups_are_cut_at_a_character() {
        assert_eq!(short("inc"), "inc");
        let most = "x".repeat(LONGEST_GROUP);
        assert_eq!(short(&format!("{most}x")), most);
        let long = format!("x{}", "ä".repeat(LONGEST_GROUP));
        assert_eq!(short(&long).len(), LONGEST_GROUP - 1);
        let key = Value::Str(format!("{long}-1")).to_bytes();
        assert_eq!(group(&key), short(&long));
    }

    #[test]
    fn prefixes_are_those_of_dask() {
        let tuple = Value::Tuple(vec![Value::str("x-2"), Value::Int(1)]);
        for (key, expected) in [
            (Value::str("x"), "x"),
            (Value::str("x-1"), "x"),
            (Value::str("x-1-2-3"), "x"),
            (tuple, "x"),
            (Value::str("hello-world-1"), "hello-world"),
            (Value::str("ae05086432ca935f6eba409a8ecd4896"), "data"),
            (Value::Int(3), "Other"),
            (Value::Tuple(vec![]), "Other"),
        ] {
            assert_eq!(prefix(&key.to_bytes()), expected, "{key:?}");
            let bytes = key.to_bytes();
            for end in 0..bytes.len() {
                prefix(&bytes[..end]);
            }
        }
    }

    #[test]
    fn a_text_finds_the_key_that_it_shows() {
        let keys = [
            Value::str("inc-1"),
            Value::Tuple(vec![Value::str("x-2"), Value::Int(1), Value::Int(-3)]),
            Value::Tuple(vec![Value::str("it's"), Value::Tuple(vec![Value::Int(0)])]),
            Value::str("(not a tuple"),
            Value::str("<b>\"'x'\"</b>"),
        ];
        for key in keys {
            assert!(parse(&display(&key)).contains(&key), "{key:?}");
        }
        assert_eq!(parse(&"(".repeat(100_000)).len(), 1);
    }
}
