//! Reading bytes that anybody may have written.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use treadle_types::varint;

/// Bytes that are none of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed at byte {0}")]
pub struct Malformed(pub usize);

/// Reads front to back.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn wrong(&self) -> Malformed {
        Malformed(self.at)
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed(self.at))?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let (value, length) =
            varint::get(&self.bytes[self.at..]).map_err(|_| Malformed(self.at))?;
        self.at += length;
        Ok(value)
    }

    pub(crate) fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }

    #[inline]
    pub(crate) fn small(&mut self) -> Result<u32, Malformed> {
        let value = self.number()?;
        value.try_into().map_err(|_| Malformed(self.at))
    }

    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        self.number().map(varint::unzigzag)
    }

    /// How many things follow, of `least` bytes each: no more than there can be.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.number()?;
        self.fitting(count, least)
    }

    /// The same of a count that was read.
    pub(crate) fn fitting(&self, count: u64, least: usize) -> Result<usize, Malformed> {
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / least => Ok(count),
            _ => Err(Malformed(self.at)),
        }
    }

    pub(crate) fn short(&mut self) -> Result<u16, Malformed> {
        let value = self.number()?;
        value.try_into().map_err(|_| Malformed(self.at))
    }

    pub(crate) fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.count(1)?;
        let slice = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(slice)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let at = self.at;
        core::str::from_utf8(self.slice()?).map_err(|_| Malformed(at))
    }

    pub(crate) fn string(&mut self) -> Result<String, Malformed> {
        self.text().map(ToOwned::to_owned)
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.left() {
            0 => Ok(()),
            _ => Err(Malformed(self.at)),
        }
    }
}

pub(crate) fn put(value: u64, into: &mut Vec<u8>) {
    varint::put(value, into);
}

pub(crate) fn put_signed(value: i64, into: &mut Vec<u8>) {
    varint::put(varint::zigzag(value), into);
}

pub(crate) fn put_slice(bytes: &[u8], into: &mut Vec<u8>) {
    varint::put(bytes.len() as u64, into);
    into.extend_from_slice(bytes);
}
