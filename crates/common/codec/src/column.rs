//! Columns: one field of many messages, as bytes.

use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::varint::{self, VarintError};

use crate::{Detacher, Kept, WireError};

/// The most entries of a list in one message. What somebody wants to say about more of them takes several
/// messages.
pub const MOST: u64 = 1 << 20;
/// The most values of a list in columns. There may be more of them than of the things that they are parts of.
/// Each value takes bytes: the length of the message is the limit that counts.
pub const MOST_LISTED: u64 = 1 << 24;

/// A column that is being written.
#[derive(Debug, Default)]
pub struct Column {
    bytes: Vec<u8>,
    // A column is written in one way: of differences this is the entry before, of sparse entries the zeros
    // before the next one, of names where the last one begins.
    last: u64,
}

impl Column {
    /// Makes room for so many bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Writes an integer.
    #[inline]
    pub fn put(&mut self, value: u64) {
        varint::put(value, &mut self.bytes);
    }

    /// Writes the difference from the entry before.
    #[inline]
    pub fn put_delta(&mut self, value: u64) {
        let difference = value.wrapping_sub(self.last) as i64;
        self.last = value;
        self.put(varint::zigzag(difference));
    }

    /// Writes an entry of a column most of whose entries are 0: these take nothing, and any other one has
    /// their number before it.
    #[inline]
    pub(crate) fn put_sparse(&mut self, value: u64) {
        if value == 0 {
            self.last += 1;
            return;
        }
        let zeros = core::mem::take(&mut self.last);
        self.put(zeros);
        self.put(value);
    }

    /// Writes bytes, without their length.
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes bytes unless they are those before; returns whether it did.
    #[inline]
    pub(crate) fn put_new_bytes(&mut self, bytes: &[u8]) -> bool {
        let before = &self.bytes[self.last as usize..];
        if before == bytes {
            return false;
        }
        self.last = self.bytes.len() as u64;
        self.put_bytes(bytes);
        true
    }

    /// Appends it as a field of a message, unless it is empty, and empties it. Keeps as much memory
    /// as the next packet is likely to need, if that is little.
    pub fn write(&mut self, field: u32, into: &mut Vec<u8>) {
        const KEPT: usize = 512;
        if !self.bytes.is_empty() {
            head(field, self.bytes.len(), into);
            into.extend_from_slice(&self.bytes);
        }
        self.last = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }

    /// How long the field is.
    pub fn written(&self, field: u32) -> usize {
        if self.bytes.is_empty() {
            return 0;
        }
        let length = self.bytes.len();
        prost::encoding::key_len(field)
            + prost::encoding::encoded_len_varint(length as u64)
            + length
    }

    /// What was written.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

/// The key and the length of a field that has one.
pub fn head(field: u32, length: usize, into: &mut Vec<u8>) {
    prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, into);
    prost::encoding::encode_varint(length as u64, into);
}

/// A column that is being read.
#[derive(Debug)]
pub struct Cells {
    name: &'static str,
    bytes: Bytes,
    at: usize,
    last: u64,
}

impl Cells {
    /// A column of this name, for errors.
    pub fn new(name: &'static str, bytes: Bytes) -> Self {
        Self {
            name,
            bytes,
            at: 0,
            last: 0,
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// What was not read yet.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Passes over bytes that are there.
    pub(crate) fn skip(&mut self, length: usize) {
        self.at += length;
    }

    pub(crate) fn short(&self) -> WireError {
        WireError::Short { column: self.name }
    }

    /// An entry has no meaning.
    #[cold]
    pub fn range(&self, value: u64) -> WireError {
        WireError::Range {
            column: self.name,
            value,
        }
    }

    /// Whether there are no more entries.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Refuses entries that nothing has asked for.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.is_done() {
            Ok(())
        } else {
            Err(WireError::Surplus { column: self.name })
        }
    }

