//! Bytes by partition as a few figures.

use alloc::vec::Vec;

/// The most heights of [`Sizes::bars`].
const BARS: u64 = 64;
/// The most partitions that [`Sizes::largest`] names.
const LARGEST: usize = 8;
/// The shares of partitions at [`Sizes::quantiles`], in percent.
const QUANTILES: [u64; 7] = [0, 10, 25, 50, 75, 90, 99];

/// Bytes by partition, in a size that does not depend on how many there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// How many partitions there are.
    pub count: u64,
    pub bytes: u64,
    /// How many have no rows.
    pub empty: u64,
    /// A share of partitions in percent, and the size in bytes that so many do not exceed.
    pub quantiles: Vec<(u64, u64)>,
    /// The largest partitions with their bytes, the largest one first.
    pub largest: Vec<(u32, u64)>,
    /// For at most 64 ranges of neighbours of equal length, the bytes of the largest one of each.
    pub bars: Vec<u64>,
    /// How many partitions a bar is of.
    pub bar: u64,
}

impl Sizes {
    /// Of the bytes of partitions, in the order of their numbers.
    pub fn of(sizes: &[(u32, u64)]) -> Self {
        let count = sizes.len() as u64;
        let bar = count.div_ceil(BARS).max(1);
        let bars = sizes.chunks(bar as usize);
        let bars = bars.map(|some| some.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0));
        let bars = bars.collect();
        let mut ordered = sizes.to_vec();
        ordered.sort_unstable_by_key(|&(partition, bytes)| (bytes, u32::MAX - partition));
        let at = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1) - 1;
            Some((percent, ordered.get(rank as usize)?.1))
        };
        Self {
            count,
            bytes: sizes.iter().map(|&(_, bytes)| bytes).sum(),
            empty: sizes.iter().filter(|&&(_, bytes)| bytes == 0).count() as u64,
            quantiles: QUANTILES.into_iter().filter_map(at).collect(),
            largest: ordered.iter().rev().take(LARGEST).copied().collect(),
            bars,
            bar,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn sizes_of_many_partitions_are_a_few_figures() {
        let many: Vec<(u32, u64)> = (0..100_000)
            .map(|at| (at, u64::from(at == 70_000)))
            .collect();
        let sizes = Sizes::of(&many);
        assert!(sizes.bars.len() <= 64 && sizes.bars.iter().sum::<u64>() == 1);
        assert_eq!(sizes.bars[(70_000 / sizes.bar) as usize], 1);
        assert_eq!(sizes.largest[0], (70_000, 1));
        assert_eq!(sizes.quantiles.last(), Some(&(99, 0)));
        assert_eq!(Sizes::of(&[]).quantiles, vec![]);
    }
}
