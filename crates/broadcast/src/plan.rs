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

    use super::{Network, STAR, children};

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
