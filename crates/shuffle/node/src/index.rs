//! Where the rows of a run are, by partition and map.

use std::ops::Range;

use treadle_shuffle::MapRange;

/// Bytes between the maps of a partition whose beginnings are kept.
const STEP: u64 = 256 << 10;

/// Where each partition begins in a run, and within it a map after each [`STEP`] bytes.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Partitions and maps in ascending order, and where they begin.
    begins: Vec<(u32, u32, u64)>,
    /// The piece that was added last.
    last: Option<(u32, u32)>,
}

impl Index {
    /// A piece begins here. Pieces come in the order of partitions and maps.
    pub(crate) fn add(&mut self, partition: u32, map: u32, at: u64) {
        // Where a map begins, all of it follows.
        let is_new = self.last != Some((partition, map));
        self.last = Some((partition, map));
        let is_far =
            |&(other, _, begin): &(u32, u32, u64)| other != partition || at >= begin + STEP;
        if is_new && self.begins.last().is_none_or(is_far) {
            self.begins.push((partition, map, at));
        }
    }

    /// All that is kept, for who reads the same run elsewhere.
    pub(crate) fn begins(&self) -> &[(u32, u32, u64)] {
        &self.begins
    }

    /// The same there. `None`: it is none.
    pub(crate) fn of(begins: Vec<(u32, u32, u64)>) -> Option<Self> {
        let is_one = begins.is_sorted_by(|one, other| (one.0, one.1) < (other.0, other.1))
            && begins.is_sorted_by(|one, other| one.2 < other.2);
        is_one.then_some(Self { begins, last: None })
    }

    /// The partitions that have rows, in order.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = u32> + '_ {
        let mut last = None;
        let partitions = self.begins.iter().map(|&(partition, ..)| partition);
        partitions.filter(move |&partition| last.replace(partition) != Some(partition))
    }

    /// The range of a partition in a file of this length. If only some maps are wanted, it has all of
    /// their pieces, and a few of others. `None`: there are none.
    pub(crate) fn range(
        &self,
        partition: u32,
        maps: Option<MapRange>,
        length: u64,
    ) -> Option<Range<u64>> {
        let first = maps.map_or(0, |maps| maps.first);
        let after = |name: (u32, u32)| {
            let is_before = |&(other, map, _): &(u32, u32, u64)| (other, map) <= name;
            self.begins.partition_point(is_before)
        };
        let place = after((partition, first));
        // The first map that is wanted may be before or after one whose beginning is known.
        let before = place.checked_sub(1);
        let before = before.filter(|&at| self.begins[at].0 == partition);
        let begin = before.unwrap_or(place);
        let last = match maps {
            Some(maps) => maps.end.checked_sub(1)?,
            None => u32::MAX,
        };
        let end = after((partition, last));
        let at = |place: usize| self.begins.get(place).map_or(length, |begin| begin.2);
        (begin < end).then(|| at(begin)..at(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_maps_of_a_partition_are_a_part_of_its_range() {
        let mut index = Index::default();
        let mut at = 0;
        // Partition 1 has small maps, and partition 3 has large ones, of two pieces each.
        for map in 0..100 {
            index.add(1, map, at);
            at += 1000;
        }
        let small = at;
        for map in (0..10).flat_map(|map| [map, map]) {
            index.add(3, map, at);
            at += STEP;
        }
        let of = |partition, first, end| {
            let maps = Some(MapRange { first, end });
            index.range(partition, maps, at)
        };
        assert!(index.partitions().eq([1, 3]));
        assert_eq!(index.range(1, None, at), Some(0..small));
        assert_eq!(index.range(3, None, at), Some(small..at));
        assert_eq!(index.range(2, None, at), None);
        assert_eq!(of(1, 50, 60), Some(0..small), "it is small");
        assert_eq!(of(3, 2, 4), Some(small + 4 * STEP..small + 8 * STEP));
        assert_eq!(of(3, 9, 20), Some(small + 18 * STEP..at));
        assert_eq!(of(2, 0, 9), None);
        assert_eq!((of(3, 0, 0), of(3, 4, 4)), (None, None));
    }

    #[test]
    fn maps_before_the_first_one_that_is_there_have_nothing() {
        let mut index = Index::default();
        index.add(5, 7, 0);
        let of = |first, end| index.range(5, Some(MapRange { first, end }), 10);
        assert_eq!(of(0, 7), None);
        assert_eq!(of(0, 8), Some(0..10));
        assert_eq!(of(8, 9), Some(0..10), "7 may be followed by 8");
    }
}
