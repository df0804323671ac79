//! Which tree: how many children a node gets, and how long a chunk is.
//!
//! The model. A node that has a chunk sends it to its `k` children one after another; each sending
//! takes `step = overhead + chunk / bandwidth`, and arrives `latency` later. Of `n` nodes below, each
//! child gets an equal part, and does the same. So the first chunk is everywhere after
//!
//! ```text
//! first(0) = 0,   first(n) = max over i = 1 … k of  i · step + latency + first(part i of n, less one)
//! ```
//!
//! and the others follow in the distance in which the root can send them: `(chunks - 1) · k · step`
//! more. A large payload wants few children (one: a chain), a small one many; the degree and the
//! chunk with the smallest sum are taken. Within a host a payload is mapped, which is one message
//! whatever its size.
//!
//! The model presumes that whoever has something to do does it at once. Where members share
//! processors, none idles until the last one is through, whatever the tree: what counts is the work,
//! and a star has the least (nobody wakes for the results of others but its one node).

use core::time::Duration;

use thiserror::Error;

/// What the plan presumes of the way between two nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Network {
    /// Bytes a second that a node can send, to all its children together.
    pub bandwidth: f64,
    /// From the end of the sending of a message to the time when it has been handled.
    pub latency: Duration,
    /// What the sender spends on a message, its bytes aside.
    pub overhead: Duration,
}

/// The shape of a cast's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The most children on other hosts.
    pub degree: u32,
    /// The most children on the same host.
    pub local: u32,
    /// Bytes in a chunk of the payload.
    pub chunk: u32,
    /// The user has chosen the degree: [`children`] has no say.
    pub chosen: bool,
}

/// What a user asks of the tree of a cast; by default nothing, and the model decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// So many engines, at most, are between the first one and the last: with 0 the first one sends
    /// to all others. Without a degree, the smallest one is taken that is not deeper.
    pub depth: Option<u32>,
    /// How many children an engine has, at most, on its own host as on others.
    pub degree: Option<u32>,
}

/// A tree that there is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TreeError {
    /// Nobody would get anything.
    #[error("degree=0: an engine of a tree has at least one child")]
    Childless,
    /// The tree of the degree is deeper than the depth.
    #[error(
        "depth={depth} with degree={degree}: the tree to engines on {hosts} host(s), of which at most \
         {crowd} share one, is {needed} deep"
    )]
    TooDeep {
        /// What was asked for.
        depth: u32,
        /// What was asked for, too.
        degree: u32,
        /// Hosts of the members.
        hosts: u64,
        /// The most members of a host.
        crowd: u64,
        /// How deep the tree is.
        needed: u64,
    },
}

impl Tree {
    /// The degree that follows for members on so many `hosts`, of which at most `crowd` share one; none
    /// if nothing was asked for.
    ///
    /// # Errors
    /// There is no such tree.
    pub fn degree(&self, hosts: u64, crowd: u64) -> Result<Option<u32>, TreeError> {
        let deep = |degree: u32| {
            let levels = levels(hosts, degree.into()) + levels(crowd, degree.into());
            levels.saturating_sub(1)
        };
        match (self.depth, self.degree) {
            (_, Some(0)) => Err(TreeError::Childless),
            (Some(depth), Some(degree)) if deep(degree) > u64::from(depth) => {
                Err(TreeError::TooDeep {
                    depth,
                    degree,
                    hosts,
                    crowd,
                    needed: deep(degree),
                })
            }
            (_, Some(degree)) => Ok(Some(degree)),
            (Some(depth), None) => {
                // A star to the hosts, and one within each: no degree is less deep.
                let star = hosts.max(crowd).max(2) as u32 - 1;
                if deep(star) > u64::from(depth) {
                    return Err(TreeError::TooDeep {
                        depth,
                        degree: star,
                        hosts,
                        crowd,
                        needed: deep(star),
                    });
                }
                let (mut too_small, mut enough) = (0, star);
                while enough - too_small > 1 {
                    let middle = too_small + (enough - too_small) / 2;
                    match deep(middle) <= u64::from(depth) {
                        true => enough = middle,
                        false => too_small = middle,
                    }
                }
                Ok(Some(enough))
            }
            (None, None) => Ok(None),
        }
    }
}

