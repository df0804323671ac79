//! How many rows there are by partition and range of maps.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::block::Table;
use crate::{MapRange, Tally};

/// So many partitions have their counts in one piece of memory. A shuffle may have a million partitions,
/// and rows in a few.
const PAGE: usize = 64;

type Page = Box<[Tally; PAGE]>;

/// What all batches of a group together have, with half of the digest.
#[derive(Debug)]
pub(super) struct Counts {
    /// The ranges of the group's partitions, and how many partitions are in those before.
    ranges: Vec<(u64, u64, usize)>,
    partitions: usize,
    /// So many maps with consecutive numbers are a stripe: their rows are read, and compared with what is
    /// counted, together.
    stripe: u32,
    /// By stripe, then by the position of the partition. Of stripes that have no rows there is none, and
    /// so it is with pages.
    tallies: BTreeMap<u32, Vec<Option<Page>>>,
}

impl Counts {
    pub(super) fn new(partitions: &Runs, stripe: u32) -> Self {
        let mut before = 0;
        let mut ranges = Vec::new();
        for &(start, end) in partitions.ranges() {
            ranges.push((start, end, before));
            before += (end - start) as usize;
        }
        Self {
            ranges,
            partitions: before,
            stripe,
            tallies: BTreeMap::new(),
        }
    }

    /// The maps of a stripe.
    pub(super) fn stripe(&self) -> u32 {
        self.stripe
    }

    /// What was counted elsewhere, by stripe and position. `None`: it is of other partitions.
    pub(super) fn adopted(
        partitions: &Runs,
        stripe: u32,
        tallies: &[((u32, u32), Tally)],
    ) -> Option<Self> {
        let mut counts = Self::new(partitions, stripe.max(1));
        for &((stripe, at), ref tally) in tallies {
            let at = at as usize;
            if at >= counts.partitions {
                return None;
            }
            *counts.place(stripe, at) = *tally;
        }
        Some(counts)
    }

    fn place(&mut self, stripe: u32, at: usize) -> &mut Tally {
        let count = self.partitions.div_ceil(PAGE);
        let pages = self.tallies.entry(stripe);
        let pages = pages.or_insert_with(|| (0..count).map(|_| None).collect());
        let page = pages[at / PAGE].get_or_insert_with(|| Box::new([Tally::default(); PAGE]));
        &mut page[at % PAGE]
    }

    /// Adds the pieces of a batch of this map. Those of other partitions are left out.
    pub(super) fn add(&mut self, map: u32, table: &Table) {
        let empty = || {
            let pages = (0..self.partitions.div_ceil(PAGE)).map(|_| None);
            pages.collect()
        };
        let pages = self.tallies.entry(map / self.stripe);
        let pages = pages.or_insert_with(empty);
        for piece in table.pieces() {
            if let Some(at) = position(&self.ranges, piece.partition) {
                let page =
                    pages[at / PAGE].get_or_insert_with(|| Box::new([Tally::default(); PAGE]));
                page[at % PAGE].add(&piece.tally);
            }
        }
    }

    /// Takes them away.
    pub(super) fn subtract(&mut self, map: u32, table: &Table) {
        let Some(pages) = self.tallies.get_mut(&(map / self.stripe)) else {
            return;
        };
        for piece in table.pieces() {
            if let Some(at) = position(&self.ranges, piece.partition)
                && let Some(page) = &mut pages[at / PAGE]
            {
                page[at % PAGE].subtract(&piece.tally);
            }
        }
    }

    /// The whole stripes that these maps are in.
    pub(super) fn stripes_of(&self, maps: MapRange) -> MapRange {
        let first = maps.first / self.stripe;
        let end = maps.end.div_ceil(self.stripe).max(first);
        MapRange {
            first: first * self.stripe,
            end: end.saturating_mul(self.stripe),
        }
    }

    /// What there is of a partition; of whole stripes, or of all maps.
    pub(super) fn of(&self, partition: u32, stripes: Option<MapRange>) -> Tally {
        let (first, end) = stripes.map_or((0, u32::MAX), |maps| {
            (maps.first / self.stripe, maps.end.div_ceil(self.stripe))
        });
        let Some(at) = position(&self.ranges, partition) else {
            return Tally::default();
        };
        let stripes = self.tallies.range(first..end);
        let pages = stripes.filter_map(|(_, pages)| pages[at / PAGE].as_ref());
        pages.map(|page| page[at % PAGE]).sum()
    }

    /// What there is altogether.
    pub(super) fn whole(&self) -> Tally {
        let pages = self.tallies.values().flatten().flatten();
        pages.flat_map(|page| page.iter().copied()).sum()
    }

    /// All that is not empty, by stripe and position.
    pub(super) fn iter(&self) -> impl Iterator<Item = ((u32, usize), Tally)> + '_ {
        let pages = self.tallies.iter().flat_map(|(&stripe, pages)| {
            let pages = pages.iter().enumerate();
            pages.filter_map(move |(at, page)| Some((stripe, at, page.as_ref()?)))
        });
        let all = pages.flat_map(|(stripe, page, tallies)| {
            let tallies = tallies.iter().enumerate();
            tallies.map(move |(at, tally)| ((stripe, page * PAGE + at), tally.narrow()))
        });
        all.filter(|(_, tally)| !tally.is_empty())
    }

    /// Without rows.
    pub(super) fn emptied(&self) -> Self {
        Self {
            ranges: self.ranges.clone(),
            tallies: BTreeMap::new(),
            ..*self
        }
    }
}

fn position(ranges: &[(u64, u64, usize)], partition: u32) -> Option<usize> {
    let partition = u64::from(partition);
    let after = match ranges {
        [_] => 1,
        _ => ranges.partition_point(|&(start, ..)| start <= partition),
    };
    let &(start, end, before) = ranges.get(after.checked_sub(1)?)?;
    (start..end)
        .contains(&partition)
        .then(|| before + (partition - start) as usize)
}
