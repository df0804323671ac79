//! Rows to columns and columns to rows, for a block of rows that fits the nearest cache.

/// Rows of a block.
pub(crate) const BLOCK: usize = 128;
/// Bytes of a block, if it has more than one row.
const MOST: usize = 1 << 20;

/// Rows of a block, if each has so many bytes.
pub(crate) fn rows_of_block(width: usize) -> usize {
    (MOST / width.max(1)).clamp(1, BLOCK)
}

/// Copies `rows` values of `width` bytes, `from_step` bytes apart, to places `to_step` bytes apart.
pub(crate) fn copy(
    from: &[u8],
    from_step: usize,
    to: &mut [u8],
    to_step: usize,
    width: usize,
    rows: usize,
) {
    match width {
        1 => copy_width::<1>(from, from_step, to, to_step, rows),
        2 => copy_width::<2>(from, from_step, to, to_step, rows),
        4 => copy_width::<4>(from, from_step, to, to_step, rows),
        8 => copy_width::<8>(from, from_step, to, to_step, rows),
        16 => copy_width::<16>(from, from_step, to, to_step, rows),
        _ => {
            for row in 0..rows {
                let value = &from[row * from_step..][..width];
                to[row * to_step..][..width].copy_from_slice(value);
            }
        }
    }
}

/// The same with a width that the compiler knows, and a loop for values that are side by side.
fn copy_width<const W: usize>(
    from: &[u8],
    from_step: usize,
    to: &mut [u8],
    to_step: usize,
    rows: usize,
) {
    if from_step == W {
        let values = from.as_chunks::<W>().0;
        for (value, place) in values[..rows].iter().zip(to.chunks_mut(to_step)) {
            place[..W].copy_from_slice(value);
        }
    } else if to_step == W && from_step >= W {
        let places = to.as_chunks_mut::<W>().0;
        for (value, place) in from.chunks(from_step).zip(&mut places[..rows]) {
            place.copy_from_slice(&value[..W]);
        }
    } else {
        for row in 0..rows {
            let value = &from[row * from_step..][..W];
            to[row * to_step..][..W].copy_from_slice(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_long_rows_has_few() {
        assert_eq!([8, 8 << 10].map(rows_of_block), [BLOCK; 2]);
        assert_eq!([100_000, 2 << 20].map(rows_of_block), [10, 1]);
    }
}