/// Below the first of so many members, how many levels the others fill.
fn levels(members: u64, degree: u64) -> u64 {
    let below = members.saturating_sub(1);
    if degree == 1 {
        // The loop would take as many steps as the chain has members.
        return below;
    }
    let (mut levels, mut width, mut room) = (0, 1_u64, 0_u64);
    while room < below {
        width = width.saturating_mul(degree);
        room = room.saturating_add(width);
        levels += 1;
    }
    levels
}

/// Chunks have from 2^14 to 2^20 bytes.
const CHUNKS: core::ops::RangeInclusive<u32> = 14..=20;

impl Network {
    /// Between processes of one host: a payload is mapped, not sent.
    pub fn within_host() -> Self {
        Self {
            bandwidth: 4e9,
            latency: Duration::from_micros(40),
            overhead: Duration::from_micros(8),
        }
    }

    /// Seconds until `size` bytes, in pieces of `chunk`, have come from one node to `below` others
    /// through nodes with at most `degree` children, as the model says.
    pub fn time(&self, size: u64, below: u64, degree: u64, chunk: u64) -> f64 {
        let step = self.overhead.as_secs_f64() + size.min(chunk) as f64 / self.bandwidth;
        let more = size.div_ceil(chunk).saturating_sub(1);
        self.first(below, degree, step) + (more * degree.min(below)) as f64 * step
    }

    /// Seconds until the first chunk is everywhere.
    fn first(&self, below: u64, degree: u64, step: f64) -> f64 {
        let latency = self.latency.as_secs_f64();
        if degree == 1 || below <= 1 {
            return below as f64 * (step + latency);
        }
        let children = degree.min(below);
        // The first children have the larger parts, of which the last one waits longest.
        let (part, larger) = (below / children, below % children);
        let last = |position: u64, part: u64| {
            position as f64 * step + latency + self.first(part - 1, degree, step)
        };
        let rest = last(children, part);
        match larger {
            0 => rest,
            _ => rest.max(last(larger, part + 1)),
        }
    }

    /// The degree and the chunk for which the model gives the shortest time.
    pub fn best(&self, size: u64, below: u64) -> (u64, u64) {
        // All small degrees, beyond them each that is larger by an eighth, and a star.
        let next = |&degree: &u64| Some(degree + (degree / 8).max(1));
        let degrees = core::iter::successors(Some(1), next).take_while(|&degree| degree < below);
        let degrees = degrees.chain([below.max(1)]);
        let mut best = (f64::INFINITY, (1, 1 << *CHUNKS.end()));
        for degree in degrees {
            for chunk in CHUNKS.map(|bits| 1 << bits) {
                let time = self.time(size, below, degree, chunk);
                if time < best.0 {
                    best = (time, (degree, chunk));
                }
                if chunk >= size {
                    break;
                }
            }
        }
        best.1
    }
}

impl Shape {
    /// The best shape for a payload of `size` bytes to members on so many `hosts`, of which at most
    /// `crowd` share one.
    pub fn new(size: u64, hosts: u64, crowd: u64, network: &Network, local: &Network) -> Self {
        let (degree, chunk) = network.best(size, hosts.saturating_sub(1));
        let (inside, _) = local.best(0, crowd.saturating_sub(1));
        Self {
            degree: degree as u32,
            local: inside as u32,
            chunk: chunk as u32,
            chosen: false,
        }
    }

    /// The shape of a degree that the user has chosen, with the chunk that is best for it.
    pub fn of_degree(degree: u32, size: u64, hosts: u64, network: &Network) -> Self {
        let time =
            |bits: &u32| network.time(size, hosts.saturating_sub(1), degree.into(), 1 << bits);
        let best = CHUNKS.min_by(|one, other| time(one).total_cmp(&time(other)));
        Self {
            degree,
            local: degree,
            chunk: 1 << best.expect("there are some"),
            chosen: true,
        }
    }
}

/// The most children of the node of a star.
pub const STAR: u64 = 64;

/// How many children on its own host a node gets that has `crowd` members there to look after, of a
/// plan that says `local`, where the host has so many `processors` (0: enough).
pub fn children(local: u64, crowd: u64, processors: u64) -> u64 {
    let is_shared = processors > 0 && crowd > processors;
    if is_shared { local.max(STAR) } else { local }
}

