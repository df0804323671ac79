//! Which of an object's frames travel in its header, and which regions of memory the rest fills.

use alloc::vec::Vec;
use thiserror::Error;

use crate::Guard;

/// Length of every extent but the last of a region, in bytes. Large enough that a header and two
/// system calls do not matter, small enough that its checksum is computed while it is in the
/// second-level cache.
pub const EXTENT: u64 = 256 * 1024;
/// Frames below this size are gathered: copying them costs less than a region of their own.
pub const SMALL: u64 = 64 * 1024;
/// Up to this many bytes of small frames travel in the object's header.
pub const INLINE: u64 = 64 * 1024;
/// Small frames that do not fit into the header are gathered in slabs of at most this size.
pub const SLAB: u64 = 1024 * 1024;
/// Alignment of every frame within a slab, and of every region, in bytes.
pub const ALIGNMENT: u64 = 64;
/// The most frames that an object may have.
pub const MAX_FRAMES: usize = 1 << 16;
/// The largest object, in bytes: far above any memory, far below an overflow.
pub const MAX_BYTES: u64 = 1 << 48;

/// Where a frame's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the header, after the inline frames before it.
    Inline {
        /// First byte within the header's inline bytes.
        offset: u64,
    },
    Region {
        /// Index of the region.
        region: u32,
        /// First byte within the region.
        offset: u64,
    },
}

/// An object that no layout allows.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Too many frames.
    #[error("an object of {0} frames; at most {MAX_FRAMES} are allowed")]
    Frames(usize),
    /// Too many bytes.
    #[error("an object of more than {MAX_BYTES} bytes")]
    Bytes,
}

/// The places of an object's frames. Both sides compute it from the frames' sizes alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The place of each frame.
    pub places: Vec<Place>,
    /// The length of each region in bytes, none of them 0.
    pub regions: Vec<u64>,
    /// The bytes that travel in the header.
    pub inline: u64,
}

/// Whether a frame of `size` bytes travels in the header, after `inline` bytes of other frames: the first
/// frames do that fit, so a short one that comes first always does.
pub fn fits_header(inline: u64, size: u64) -> bool {
    size < SMALL && inline + size <= INLINE
}

impl Layout {
    /// The layout of an object whose frames have these sizes, in bytes.
    pub fn of(sizes: &[u64]) -> Result<Self, LayoutError> {
        if sizes.len() > MAX_FRAMES {
            return Err(LayoutError::Frames(sizes.len()));
        }
        let mut total = 0u64;
        for size in sizes {
            total = total.checked_add(*size).ok_or(LayoutError::Bytes)?;
        }
        if total > MAX_BYTES {
            return Err(LayoutError::Bytes);
        }
        let mut layout = Self {
            places: Vec::with_capacity(sizes.len()),
            regions: Vec::new(),
            inline: 0,
        };
        let mut slab: Option<u32> = None;
        for &size in sizes {
            let place = if size >= SMALL {
                layout.regions.push(size);
                Place::Region {
                    region: (layout.regions.len() - 1) as u32,
                    offset: 0,
                }
            } else if fits_header(layout.inline, size) {
                let offset = layout.inline;
                layout.inline += size;
                Place::Inline { offset }
            } else {
                layout.in_slab(&mut slab, size)
            };
            layout.places.push(place);
        }
        Ok(layout)
    }

    fn in_slab(&mut self, slab: &mut Option<u32>, size: u64) -> Place {
        if let Some(region) = *slab {
            let offset = self.regions[region as usize].next_multiple_of(ALIGNMENT);
            if offset + size <= SLAB {
                self.regions[region as usize] = offset + size;
                return Place::Region { region, offset };
            }
        }
        let region = self.regions.len() as u32;
        self.regions.push(size);
        *slab = Some(region);
        Place::Region { region, offset: 0 }
    }

    /// The bytes in all regions together.
    pub fn body(&self) -> u64 {
        self.regions.iter().sum()
    }
}

/// The grid of extents over an object's regions.
#[derive(Clone, Debug)]
pub struct Grid {
    regions: Vec<u64>,
    /// For each region the number of extents before it; one more entry for the end.
    before: Vec<u64>,
}

impl Grid {
    /// The grid over regions of these lengths.
    pub fn new(regions: &[u64]) -> Self {
        if regions.is_empty() {
            // Most objects: nothing is allocated for them.
            return Self {
                regions: Vec::new(),
                before: Vec::new(),
            };
        }
        let mut before = Vec::with_capacity(regions.len() + 1);
        let mut count = 0;
        before.push(0);
        for length in regions {
            count += length.div_ceil(EXTENT);
            before.push(count);
        }
        Self {
            regions: regions.to_vec(),
            before,
        }
    }

