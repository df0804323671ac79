//! Plain values as bytes: keys, small results, the questions that clients ask.
//!
//! Each value has exactly one encoding, so equal keys are equal bytes. A tag comes first; lengths
//! and integers are varints (LEB128, integers zigzag-coded), floats eight bytes, little-endian.
//! Tags from [`TAG_RECIPE`] on belong to recipes, which only the Python side reads.

use alloc::borrow::Cow;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use crate::varint::{self, VarintError};

pub use crate::varint::put as put_varint;

/// The tags of the values.
pub mod tag {
    pub const NONE: u8 = 0;
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    /// A zigzag varint of at most 64 bits.
    pub const INT: u8 = 3;
    /// Eight bytes.
    pub const FLOAT: u8 = 4;
    /// A length and UTF-8.
    pub const STR: u8 = 5;
    /// A length and bytes.
    pub const BYTES: u8 = 6;
    /// A count and values.
    pub const TUPLE: u8 = 7;
    /// A count and values.
    pub const LIST: u8 = 8;
    /// A count, and keys and values in turn, in the order of insertion.
    pub const DICT: u8 = 9;
    /// A length and a pickle.
    pub const PICKLE: u8 = 10;
}

/// Tags from here on are not values.
pub const TAG_RECIPE: u8 = 32;

/// How deep values may be nested.
pub const MAX_DEPTH: usize = 64;

/// A value of plain data.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Python's `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of 64 bits; larger ones are pickled.
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    /// A dictionary, in the order of insertion.
    Dict(Vec<(Value, Value)>),
    /// Any other Python object, pickled.
    Pickle(Vec<u8>),
}

/// Why bytes are not a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// They end too early, or a length points past their end.
    #[error("the encoded value is cut off")]
    Truncated,
    /// An unknown tag, an overlong integer, or text that is not UTF-8.
    #[error("the encoded value is malformed at byte {0}")]
    Malformed(usize),
    /// More nesting than [`MAX_DEPTH`].
    #[error("the encoded value is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// Bytes after the value.
    #[error("{0} bytes follow the encoded value")]
    Trailing(usize),
}

/// Writes a tag and a length or count.
#[inline]
pub fn put_head(tag: u8, length: usize, into: &mut Vec<u8>) {
    into.push(tag);
    put_varint(length as u64, into);
}

/// Writes an integer value.
#[inline]
pub fn put_int(value: i64, into: &mut Vec<u8>) {
    into.push(tag::INT);
    put_varint(varint::zigzag(value), into);
}

/// Writes a float value.
#[inline]
pub fn put_float(value: f64, into: &mut Vec<u8>) {
    into.push(tag::FLOAT);
    into.extend_from_slice(&value.to_le_bytes());
}

/// Writes a string value.
#[inline]
pub fn put_str(value: &str, into: &mut Vec<u8>) {
    put_head(tag::STR, value.len(), into);
    into.extend_from_slice(value.as_bytes());
}

/// Reads encoded bytes front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the front.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next byte, which is not consumed.
    pub fn peek(&self) -> Result<u8, DecodeError> {
        self.bytes
            .get(self.at)
            .copied()
            .ok_or(DecodeError::Truncated)
    }

    /// The next byte.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    /// An unsigned varint, in its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let (value, length) = varint::get(&self.bytes[self.at..]).map_err(|error| match error {
            VarintError::Truncated => DecodeError::Truncated,
            VarintError::Malformed => DecodeError::Malformed(self.at),
        })?;
        self.at += length;
        Ok(value)
    }

    /// A signed integer, without its tag.
    #[inline]
    pub fn int(&mut self) -> Result<i64, DecodeError> {
        self.varint().map(varint::unzigzag)
    }

    /// A float, without its tag.
    pub fn float(&mut self) -> Result<f64, DecodeError> {
        let bytes = self.take(8)?;
        Ok(f64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// So many bytes.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        if length > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        let start = self.at;
        self.at += length;
        Ok(&self.bytes[start..self.at])
    }

    /// A length and so many bytes.
    #[inline]
    pub fn blob(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.varint()?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
        self.take(length)
    }

    /// A length and UTF-8, without the tag.
    #[inline]
    pub fn str(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.at;
        core::str::from_utf8(self.blob()?).map_err(|_| DecodeError::Malformed(start))
    }

    /// A count of things that take at least a byte each, so that it can be trusted for an
    /// allocation.
    #[inline]
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        if count > self.remaining() as u64 {
            return Err(DecodeError::Truncated);
        }
        Ok(count as usize)
    }
}