impl Default for Network {
    /// 10 Gbit/s within a cluster.
    fn default() -> Self {
        Self {
            bandwidth: 1.1e9,
            latency: Duration::from_micros(100),
            overhead: Duration::from_micros(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{Network, STAR, Tree, TreeError, children};

    const NETWORKS: [Network; 3] = [
        Network {
            bandwidth: 1.1e9,
            latency: Duration::from_micros(100),
            overhead: Duration::from_micros(10),
        },
        Network {
            bandwidth: 1e8,
            latency: Duration::from_millis(1),
            overhead: Duration::from_micros(20),
        },
        Network {
            bandwidth: 1e10,
            latency: Duration::from_micros(20),
            overhead: Duration::from_micros(3),
        },
    ];

    /// When everybody below a node that gets its chunks at `times` has the last one: each chunk is
    /// sent to each child in turn, no sooner than it is there and than the sendings before are over.
    fn exact(network: &Network, times: &[f64], below: u64, degree: u64, step: f64) -> f64 {
        let children = degree.min(below);
        let mut arrivals = vec![Vec::with_capacity(times.len()); children as usize];
        let mut free: f64 = 0.0;
        for &time in times {
            free = free.max(time);
            for child in &mut arrivals {
                free += step;
                child.push(free + network.latency.as_secs_f64());
            }
        }
        let parts = (0..children).map(|i| below / children + u64::from(i < below % children));
        let children = arrivals.iter().zip(parts);
        let below = children.map(|(times, part)| exact(network, times, part - 1, degree, step));
        below.fold(times[times.len() - 1], f64::max)
    }

    fn exactly(network: &Network, size: u64, below: u64, degree: u64, chunk: u64) -> f64 {
        let step = network.overhead.as_secs_f64() + size.min(chunk) as f64 / network.bandwidth;
        let times = vec![0.0; size.div_ceil(chunk).max(1) as usize];
        exact(network, &times, below, degree, step)
    }

    #[test]
    fn the_degree_is_the_best_that_trying_all_finds() {
        for network in NETWORKS {
            for size in [0, 2_000, 500_000, 8_000_000] {
                for below in [1, 2, 7, 31, 127] {
                    let (degree, chunk) = network.best(size, below);
                    let ours = exactly(&network, size, below, degree, chunk);
                    let all = (1..=below).flat_map(|degree| {
                        let chunks = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
                        chunks.map(|chunk| exactly(&network, size, below, degree, chunk))
                    });
                    let best = all.fold(f64::INFINITY, f64::min);
                    assert!(
                        ours <= 1.03 * best,
                        "{size} bytes to {below}: degree {degree} takes {ours}, the best {best}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_depth_takes_the_smallest_degree() {
        let degree = |depth, hosts, crowd| {
            let tree = Tree {
                depth: Some(depth),
                degree: None,
            };
            tree.degree(hosts, crowd)
        };
        assert_eq!(degree(0, 100, 1), Ok(Some(99)));
        assert_eq!(degree(1, 100, 1), Ok(Some(10)));
        assert_eq!(degree(2, 1, 100), Ok(Some(5)));
        assert_eq!(degree(5, 8, 1), Ok(Some(2)));
        assert_eq!(degree(7, 8, 1), Ok(Some(1)));
        assert_eq!(degree(0, 1, 1), Ok(Some(1)));
        // To the hosts, and to the others of each.
        assert!(matches!(
            degree(0, 2, 2),
            Err(TreeError::TooDeep { needed: 1, .. })
        ));
    }

    #[test]
    fn a_degree_has_to_reach_everybody() {
        let tree = |degree| Tree {
            depth: Some(2),
            degree: Some(degree),
        };
        assert_eq!(tree(0).degree(8, 1), Err(TreeError::Childless));
        assert_eq!(tree(5).degree(100, 1), Ok(Some(5)));
        let error = tree(2).degree(100, 1).unwrap_err();
        assert!(
            error.to_string().contains("depth=2 with degree=2"),
            "{error}"
        );
        assert_eq!(Tree::default().degree(100, 1), Ok(None));
    }

    #[test]
    fn members_that_share_processors_are_a_star() {
        assert_eq!(children(5, 31, 2), STAR);
        assert_eq!(children(5, 31, 32), 5);
        assert_eq!(children(5, 31, 0), 5);
    }

    #[test]
    fn large_payloads_take_a_chain_and_small_ones_a_bush() {
        let network = Network::default();
        assert_eq!(network.best(1 << 30, 7).0, 1);
        assert!(network.best(1 << 21, 511).0 <= 4);
        assert!(network.best(100, 511).0 >= 6);
    }
}
