//! Pieces of arrays: a chunk is put together of those that all maps have for it.
//!
//! A piece is a variable row with one field of bytes: a head, and the elements in C order.
//!
//! ```text
//! 0      4   length of what follows up to the elements
//! 4      1   1: the elements follow
//! 5      1   axes
//! 6      4   for each axis: the position of the piece among those of the chunk
//!        8   for each axis: how many elements
//!        ..  the type of the elements: the host's
//! ```
//!
//! Heads of another kind are the host's own.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::format::Head;
use crate::join::walk;
use crate::{RowsError, View};

/// Bytes before the rest of a head.
const LENGTH: usize = 4;
/// The kind of a head whose elements follow.
const PLAIN: u8 = 1;
/// An array has fewer axes.
const MOST_AXES: usize = 64;

/// The head of a piece whose elements follow, with its length; `kind` is the type of the elements.
///
/// `None`: it has too many axes, or not a position for each.
pub fn plain_head(index: &[u32], shape: &[usize], kind: &[u8]) -> Option<Vec<u8>> {
    if index.len() != shape.len() || index.len() > MOST_AXES {
        return None;
    }
    let length = 2 + 12 * index.len() + kind.len();
    let mut head = Vec::with_capacity(LENGTH + length);
    head.extend(u32::try_from(length).ok()?.to_le_bytes());
    head.extend([PLAIN, index.len() as u8]);
    head.extend(index.iter().flat_map(|at| at.to_le_bytes()));
    head.extend(shape.iter().flat_map(|&count| (count as u64).to_le_bytes()));
    head.extend(kind);
    Some(head)
}

/// A piece of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<'a> {
    /// Its position along each axis, among the pieces of the chunk.
    pub index: Vec<u32>,
    /// Its elements along each axis.
    pub shape: Vec<usize>,
    pub elements: &'a [u8],
}

/// The pieces of a chunk, and what they are together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk<'a> {
    parts: Vec<Part<'a>>,
    /// The type of the elements: the host's.
    kind: &'a [u8],
    /// Where each piece begins along each axis, and the end.
    starts: Vec<Vec<usize>>,
}

impl<'a> Chunk<'a> {
    /// The chunk of these pieces. `Ok(None)`: some are not plain, their types differ, or there are
    /// none. The host puts these together.
    ///
    /// # Errors
    /// [`RowsError::Damaged`]: these are no pieces. [`RowsError::Parts`]: some are missing, or do not
    /// fit.
    pub fn new(pieces: &[&'a [u8]]) -> Result<Option<Self>, RowsError> {
        let format = Head::of_bytes();
        let mut parts = Vec::new();
        let mut kinds: Option<&[u8]> = None;
        let mut is_plain = true;
        for (number, piece) in pieces.iter().enumerate() {
            walk(number, piece, |_, row| {
                let mut field = None;
                row.fields(&format, |_, content| field = content)?;
                let (head, elements) = split(field?)?;
                match plain(head, elements)? {
                    Some((part, kind)) => {
                        is_plain &= *kinds.get_or_insert(kind) == kind;
                        parts.push(part);
                    }
                    None => is_plain = false,
                }
                Some(())
            })?;
        }
        let Some(kind) = kinds.filter(|_| is_plain) else {
            return Ok(None);
        };
        let starts = starts(&parts).ok_or(RowsError::Parts { found: parts.len() })?;
        Ok(Some(Self {
            parts,
            kind,
            starts,
        }))
    }

    /// The type of its elements.
    pub fn kind(&self) -> &'a [u8] {
        self.kind
    }

    /// Its elements along each axis.
    pub fn shape(&self) -> impl Iterator<Item = usize> + '_ {
        self.starts.iter().filter_map(|axis| axis.last().copied())
    }

    /// Writes all elements, of `width` bytes, in C order.
    ///
    /// # Errors
    /// [`RowsError::Memory`]: `to` has another length. [`RowsError::Parts`]: a piece has another one.
    pub fn fill(&self, width: usize, to: &mut [u8]) -> Result<(), RowsError> {
        let found = self.parts.len();
        let mut strides = Vec::from_iter(self.shape());
        let mut stride = Some(width);
        for place in strides.iter_mut().rev() {
            let count = *place;
            *place = stride.ok_or(RowsError::Parts { found })?;
            stride = place.checked_mul(count);
        }
        let expected = stride.ok_or(RowsError::Parts { found })?;
        if to.len() != expected {
            let found = to.len();
            return Err(RowsError::Memory { expected, found });
        }
        for part in &self.parts {
            let places = part.index.iter().zip(&self.starts);
            let start = places.zip(&strides);
            let start: usize = start.map(|((&at, axis), s)| axis[at as usize] * s).sum();
            let view = View::new(width, &part.shape, &strides);
            let view = view.filter(|view| view.len() == part.elements.len());
            let view = view.ok_or(RowsError::Parts { found })?;
            if !view.is_empty() {
                view.write(part.elements, &mut to[start..]);
            }
        }
        Ok(())
    }
}