impl Value {
    /// A string.
    pub fn str(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Str(text.into().into_owned())
    }

    /// The entry of a dictionary under a string.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let Self::Dict(entries) = self else {
            return None;
        };
        let named = |key: &Value| matches!(key, Self::Str(text) if text == name);
        entries
            .iter()
            .find_map(|(key, value)| named(key).then_some(value))
    }

    /// Appends the encoding.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let many = |tag, items: &[Value], into: &mut Vec<u8>| {
            put_head(tag, items.len(), into);
            for item in items {
                item.encode(into);
            }
        };
        match self {
            Self::None => into.push(tag::NONE),
            Self::Bool(true) => into.push(tag::TRUE),
            Self::Bool(false) => into.push(tag::FALSE),
            Self::Int(value) => put_int(*value, into),
            Self::Float(value) => put_float(*value, into),
            Self::Str(text) => put_str(text, into),
            Self::Bytes(bytes) => {
                put_head(tag::BYTES, bytes.len(), into);
                into.extend_from_slice(bytes);
            }
            Self::Tuple(items) => many(tag::TUPLE, items, into),
            Self::List(items) => many(tag::LIST, items, into),
            Self::Dict(entries) => {
                put_head(tag::DICT, entries.len(), into);
                for (key, value) in entries {
                    key.encode(into);
                    value.encode(into);
                }
            }
            Self::Pickle(bytes) => {
                put_head(tag::PICKLE, bytes.len(), into);
                into.extend_from_slice(bytes);
            }
        }
    }

    /// The encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Reads one value, and nothing behind it.
    ///
    /// # Errors
    /// For anything but the encoding of a value.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::decode_at(reader, 0)
    }

    /// Reads bytes that are one value.
    ///
    /// # Errors
    /// For anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        match reader.remaining() {
            0 => Ok(value),
            left => Err(DecodeError::Trailing(left)),
        }
    }

    fn decode_at(reader: &mut Reader<'_>, depth: usize) -> Result<Self, DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        let start = reader.position();
        let many = |reader: &mut Reader<'_>| -> Result<Vec<Value>, DecodeError> {
            let count = reader.count()?;
            // A hostile count costs at most a value's size for each byte that came.
            let mut items = Vec::with_capacity(count.min(1024));
            for _ in 0..count {
                items.push(Self::decode_at(reader, depth + 1)?);
            }
            Ok(items)
        };
        Ok(match reader.byte()? {
            tag::NONE => Self::None,
            tag::TRUE => Self::Bool(true),
            tag::FALSE => Self::Bool(false),
            tag::INT => Self::Int(reader.int()?),
            tag::FLOAT => Self::Float(reader.float()?),
            tag::STR => Self::Str(reader.str()?.to_owned()),
            tag::BYTES => Self::Bytes(reader.blob()?.to_vec()),
            tag::TUPLE => Self::Tuple(many(reader)?),
            tag::LIST => Self::List(many(reader)?),
            tag::DICT => {
                let count = reader.count()?;
                let mut entries = Vec::with_capacity(count.min(1024));
                for _ in 0..count {
                    let key = Self::decode_at(reader, depth + 1)?;
                    entries.push((key, Self::decode_at(reader, depth + 1)?));
                }
                Self::Dict(entries)
            }
            tag::PICKLE => Self::Pickle(reader.blob()?.to_vec()),
            _ => return Err(DecodeError::Malformed(start)),
        })
    }
}
