//! Columns: one field of many messages, as bytes.

use bytes::Bytes;

use super::WireError;

/// A column that is being written.
#[derive(Debug, Default)]
pub(super) struct Column {
    bytes: Vec<u8>,
    last: u64,
}

impl Column {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub(super) fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Writes the difference from the entry before.
    #[inline]
    pub(super) fn put_delta(&mut self, value: u64) {
        let difference = value.wrapping_sub(self.last) as i64;
        self.last = value;
        self.put((difference << 1 ^ difference >> 63) as u64);
    }

    #[inline]
    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Empties it. Keeps as much memory as the next packet is likely to need, if that is little.
    pub(super) fn clear(&mut self) {
        const KEPT: usize = 512;
        self.last = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }

    /// Appends it as a field of a message, unless it is empty, and empties it.
    pub(super) fn write(&mut self, field: u32, into: &mut Vec<u8>) {
        if !self.bytes.is_empty() {
            head(field, self.bytes.len(), into);
            into.extend_from_slice(&self.bytes);
        }
        self.clear();
    }

    /// How long the field is.
    pub(super) fn written(&self, field: u32) -> usize {
        if self.bytes.is_empty() {
            return 0;
        }
        let length = self.bytes.len();
        prost::encoding::key_len(field)
            + prost::encoding::encoded_len_varint(length as u64)
            + length
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

/// The key and the length of a field that has one.
pub(super) fn head(field: u32, length: usize, into: &mut Vec<u8>) {
    prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, into);
    prost::encoding::encode_varint(length as u64, into);
}

/// A column that is being read.
#[derive(Debug)]
pub(super) struct Cells {
    name: &'static str,
    bytes: Bytes,
    at: usize,
    last: u64,
}

impl Cells {
    pub(super) fn new(name: &'static str, bytes: Bytes) -> Self {
        Self {
            name,
            bytes,
            at: 0,
            last: 0,
        }
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Passes over bytes that are there.
    pub(super) fn skip(&mut self, length: usize) {
        self.at += length;
    }

    pub(super) fn short(&self) -> WireError {
        WireError::Short { column: self.name }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Refuses entries that nothing has asked for.
    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.is_done() {
            Ok(())
        } else {
            Err(WireError::Surplus { column: self.name })
        }
    }

    #[inline]
    pub(super) fn get(&mut self) -> Result<u64, WireError> {
        match self.bytes[self.at..] {
            [byte, ..] if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            [first, second, ..] if second < 0x80 && second > 0 => {
                self.at += 2;
                Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
            }
            _ => self.get_long(),
        }
    }

    fn get_long(&mut self) -> Result<u64, WireError> {
        let column = self.name;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(WireError::Short { column })?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let overlong = byte == 0 && shift > 0;
                let overflow = shift == 63 && byte > 1;
                return if overlong || overflow {
                    Err(WireError::Integer { column })
                } else {
                    Ok(value)
                };
            }
        }
        Err(WireError::Integer { column })
    }

    fn small<T: TryFrom<u64>>(&self, value: u64) -> Result<T, WireError> {
        let column = self.name;
        T::try_from(value).map_err(|_| WireError::Range { column, value })
    }

    #[inline]
    pub(super) fn get_u32(&mut self) -> Result<u32, WireError> {
        let value = self.get()?;
        self.small(value)
    }

    #[inline]
    pub(super) fn get_u16(&mut self) -> Result<u16, WireError> {
        let value = self.get()?;
        self.small(value)
    }

    #[inline]
    pub(super) fn get_delta(&mut self) -> Result<u64, WireError> {
        let code = self.get()?;
        let difference = (code >> 1) as i64 ^ -((code & 1) as i64);
        self.last = self.last.wrapping_add(difference as u64);
        Ok(self.last)
    }

    #[inline]
    pub(super) fn get_delta_u32(&mut self) -> Result<u32, WireError> {
        let value = self.get_delta()?;
        self.small(value)
    }

    /// Flags of which only `known` may be set.
    #[inline]
    pub(super) fn get_flags(&mut self, known: u64) -> Result<u64, WireError> {
        let value = self.get()?;
        if value & !known != 0 {
            let column = self.name;
            return Err(WireError::Range { column, value });
        }
        Ok(value)
    }

    /// A count of things that take at least a byte each in `column`, so that it can be trusted for
    /// an allocation.
    #[inline]
    pub(super) fn get_count(&mut self, column: &Cells) -> Result<usize, WireError> {
        let count = self.get()?;
        if count > column.remaining() as u64 {
            return Err(WireError::Short {
                column: column.name,
            });
        }
        Ok(count as usize)
    }

    /// The next so many bytes, as a view.
    #[inline]
    pub(super) fn slice(&mut self, length: u64) -> Result<Bytes, WireError> {
        if length > self.remaining() as u64 {
            return Err(WireError::Short { column: self.name });
        }
        let start = self.at;
        self.at += length as usize;
        Ok(if length == 0 {
            Bytes::new()
        } else {
            self.bytes.slice(start..self.at)
        })
    }

    /// The next so many bytes.
    #[inline]
    pub(super) fn take(&mut self, length: u64) -> Result<&[u8], WireError> {
        if length > self.remaining() as u64 {
            return Err(WireError::Short { column: self.name });
        }
        let start = self.at;
        self.at += length as usize;
        Ok(&self.bytes[start..self.at])
    }
}
