//! The column that says where each row goes.

use alloc::vec;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::RowsError;

/// The type of an integer column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Integer {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

/// The partition of each row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partitions {
    pub(crate) of_rows: Vec<u32>,
    pub(crate) count: u32,
}

impl Partitions {
    /// Reads `rows` integers of a column, one every `stride` bytes, in the order of bytes of this
    /// machine. There are `count` partitions.
    ///
    /// # Errors
    /// [`RowsError::Partition`]: the first row that is for none of them. [`RowsError::Column`]: the
    /// column is too short.
    pub fn read(
        bytes: &[u8],
        stride: usize,
        integer: Integer,
        rows: usize,
        count: u32,
    ) -> Result<Self, RowsError> {
        let read = match integer {
            Integer::I8 => read::<1>(bytes, stride, rows, count, |b| i8::from_ne_bytes(b).into()),
            Integer::I16 => read::<2>(bytes, stride, rows, count, |b| i16::from_ne_bytes(b).into()),
            Integer::I32 => read::<4>(bytes, stride, rows, count, |b| i32::from_ne_bytes(b).into()),
            Integer::I64 => read::<8>(bytes, stride, rows, count, |b| i64::from_ne_bytes(b).into()),
            Integer::U8 => read::<1>(bytes, stride, rows, count, |b| u8::from_ne_bytes(b).into()),
            Integer::U16 => read::<2>(bytes, stride, rows, count, |b| u16::from_ne_bytes(b).into()),
            Integer::U32 => read::<4>(bytes, stride, rows, count, |b| u32::from_ne_bytes(b).into()),
            Integer::U64 => read::<8>(bytes, stride, rows, count, |b| u64::from_ne_bytes(b).into()),
        };
        Ok(Self {
            of_rows: read?,
            count,
        })
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.of_rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.of_rows.is_empty()
    }

    /// How many rows are for some partitions.
    pub fn count_in<'r>(&self, wanted: impl IntoIterator<Item = &'r Runs>) -> usize {
        let mut is_wanted = vec![false; self.count as usize];
        for partition in wanted.into_iter().flat_map(Runs::iter) {
            if let Some(is_wanted) = is_wanted.get_mut(partition as usize) {
                *is_wanted = true;
            }
        }
        if is_wanted.iter().all(|&is_wanted| is_wanted) {
            return self.of_rows.len();
        }
        let rows = self.of_rows.iter();
        rows.filter(|&&partition| is_wanted[partition as usize])
            .count()
    }
}

fn read<const W: usize>(
    bytes: &[u8],
    stride: usize,
    rows: usize,
    count: u32,
    value: impl Fn([u8; W]) -> i128,
) -> Result<Vec<u32>, RowsError> {
    let (values, _) = bytes.as_chunks::<W>();
    if stride == W
        && let Some(values) = values.get(..rows)
    {
        // Side by side: they are compared together, and one by one only to find the one that is wrong.
        let mut most = 0_u64;
        let partitions = values.iter().map(|&chunk| {
            // One below 0 is a large unsigned one.
            let value = value(chunk) as u64;
            most = most.max(value);
            value as u32
        });
        let partitions: Vec<u32> = partitions.collect();
        if most < u64::from(count) {
            return Ok(partitions);
        }
    }
    let mut partitions = Vec::with_capacity(rows);
    for row in 0..rows {
        let chunk = bytes
            .get(row * stride..)
            .and_then(|bytes| bytes.first_chunk::<W>());
        let Some(chunk) = chunk else {
            return Err(RowsError::Column { field: 0, rows });
        };
        let value = value(*chunk);
        match u32::try_from(value) {
            Ok(partition) if partition < count => partitions.push(partition),
            _ => {
                let partitions = count;
                return Err(RowsError::Partition {
                    row,
                    value,
                    partitions,
                });
            }
        }
    }
    Ok(partitions)
}