/// The head of a field, and the elements.
fn split(field: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = field.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// A piece with the type of its elements. `Some(None)`: it is not plain. `None`: it is damaged.
fn plain<'a>(head: &'a [u8], elements: &'a [u8]) -> Option<Option<(Part<'a>, &'a [u8])>> {
    let (&kind, rest) = head.split_first()?;
    if kind != PLAIN {
        return Some(None);
    }
    let (&axes, rest) = rest.split_first()?;
    let axes = usize::from(axes);
    let (index, rest) = rest.split_at_checked(4 * axes)?;
    let (shape, kind) = rest.split_at_checked(8 * axes)?;
    let shape = shape.as_chunks::<8>().0.iter();
    let shape = shape.map(|count| usize::try_from(u64::from_le_bytes(*count)).ok());
    let part = Part {
        index: index
            .as_chunks::<4>()
            .0
            .iter()
            .map(|at| u32::from_le_bytes(*at))
            .collect(),
        shape: shape.collect::<Option<_>>()?,
        elements,
    };
    Some(Some((part, kind)))
}

/// Where pieces begin along each axis, and the end. `None`: they are no whole grid.
fn starts(parts: &[Part<'_>]) -> Option<Vec<Vec<usize>>> {
    let axes = parts.first()?.shape.len();
    let mut sizes: Vec<BTreeMap<u32, usize>> = Vec::new();
    sizes.resize(axes, BTreeMap::new());
    let mut indexes: Vec<&[u32]> = Vec::with_capacity(parts.len());
    for part in parts {
        if part.index.len() != axes {
            return None;
        }
        for ((axis, &at), &size) in sizes.iter_mut().zip(&part.index).zip(&part.shape) {
            if *axis.entry(at).or_insert(size) != size {
                return None;
            }
        }
        indexes.push(&part.index);
    }
    indexes.sort_unstable();
    let is_unique = indexes.windows(2).all(|pair| pair[0] != pair[1]);
    let mut counts = sizes.iter().map(BTreeMap::len);
    let expected = counts.try_fold(1_usize, |all, count| all.checked_mul(count));
    let is_whole = |axis: &BTreeMap<u32, usize>| axis.keys().copied().eq(0..axis.len() as u32);
    if !is_unique || expected != Some(parts.len()) || !sizes.iter().all(is_whole) {
        return None;
    }
    let starts = sizes.iter().map(|axis| {
        let mut starts = Vec::from([0_usize]);
        for &size in axis.values() {
            starts.push(starts.last()?.checked_add(size)?);
        }
        Some(starts)
    });
    starts.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row with one field: a head and elements.
    fn row(head: &[u8], elements: &[u8]) -> Vec<u8> {
        let field = head.len() + elements.len();
        let mut row = ((8 + field) as u32).to_le_bytes().to_vec();
        row.extend((field as u32).to_le_bytes());
        row.extend(head);
        row.extend(elements);
        row
    }

    fn part(at: u32, elements: &[u8]) -> Vec<u8> {
        row(
            &plain_head(&[at], &[elements.len()], b"|u1").unwrap(),
            elements,
        )
    }

    #[test]
    fn pieces_make_up_a_chunk_in_any_order() {
        let (first, second) = (part(0, &[1, 2, 3]), part(1, &[4, 5]));
        let chunk = Chunk::new(&[&second, &first]).unwrap().unwrap();
        assert_eq!(
            (chunk.kind(), chunk.shape().collect()),
            (&b"|u1"[..], vec![5])
        );
        let mut found = [0; 5];
        chunk.fill(1, &mut found).unwrap();
        assert_eq!(found, [1, 2, 3, 4, 5]);
        let short = chunk.fill(1, &mut found[..4]);
        assert!(matches!(short, Err(RowsError::Memory { .. })));
        assert!(matches!(
            chunk.fill(2, &mut [0; 10]),
            Err(RowsError::Parts { .. })
        ));
    }

    #[test]
    fn pieces_that_are_missing_or_there_twice_are_an_error() {
        let (first, second) = (part(0, &[1]), part(1, &[2]));
        for pieces in [
            &[&*second][..],
            &[&first, &first],
            &[&first, &second, &second],
        ] {
            assert!(
                matches!(Chunk::new(pieces), Err(RowsError::Parts { .. })),
                "{pieces:?}"
            );
        }
        let other = row(&[1, 0, 0, 0, 0], b"pickled");
        assert_eq!(Chunk::new(&[&first, &other]), Ok(None));
        assert_eq!(Chunk::new(&[]), Ok(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_taken_without_a_panic(
            head in prop::collection::vec(any::<u8>(), 0..40),
            elements in prop::collection::vec(any::<u8>(), 0..20),
            axes in 0_u8..4,
        ) {
            let mut head = head;
            if head.len() > 6 {
                let length = head.len() as u32 - 4;
                head[..4].copy_from_slice(&length.to_le_bytes());
                (head[4], head[5]) = (PLAIN, axes);
            }
            let row = row(&head, &elements);
            if let Ok(Some(chunk)) = Chunk::new(&[&row]) {
                let _ = chunk.fill(1, &mut vec![0; elements.len()]);
            }
        }
    }
}