    /// The next integer.
    ///
    /// # Errors
    /// For an integer that is not whole, or malformed.
    #[inline]
    pub fn get(&mut self) -> Result<u64, WireError> {
        match self.bytes.get(self.at) {
            // Most are small. The general way costs a call.
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(byte.into())
            }
            _ => self.get_long(),
        }
    }

    #[inline(never)]
    fn get_long(&mut self) -> Result<u64, WireError> {
        match varint::get(self.rest()) {
            Ok((value, length)) => {
                self.at += length;
                Ok(value)
            }
            Err(VarintError::Truncated) => Err(self.short()),
            Err(VarintError::Malformed) => Err(WireError::Integer { column: self.name }),
        }
    }

    /// The next integer of a column of differences.
    ///
    /// # Errors
    /// As [`Cells::get`].
    #[inline]
    pub fn get_delta(&mut self) -> Result<u64, WireError> {
        let difference = varint::unzigzag(self.get()?);
        self.last = self.last.wrapping_add(difference as u64);
        Ok(self.last)
    }

    #[inline]
    pub(crate) fn get_sparse(&mut self) -> Result<u64, WireError> {
        if self.last == 0 {
            if self.is_done() {
                return Ok(0);
            }
            self.last = self.get()?.saturating_add(1);
        }
        self.last -= 1;
        match self.last {
            0 => self.get(),
            _ => Ok(0),
        }
    }

    /// The next so many bytes.
    #[inline]
    pub(crate) fn take(&mut self, length: u64) -> Result<&[u8], WireError> {
        if length > self.rest().len() as u64 {
            return Err(self.short());
        }
        let start = self.at;
        self.at += length as usize;
        Ok(&self.bytes[start..self.at])
    }

    /// The next so many bytes, as a view.
    #[inline]
    pub(crate) fn slice(&mut self, length: u64) -> Result<Bytes, WireError> {
        let start = self.at;
        let is_empty = self.take(length)?.is_empty();
        Ok(if is_empty {
            Bytes::new()
        } else {
            self.bytes.slice(start..self.at)
        })
    }
}

/// A column of its own.
pub fn put_all<T>(values: &[T], put: impl Fn(&mut Column, &T)) -> Bytes {
    let mut column = Column::default();
    for value in values {
        put(&mut column, value);
    }
    column.into_bytes()
}

/// The entries of a column, to its end.
///
/// # Errors
/// Those of `get`, and for more than [`MOST`] entries.
pub fn get_all<T>(
    bytes: Bytes,
    mut get: impl FnMut(&mut Cells) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    // Never less than a byte an entry, and mostly little more.
    let mut values = Vec::with_capacity(bytes.len().min(MOST as usize));
    let mut column = Cells::new("", bytes);
    while !column.is_done() {
        values.push(get(&mut column)?);
        at_most("", values.len() as u64, MOST)?;
    }
    Ok(values)
}

/// Refuses more entries than there may be.
///
/// # Errors
/// For more.
pub fn at_most(what: &'static str, count: u64, most: u64) -> Result<(), WireError> {
    if count > most {
        return Err(WireError::TooMany { what, count, most });
    }
    Ok(())
}

/// Columns that are written, in the order of their fields.
pub trait Columns: Default {
    /// Does this to each of them.
    fn each(&mut self, act: &mut impl FnMut(&mut Column));
}

impl Columns for Column {
    fn each(&mut self, act: &mut impl FnMut(&mut Column)) {
        act(self);
    }
}

/// Columns that are read.
pub trait Rows: Sized {
    /// From names and bytes in the order of the fields.
    fn new(columns: &mut impl Iterator<Item = (&'static str, Bytes)>, detacher: Detacher) -> Self;

    /// Refuses what is left over.
    ///
    /// # Errors
    /// For anything.
    fn end(&self) -> Result<(), WireError>;
}

impl Rows for Cells {
    fn new(columns: &mut impl Iterator<Item = (&'static str, Bytes)>, _: Detacher) -> Self {
        let (name, bytes) = columns.next().unwrap_or_default();
        Self::new(name, bytes)
    }

    fn end(&self) -> Result<(), WireError> {
        self.end()
    }
}

impl Rows for Kept {
    fn new(columns: &mut impl Iterator<Item = (&'static str, Bytes)>, detacher: Detacher) -> Self {
        detacher.column(Rows::new(columns, detacher))
    }

    fn end(&self) -> Result<(), WireError> {
        self.end()
    }
}

/// No column: what a codec remembers.
impl Rows for Bytes {
    fn new(_: &mut impl Iterator<Item = (&'static str, Bytes)>, _: Detacher) -> Self {
        Self::new()
    }

    fn end(&self) -> Result<(), WireError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        #[allow(non_snake_case)]
        impl<$($part: Columns),*> Columns for ($($part,)*) {
            fn each(&mut self, act: &mut impl FnMut(&mut Column)) {
                let ($($part,)*) = self;
                $($part.each(act);)*
            }
        }

        #[allow(non_snake_case)]
        impl<$($part: Rows),*> Rows for ($($part,)*) {
            fn new(columns: &mut impl Iterator<Item = (&'static str, Bytes)>, detacher: Detacher) -> Self {
                ($($part::new(columns, detacher),)*)
            }

            fn end(&self) -> Result<(), WireError> {
                let ($($part,)*) = self;
                $($part.end()?;)*
                Ok(())
            }
        }
    )*};
}

tuples! { (A B) (A B C) (A B C D) (A B C D E) }
