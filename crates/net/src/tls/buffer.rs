//! Bytes on their way between the socket, the cipher and the caller.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

/// What a buffer starts with: one record, and a little.
const FIRST_SIZE: usize = 17 * 1024;

/// A queue of bytes in one piece of memory that grows up to a limit.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
}

impl Buffer {
    /// `limit` is the most bytes that reading from a socket may fill; what is appended otherwise is
    /// bounded by who appends.
    pub(super) fn new(limit: usize) -> Self {
        Buffer {
            bytes: Vec::new(),
            start: 0,
            end: 0,
            limit,
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Whether `more` bytes can be appended within the limit.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.len() + more <= self.limit
    }

    /// Drops the first `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Memory for `count` bytes after the last; what was written there is kept by
    /// [`Buffer::append`].
    pub(super) fn space(&mut self, count: usize) -> &mut [u8] {
        let needed = self.end + count;
        if needed > self.bytes.len() {
            self.bytes.resize(needed.next_multiple_of(FIRST_SIZE), 0);
        }
        &mut self.bytes[self.end..needed]
    }

    pub(super) fn append(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// Reads once; 0 at the end of the stream.
    pub(super) fn read_from(&mut self, socket: &mut impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let grown = (self.end * 2).clamp(FIRST_SIZE, self.limit);
            debug_assert!(grown > self.end, "no record is as long as the limit");
            self.bytes.resize(grown, 0);
        }
        loop {
            match socket.read(&mut self.bytes[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes until nothing is left (`true`) or the socket takes no more (`false`).
    pub(super) fn write_to(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        while !self.is_empty() {
            match socket.write(self.filled()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.consume(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The caller's plaintext, to be taken from the front.
pub(super) struct Sources<'a> {
    slices: &'a [IoSlice<'a>],
    offset: usize,
    taken: usize,
}

impl<'a> Sources<'a> {
    pub(super) fn new(slices: &'a [IoSlice<'a>]) -> Self {
        let mut sources = Sources {
            slices,
            offset: 0,
            taken: 0,
        };
        sources.skip_empty();
        sources
    }

    /// The rest of the first slice that has a rest; empty at the end.
    pub(super) fn current(&self) -> &'a [u8] {
        self.slices.first().map_or(&[], |s| &s[self.offset..])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Takes `count` bytes of the current slice.
    pub(super) fn take(&mut self, count: usize) {
        self.offset += count;
        self.taken += count;
        self.skip_empty();
    }

    fn skip_empty(&mut self) {
        while let Some((first, rest)) = self.slices.split_first()
            && self.offset == first.len()
        {
            self.slices = rest;
            self.offset = 0;
        }
    }
}

/// The caller's memory for plaintext, to be filled from the front.
pub(super) struct Targets<'a, 'b> {
    slices: &'a mut [IoSliceMut<'b>],
    first: usize,
    offset: usize,
    filled: usize,
}

impl<'a, 'b> Targets<'a, 'b> {
    pub(super) fn new(slices: &'a mut [IoSliceMut<'b>]) -> Self {
        let mut targets = Targets {
            slices,
            first: 0,
            offset: 0,
            filled: 0,
        };
        targets.skip_full();
        targets
    }

    /// The rest of the first slice that has room; empty when all are full.
    pub(super) fn current(&mut self) -> &mut [u8] {
        match self.slices.get_mut(self.first) {
            Some(slice) => &mut slice[self.offset..],
            None => &mut [],
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.first == self.slices.len()
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Notes that `count` bytes of the current slice were filled.
    pub(super) fn fill(&mut self, count: usize) {
        self.offset += count;
        self.filled += count;
        self.skip_full();
    }

    /// Copies as much of `bytes` as there is room for; returns how much.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> usize {
        let mut copied = 0;
        while copied < bytes.len() && !self.is_full() {
            let target = self.current();
            let count = target.len().min(bytes.len() - copied);
            target[..count].copy_from_slice(&bytes[copied..copied + count]);
            self.fill(count);
            copied += count;
        }
        copied
    }

    fn skip_full(&mut self) {
        while self
            .slices
            .get(self.first)
            .is_some_and(|slice| slice.len() == self.offset)
        {
            self.first += 1;
            self.offset = 0;
        }
    }
}
