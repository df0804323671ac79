//! Maps that are pushed together, and partitions that are read together.

use treadle_rows::Wanted;
use treadle_shuffle::{AttemptId, Transfer};
use treadle_shuffle_node::{Allocate, Arena, Failure, MapRows, Source};
use treadle_types::Runs;

use crate::support::{Cluster, Numbers, SHUFFLE, maps, never, numbers, server};

const PARTITIONS: u32 = 8;

/// Rows that cannot be gathered.
struct Unreadable<'a>(&'a Numbers);

impl Source for Unreadable<'_> {
    fn gather(
        &self,
        _transfer: Transfer,
        _groups: &[Wanted],
        _allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        Err(Failure::Source("the rows cannot be read".into()))
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.0.count_in(partitions)
    }
}

fn whole_shuffle(rows: u32, shares_memory: bool) {
    let cluster = Cluster::new(2, shares_memory);
    let maps = maps(24, rows, PARTITIONS);
    cluster.register(24, PARTITIONS);
    let plane = cluster.plane(1);
    plane.takes_together(server(2));
    let unreadable = Unreadable(&maps[5]);
    let all: Vec<MapRows<'_>> = maps
        .iter()
        .map(|map| MapRows {
            transfer: map.transfer(1 + u64::from(map.map)),
            again: false,
            replaces: true,
            source: match map.map {
                5 => &unreadable,
                _ => map,
            },
        })
        .collect();
    let mut receipts = Vec::new();
    for (map, outcome) in plane
        .transfer_all(&all, &mut never())
        .into_iter()
        .enumerate()
    {
        match outcome {
            Ok(receipt) => receipts.push(receipt),
            Err(Failure::Source(_)) if map == 5 => {}
            Err(error) => panic!("map {map}: {error}"),
        }
    }
    let ended = all.iter().map(|map| map.transfer.attempt);
    let ended: Vec<(AttemptId, bool)> = ended.zip((0..).map(|map| map != 5)).collect();
    plane.finished_all(&ended);
    assert_eq!(receipts.len(), 23);
    receipts.extend(cluster.transfer(&maps[5..6], 100));
    let generation = cluster.commit(24, &receipts).unwrap();
    let read = plane.read_all(SHUFFLE, generation, 0..PARTITIONS, None, 8, &mut never());
    for (partition, found) in (0..).zip(&read.unwrap()) {
        let expected: Vec<u64> = maps.iter().flat_map(|m| m.expected(partition)).collect();
        assert_eq!(numbers(found), expected, "partition {partition}");
    }
    cluster.compare(&maps, PARTITIONS, generation);
    cluster.end();
}

#[test]
fn small_maps_travel_together_and_one_that_fails_leaves_the_others_alone() {
    // Batches are in slabs, in memory of their own, and too large to be together.
    for rows in [1, 200, 20_000, 100_000] {
        whole_shuffle(rows, false);
    }
    whole_shuffle(20_000, true);
}
