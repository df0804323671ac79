//! One thing that somebody did.

use treadle_types::{Attempt, ObjectId, TaskId};

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A task ran.
    Task = 0,
    /// A task read its inputs: a part of its span.
    Reading = 1,
    /// A value came from another worker.
    Fetch = 2,
    /// Values or rows went to disk, or came back.
    Spill = 3,
    /// Rows of a shuffle were gathered, pushed or read.
    Shuffle = 4,
    /// A call to many engines.
    Cast = 5,
    /// A task, or a cast, that is not over: only pictures have it.
    Running = 6,
    /// Several of these, in one rectangle of a picture.
    Several = 15,
}

impl Kind {
    /// The kind of a number, of those that are recorded.
    pub(crate) fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Task,
            2 => Self::Fetch,
            3 => Self::Spill,
            4 => Self::Shuffle,
            5 => Self::Cast,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Reading => "reading",
            Self::Fetch => "fetch",
            Self::Spill => "spill",
            Self::Shuffle => "shuffle",
            Self::Cast => "cast",
            Self::Running => "running",
            Self::Several => "several",
        }
    }
}

/// Lanes of a worker beside those of its executor threads.
pub mod lane {
    /// The first of them.
    pub const OTHERS: u16 = 0x8000;
    /// Values that came from other workers.
    pub const FETCH: u16 = OTHERS;
    /// What went to disk and came back.
    pub const SPILL: u16 = OTHERS + 1;
    /// Rows of shuffles.
    pub const SHUFFLE: u16 = OTHERS + 2;
    /// Casts.
    pub const CAST: u16 = OTHERS + 3;

    /// The name of one, for people; `None`: an executor thread.
    pub fn name(lane: u16) -> Option<&'static str> {
        Some(match lane {
            FETCH => "transfers",
            SPILL => "disk",
            SHUFFLE => "shuffles",
            CAST => "casts",
            _ => return None,
        })
    }
}

/// The bit of `Span::flags` of what failed; the five lowest ones are the shift of the offsets.
const FAILED: u8 = 0x80;
/// Bits of a size that are kept.
const MANTISSA: u32 = 27;

/// One thing that was done, in 40 bytes. Offsets are exact up to 4.3 s, and to 2⁻³² of the span beyond;
/// sizes are exact up to 128 MiB, and to 2⁻²⁶ beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    start: u64,
    read: u32,
    computed: u32,
    length: u32,
    task: u32,
    attempt: u32,
    bytes: u32,
    /// The number of its group; of a fetch, the row of the worker that had the value.
    pub(crate) group: u16,
    /// The row of its worker.
    pub(crate) worker: u16,
    pub(crate) lane: u16,
    kind: Kind,
    flags: u8,
}

const _: () = assert!(size_of::<Span>() == 40);

/// What a span is made of. Times out of order are put in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) start: u64,
    pub(crate) read: u64,
    pub(crate) computed: u64,
    pub(crate) end: u64,
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
    pub(crate) group: u16,
    pub(crate) worker: u16,
    pub(crate) lane: u16,
    pub(crate) kind: Kind,
    pub(crate) failed: bool,
}

impl Span {
    #[inline]
    pub(crate) fn new(parts: Parts) -> Self {
        let length = parts.end.saturating_sub(parts.start);
        let bits = u64::BITS - length.leading_zeros();
        let shift = bits.saturating_sub(u32::BITS).min(31);
        let offset = |time: u64| {
            let offset = time.saturating_sub(parts.start).min(length) >> shift;
            u32::try_from(offset).unwrap_or(u32::MAX)
        };
        let read = offset(parts.read);
        Self {
            start: parts.start,
            read,
            computed: offset(parts.computed).max(read),
            length: offset(parts.end),
            task: parts.object.task.0,
            attempt: parts.object.attempt.0,
            bytes: pack(parts.bytes),
            group: parts.group,
            worker: parts.worker,
            lane: parts.lane,
            kind: parts.kind,
            flags: shift as u8 | if parts.failed { FAILED } else { 0 },
        }
    }

    #[inline]
    fn at(&self, offset: u32) -> u64 {
        self.start
            .saturating_add(u64::from(offset) << (self.flags & 0x1f))
    }

    /// When it began.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// When its inputs were there, as objects.
    #[inline]
    pub fn read(&self) -> u64 {
        self.at(self.read)
    }

    /// When its function had returned.
    #[inline]
    pub fn computed(&self) -> u64 {
        self.at(self.computed)
    }

    /// When it was over.
    #[inline]
    pub fn end(&self) -> u64 {
        self.at(self.length)
    }

    /// The value that it is about.
    pub fn object(&self) -> ObjectId {
        ObjectId::new(TaskId(self.task), Attempt(self.attempt))
    }

    /// How many bytes it is about.
    pub fn bytes(&self) -> u64 {
        u64::from(self.bytes & ((1 << MANTISSA) - 1)) << (self.bytes >> MANTISSA)
    }

    /// What was done.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it raised, or brought nothing.
    pub fn is_failed(&self) -> bool {
        self.flags & FAILED != 0
    }
}

/// A size in 32 bits: 27 of it, and how many were left out.
fn pack(bytes: u64) -> u32 {
    let bits = u64::BITS - bytes.leading_zeros();
    let shift = bits.saturating_sub(MANTISSA);
    if shift > 31 {
        return u32::MAX;
    }
    (bytes >> shift) as u32 | shift << MANTISSA
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(length: u64, bytes: u64) -> Parts {
        Parts {
            start: 1_000,
            read: 1_000 + length / 4,
            computed: 1_000 + length / 2,
            end: 1_000 + length,
            object: ObjectId::from_u64(7 << 32 | 3),
            bytes,
            group: 1,
            worker: 2,
            lane: 3,
            kind: Kind::Task,
            failed: true,
        }
    }

    #[test]
    fn short_spans_and_small_sizes_are_exact_and_others_nearly() {
        for length in [0, 1, 999, u64::from(u32::MAX)] {
            let span = Span::new(parts(length, 1 << 20));
            assert_eq!(span.end() - span.start(), length);
            assert_eq!(span.read() - span.start(), length / 4);
            assert_eq!(span.computed() - span.start(), length / 2);
            assert_eq!(span.bytes(), 1 << 20);
        }
        for length in [u64::from(u32::MAX) + 1, 1 << 45, 86_400_000_000_000 * 300] {
            let span = Span::new(parts(length, 12_345_678_901));
            let error = length.abs_diff(span.end() - span.start());
            assert!(error as f64 <= length as f64 * 1e-9, "{length}: {error}");
            assert!(12_345_678_901_u64.abs_diff(span.bytes()) < 1_000);
        }
        let span = Span::new(parts(5, u64::MAX));
        assert!(span.bytes() > 1 << 57);
        assert!(span.is_failed());
        assert_eq!(span.object().to_u64(), 7 << 32 | 3);
    }

    #[test]
    fn times_out_of_order_are_put_in_order() {
        let span = Span::new(Parts {
            start: 100,
            read: 90,
            computed: 500,
            end: 200,
            ..parts(0, 0)
        });
        assert_eq!(
            (span.start(), span.read(), span.computed(), span.end()),
            (100, 100, 200, 200)
        );
        let backwards = Span::new(Parts {
            end: 50,
            ..parts(0, 0)
        });
        assert_eq!(backwards.end(), 1_000);
        let last = Span::new(Parts {
            start: u64::MAX - 1,
            read: u64::MAX,
            computed: u64::MAX,
            end: u64::MAX,
            ..parts(0, 0)
        });
        assert_eq!(last.end(), u64::MAX);
    }
}
