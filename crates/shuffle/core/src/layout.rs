//! Where partitions live. Shuffles that share outputs share a layout, so that both sides of a merge
//! are at one place.

use alloc::vec;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::ServerId;

/// The home of each partition.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    homes: Vec<Option<ServerId>>,
    /// How many shuffles use it.
    pub(crate) users: u32,
    /// Servers that are to be preferred, if any of them is there.
    preferred: Vec<ServerId>,
    /// Where to begin among the servers, so that small shuffles do not all begin at the same one.
    shift: usize,
}

impl Layout {
    pub(crate) fn new(partitions: u32, preferred: Vec<ServerId>, shift: usize) -> Self {
        Self {
            homes: vec![None; partitions as usize],
            users: 0,
            preferred,
            shift,
        }
    }

    /// Where it begins, as a part of 2⁶⁴: those of one after another are far from each other.
    pub(crate) fn place(&self) -> u64 {
        (self.shift as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn partitions(&self) -> u32 {
        self.homes.len() as u32
    }

    pub(crate) fn footprint(&self) -> u64 {
        size_of_val(&self.homes[..]) as u64
    }

    pub(crate) fn home(&self, partition: u32) -> Option<ServerId> {
        self.homes.get(partition as usize).copied().flatten()
    }

    /// A server is gone: its partitions have no home.
    pub(crate) fn lose(&mut self, server: ServerId) {
        for home in &mut self.homes {
            if *home == Some(server) {
                *home = None;
            }
        }
    }

    /// Whether one of these servers is to be preferred.
    pub(crate) fn has_preferred(&self, servers: &[(ServerId, u64)]) -> bool {
        let mut servers = servers.iter();
        servers.any(|(server, _)| self.preferred.contains(server))
    }

    /// Gives the wanted partitions that have no home one, in contiguous ranges whose lengths are about
    /// proportional to the weights of the servers. Without servers they have none for now.
    pub(crate) fn assign(&mut self, wanted: &Runs, servers: &[(ServerId, u64)]) {
        let is_preferred = |(server, _): &&(ServerId, u64)| self.preferred.contains(server);
        let mut chosen: Vec<_> = servers.iter().filter(is_preferred).copied().collect();
        if chosen.is_empty() {
            chosen = servers.to_vec();
        }
        if chosen.is_empty() {
            return;
        }
        let shift = self.shift % chosen.len();
        chosen.rotate_left(shift);
        let homeless: Vec<usize> = wanted
            .iter()
            .map(|partition| partition as usize)
            .filter(|&partition| self.homes[partition].is_none())
            .collect();
        let total: u128 = chosen.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let mut chosen = chosen.into_iter();
        let (mut server, mut end) = (ServerId::default(), 0_u128);
        for (index, &partition) in homeless.iter().enumerate() {
            let place = index as u128 * total / homeless.len() as u128;
            while place >= end
                && let Some((next, weight)) = chosen.next()
            {
                (server, end) = (next, end + u128::from(weight));
            }
            self.homes[partition] = Some(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(node: u32) -> ServerId {
        ServerId {
            node,
            incarnation: 1,
        }
    }

    fn equal(nodes: &[u32]) -> Vec<(ServerId, u64)> {
        nodes.iter().map(|&node| (server(node), 1)).collect()
    }

    #[test]
    fn partitions_are_spread_in_ranges_and_move_only_when_their_server_is_gone() {
        let servers = equal(&[0, 1, 2]);
        let mut layout = Layout::new(10, vec![], 1);
        let wanted = Runs::from_iter([0, 1, 2, 3, 4, 5, 7, 8, 9]);
        layout.assign(&wanted, &servers);
        let homes: Vec<_> = (0..10).map(|p| layout.home(p).map(|s| s.node)).collect();
        let expected = [1, 1, 1, 2, 2, 2, 9, 0, 0, 0].map(|n| (n < 9).then_some(n));
        assert_eq!(homes, expected);
        layout.lose(server(2));
        layout.assign(&wanted, &[]);
        assert_eq!(layout.home(3), None);
        layout.assign(&wanted, &servers[..2]);
        let moved: Vec<_> = (3..6).map(|p| layout.home(p).unwrap().node).collect();
        assert_eq!(moved, [1, 1, 0]);
        assert_eq!(layout.home(0), Some(server(1)));
    }

    #[test]
    fn preferred_servers_take_all_while_one_is_there() {
        let mut layout = Layout::new(4, vec![server(1)], 0);
        layout.assign(&Runs::range(0, 2), &equal(&[0, 1]));
        layout.assign(&Runs::range(0, 4), &equal(&[0]));
        let homes: Vec<_> = (0..4).map(|p| layout.home(p).unwrap().node).collect();
        assert_eq!(homes, [1, 1, 0, 0]);
    }

    #[test]
    fn a_server_of_three_times_the_weight_gets_three_times_the_partitions() {
        let mut layout = Layout::new(8, vec![], 0);
        layout.assign(&Runs::range(0, 8), &[(server(0), 1), (server(1), 3)]);
        let homes: Vec<_> = (0..8).map(|p| layout.home(p).unwrap().node).collect();
        assert_eq!(homes, [0, 0, 1, 1, 1, 1, 1, 1]);
    }
}
