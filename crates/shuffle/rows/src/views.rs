//! Arrays of several dimensions, with gaps, and as one run of memory.
//!
//! A [`View`] says where the elements of an array are. Elements in C order are copied from it, or to
//! it, in runs that are as long as its strides allow.

use alloc::vec;
use alloc::vec::Vec;

use crate::blocks::copy;

/// How the elements of an array lie in memory. All numbers are of bytes, except those of the shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Bytes of an element, or of elements that are side by side.
    run: usize,
    /// The axes beyond that, the outermost first: how many, and how far apart.
    axes: Vec<(usize, usize)>,
    /// From the first byte to behind the last one.
    extent: usize,
}

impl View {
    /// An array of elements of `width` bytes. `None`: it is larger than memory can be.
    pub fn new(width: usize, shape: &[usize], strides: &[usize]) -> Option<Self> {
        let axes = shape.iter().copied().zip(strides.iter().copied());
        let mut axes: Vec<(usize, usize)> = axes.filter(|(count, _)| *count != 1).collect();
        if width == 0 || axes.iter().any(|(count, _)| *count == 0) {
            return Some(Self {
                run: 0,
                axes: Vec::new(),
                extent: 0,
            });
        }
        let mut extent = width;
        let mut length = width;
        for (count, stride) in &axes {
            extent = extent.checked_add((count - 1).checked_mul(*stride)?)?;
            length = length.checked_mul(*count)?;
        }
        let mut run = width;
        while let Some((count, _)) = axes.pop_if(|(_, stride)| *stride == run) {
            run *= count;
        }
        (length <= isize::MAX as usize).then_some(Self { run, axes, extent })
    }

    /// Bytes of all elements.
    pub fn len(&self) -> usize {
        self.axes
            .iter()
            .fold(self.run, |all, (count, _)| all * count)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.run == 0
    }

    /// Bytes from the first element to the end of the last one.
    pub fn extent(&self) -> usize {
        self.extent
    }

    /// Copies all elements to `to`, which has room for exactly these.
    ///
    /// # Panics
    /// Where one of them is shorter than it should be.
    pub fn read(&self, from: &[u8], to: &mut [u8]) {
        let mut at = 0;
        self.rows(|start, count, stride| {
            let length = count * self.run;
            let place = &mut to[at..at + length];
            copy(&from[start..], stride, place, self.run, self.run, count);
            at += length;
        });
    }

    /// Copies elements that are side by side to where those of the array are.
    ///
    /// # Panics
    /// Where one of them is shorter than it should be.
    pub fn write(&self, from: &[u8], to: &mut [u8]) {
        let mut at = 0;
        self.rows(|start, count, stride| {
            let length = count * self.run;
            let runs = &from[at..at + length];
            copy(runs, self.run, &mut to[start..], stride, self.run, count);
            at += length;
        });
    }

    /// Calls `each` with the beginning of each innermost row of runs, their number and distance.
    fn rows(&self, mut each: impl FnMut(usize, usize, usize)) {
        if self.run == 0 {
            return;
        }
        let Some((&(count, stride), outer)) = self.axes.split_last() else {
            return each(0, 1, self.run);
        };
        let mut index = vec![0; outer.len()];
        let mut start = 0;
        loop {
            each(start, count, stride);
            let mut axis = outer.len();
            loop {
                let Some(before) = axis.checked_sub(1) else {
                    return;
                };
                axis = before;
                let (count, stride) = outer[axis];
                index[axis] += 1;
                start += stride;
                if index[axis] < count {
                    break;
                }
                start -= count * stride;
                index[axis] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn c_strides(width: usize, shape: &[usize]) -> Vec<usize> {
        let mut strides = vec![0; shape.len()];
        let mut stride = width;
        for axis in (0..shape.len()).rev() {
            strides[axis] = stride;
            stride *= shape[axis];
        }
        strides
    }

    proptest! {
        /// A part of an array, with its axes in any order.
        #[test]
        fn elements_come_back_to_where_they_were(
            width in 1_usize..9,
            axes in prop::collection::vec((0_usize..5, 0_usize..3, 0_usize..3), 0..4),
            turn in 0_usize..4,
        ) {
            let whole: Vec<usize> = axes.iter().map(|(n, before, after)| n + before + after).collect();
            let mut shape: Vec<usize> = axes.iter().map(|(n, ..)| *n).collect();
            let mut strides = c_strides(width, &whole);
            let offset: usize = axes.iter().zip(&strides).map(|((_, b, _), s)| b * s).sum();
            let length = width * whole.iter().product::<usize>();
            let memory: Vec<u8> = (0..length).map(|i| i as u8).collect();
            if !shape.is_empty() {
                let turn = turn % shape.len();
                shape.rotate_left(turn);
                strides.rotate_left(turn);
            }
            let view = View::new(width, &shape, &strides).unwrap();
            prop_assert_eq!(view.len(), width * shape.iter().product::<usize>());
            let from = memory.get(offset..).unwrap_or_default();
            prop_assert!(view.extent() <= from.len());
            let mut found = vec![0; view.len()];
            view.read(from, &mut found);
            let mut expected = Vec::new();
            let mut index = vec![0; shape.len()];
            for _ in 0..shape.iter().product() {
                let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
                expected.extend_from_slice(&from[at..at + width]);
                for axis in (0..shape.len()).rev() {
                    index[axis] += 1;
                    if index[axis] < shape[axis] {
                        break;
                    }
                    index[axis] = 0;
                }
            }
            prop_assert_eq!(&found, &expected);
            let mut copied = vec![0; from.len()];
            view.write(&found, &mut copied);
            let mut again = vec![0; view.len()];
            view.read(&copied, &mut again);
            prop_assert_eq!(again, expected);
        }
    }

    #[test]
    fn what_is_larger_than_memory_is_refused() {
        assert_eq!(View::new(8, &[usize::MAX / 4, 3], &[24, 8]), None);
        assert_eq!(View::new(8, &[2, 2], &[usize::MAX, 8]), None);
    }
}
