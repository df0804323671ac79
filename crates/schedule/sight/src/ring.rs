//! The latest spans, in chunks that are allocated as they come, up to a number of bytes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::span::Span;

/// Spans of one chunk.
const CHUNK: usize = 1 << 13;

/// Spans that came one after the other.
#[derive(Debug)]
pub(crate) struct Chunk {
    spans: Vec<Span>,
    /// When the first of them began, and the last ended.
    from: u64,
    to: u64,
}

impl Chunk {
    fn is_in(&self, from: u64, to: u64) -> bool {
        self.from <= to && self.to >= from
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    chunks: VecDeque<Chunk>,
    /// How many chunks there may be.
    most: usize,
    /// Spans that made room for others.
    lost: u64,
    kept: u64,
}

impl Ring {
    /// Keeps at most so many bytes, and two chunks at least.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            most: (bytes / (CHUNK * size_of::<Span>())).max(2),
            lost: 0,
            kept: 0,
        }
    }

    pub(crate) fn push(&mut self, span: Span) {
        if self
            .chunks
            .back()
            .is_none_or(|chunk| chunk.spans.len() == CHUNK)
        {
            let mut spans = match self.chunks.len() {
                // The memory of the oldest is used again.
                length if length == self.most => {
                    let oldest = self.chunks.pop_front();
                    oldest.map(|chunk| chunk.spans).unwrap_or_default()
                }
                _ => Vec::with_capacity(CHUNK),
            };
            self.lost += spans.len() as u64;
            self.kept -= spans.len() as u64;
            spans.clear();
            self.chunks.push_back(Chunk {
                spans,
                from: u64::MAX,
                to: 0,
            });
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.from = chunk.from.min(span.start());
            chunk.to = chunk.to.max(span.end());
            chunk.spans.push(span);
            self.kept += 1;
        }
    }

    /// Those that touch a time, in the order in which they came.
    pub(crate) fn within(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = &Span> {
        let chunks = self
            .chunks
            .iter()
            .filter(move |chunk| chunk.is_in(from, to));
        chunks
            .flat_map(|chunk| chunk.spans.iter())
            .filter(move |span| span.start() <= to && span.end() >= from)
    }

    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn bytes(&self) -> usize {
        let spans = self.chunks.iter().map(|chunk| chunk.spans.capacity());
        spans.sum::<usize>() * size_of::<Span>()
    }

    pub(crate) fn limit(&self) -> usize {
        self.most * CHUNK * size_of::<Span>()
    }

    /// From the beginning of the first to the end of the last that is kept.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let from = self.chunks.iter().map(|chunk| chunk.from).min()?;
        let to = self.chunks.iter().map(|chunk| chunk.to).max()?;
        Some((from, to))
    }

    pub(crate) fn check(&self) {
        assert!(self.chunks.len() <= self.most);
        assert!(self.bytes() <= self.limit());
        let kept: usize = self.chunks.iter().map(|chunk| chunk.spans.len()).sum();
        assert_eq!(kept as u64, self.kept);
        for chunk in &self.chunks {
            assert!(!chunk.spans.is_empty() && chunk.spans.len() <= CHUNK);
            let inside = |span: &Span| chunk.from <= span.start() && span.end() <= chunk.to;
            assert!(chunk.spans.iter().all(inside));
        }
        // All but the last are full.
        let full = self.chunks.iter().rev().skip(1);
        assert!(full.into_iter().all(|chunk| chunk.spans.len() == CHUNK));
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::ObjectId;

    use super::*;
    use crate::span::{Kind, Parts};

    fn span(start: u64) -> Span {
        Span::new(Parts {
            start,
            read: start,
            computed: start,
            end: start + 10,
            object: ObjectId::from_u64(start),
            bytes: 0,
            group: 0,
            worker: 0,
            lane: 0,
            kind: Kind::Task,
            failed: false,
        })
    }

    #[test]
    fn the_oldest_make_room_and_are_counted() {
        let mut ring = Ring::new(2 * CHUNK * size_of::<Span>());
        let count = 5 * CHUNK as u64 + 3;
        for start in 0..count {
            ring.push(span(start));
        }
        ring.check();
        assert_eq!(ring.kept() + ring.lost(), count);
        assert_eq!(ring.kept(), CHUNK as u64 + 3);
        assert_eq!(ring.bytes(), 2 * CHUNK * size_of::<Span>());
        assert_eq!(ring.extent(), Some((ring.lost(), count - 1 + 10)));
        assert_eq!(ring.within(0, u64::MAX).count() as u64, ring.kept());
        let few: Vec<u64> = ring.within(count - 2, u64::MAX).map(Span::start).collect();
        assert_eq!(few.first(), Some(&(count - 12)));
    }
}