    /// The number of extents.
    pub fn len(&self) -> u64 {
        *self.before.last().unwrap_or(&0)
    }

    /// Whether there is no extent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region, offset and length of an extent.
    ///
    /// # Panics
    /// When there is no such extent.
    pub fn extent(&self, index: u64) -> (u32, u64, u64) {
        assert!(index < self.len(), "extent {index} of {}", self.len());
        let region = self.before.partition_point(|before| *before <= index) - 1;
        let offset = (index - self.before[region]) * EXTENT;
        let length = EXTENT.min(self.regions[region] - offset);
        (region as u32, offset, length)
    }

    /// The index of the extent at this place, if the grid has one exactly there.
    pub fn index(&self, region: u32, offset: u64, length: u64) -> Option<u64> {
        let total = *self.regions.get(region as usize)?;
        if !offset.is_multiple_of(EXTENT) || offset >= total {
            return None;
        }
        if length != EXTENT.min(total - offset) && Guard::Length.holds() {
            return None;
        }
        Some(self.before[region as usize] + offset / EXTENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_objects_have_no_region() {
        let layout = Layout::of(&[10, 0, 200]).unwrap();
        assert_eq!(layout.inline, 210);
        assert!(layout.regions.is_empty());
        assert_eq!(layout.places[2], Place::Inline { offset: 10 });
    }

    #[test]
    fn many_small_frames_fill_slabs() {
        let layout = Layout::of(&[100; 20_000]).unwrap();
        assert_eq!(layout.inline, INLINE / 100 * 100);
        assert!(layout.regions.len() < 5, "{} regions", layout.regions.len());
    }

    /// Who receives looks at the first frame before there is memory for the others.
    #[test]
    fn a_short_first_frame_is_in_the_header_whatever_follows() {
        for size in (INLINE - 200..SMALL + 2).chain([EXTENT]) {
            let layout = Layout::of(&[100, size]).unwrap();
            assert_eq!(layout.places[0], Place::Inline { offset: 0 }, "{size}");
        }
    }

    #[test]
    fn an_impossible_object_is_refused() {
        assert_eq!(
            Layout::of(&vec![0; MAX_FRAMES + 1]),
            Err(LayoutError::Frames(MAX_FRAMES + 1))
        );
        assert_eq!(Layout::of(&[u64::MAX, 2]), Err(LayoutError::Bytes));
        assert_eq!(Layout::of(&[MAX_BYTES + 1]), Err(LayoutError::Bytes));
    }

    proptest! {
        /// Frames never overlap, lie within their region, and are aligned; the grid covers every
        /// byte of every region once.
        #[test]
        fn places_are_disjoint_and_the_grid_covers(
            sizes in prop::collection::vec(prop_oneof![0..200u64, 0..3 * EXTENT, 60_000..70_000u64], 0..300)
        ) {
            let layout = Layout::of(&sizes).unwrap();
            let mut taken: Vec<Vec<(u64, u64)>> = vec![Vec::new(); layout.regions.len()];
            let mut inline = 0;
            for (place, size) in layout.places.iter().zip(&sizes) {
                match *place {
                    Place::Inline { offset } => {
                        prop_assert_eq!(offset, inline);
                        inline += size;
                    }
                    Place::Region { region, offset } => {
                        prop_assert_eq!(offset % ALIGNMENT, 0);
                        prop_assert!(offset + size <= layout.regions[region as usize]);
                        taken[region as usize].push((offset, offset + size));
                    }
                }
            }
            prop_assert_eq!(inline, layout.inline);
            prop_assert!(inline <= INLINE);
            for spans in &mut taken {
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            let grid = Grid::new(&layout.regions);
            let mut covered = vec![0; layout.regions.len()];
            for index in 0..grid.len() {
                let (region, offset, length) = grid.extent(index);
                prop_assert_eq!(offset, covered[region as usize]);
                covered[region as usize] += length;
                prop_assert_eq!(grid.index(region, offset, length), Some(index));
                prop_assert_eq!(grid.index(region, offset + 1, length), None);
                prop_assert_eq!(grid.index(region, offset, length + 1), None);
            }
            prop_assert_eq!(&covered, &layout.regions);
        }
    }
}
