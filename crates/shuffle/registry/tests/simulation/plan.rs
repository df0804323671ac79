//! What is to happen, drawn from a seed.

use std::time::Duration;

use treadle_sim_kernel::Random;

pub(crate) const NAMES: u64 = 5;
pub(crate) const MASTERS: usize = 2;
/// Faults begin after this, and are over after that.
pub(crate) const BEGIN: Duration = Duration::from_secs(30);
pub(crate) const HEAL: Duration = Duration::from_secs(400);
/// Then all must be well.
pub(crate) const END: Duration = Duration::from_secs(2_000);

/// Something that goes wrong, or that somebody does.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The registry is away for so long; it may have forgotten all.
    Outage { length: Duration, forgets: bool },
    /// A process does not reach the registry.
    Cut { length: Duration },
    /// A process stands still.
    Pause { length: Duration },
    /// A server ends without a word, and comes back in another life.
    Restart { away: Duration },
    /// A server is started with the name of another.
    Duplicate { life: Duration },
    /// A server withdraws, and comes back.
    Withdraw { away: Duration },
    /// A server restarts again and again.
    Flap { times: u64 },
    /// A server's load changes.
    Load,
}

fn seconds(random: &mut Random, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low * 1_000, high * 1_000))
}

/// Faults with their times, for the process that is `drawn` of those that are there.
pub(crate) fn draw(random: &mut Random) -> Vec<(Duration, u64, Fault)> {
    let count = random.between(3, 15);
    let mut faults = Vec::new();
    for _ in 0..count {
        let at = seconds(random, BEGIN.as_secs(), HEAL.as_secs() - 100);
        let fault = match random.below(11) {
            0 | 1 => Fault::Outage {
                length: seconds(random, 1, 200),
                forgets: random.chance(50),
            },
            2 => Fault::Cut {
                length: seconds(random, 1, 60),
            },
            3 => Fault::Pause {
                length: seconds(random, 1, 60),
            },
            4 | 5 => Fault::Restart {
                away: seconds(random, 0, 40),
            },
            6 | 7 => Fault::Duplicate {
                life: seconds(random, 1, 100),
            },
            8 => Fault::Withdraw {
                away: seconds(random, 0, 40),
            },
            9 if random.chance(50) => Fault::Flap { times: 20 },
            _ => Fault::Load,
        };
        faults.push((at, random.next(), fault));
    }
    faults
}
