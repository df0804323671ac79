//! Runs simulations: one seed with its trace, a range of seeds, or as many as fit in some minutes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use treadle_sim::broadcast::{self, Guard};
use treadle_sim::kernel::Trace;
use treadle_sim::{Mutation, shuffle, simulate};

const USAGE: &str = "usage: treadle-sim --seed N [--without GUARD]     one seed, with its trace
       treadle-sim --seeds N [--start SEED] [--without GUARD]
       treadle-sim --minutes M [--start SEED]  the soak
       treadle-sim --scaling                   weak scaling to 512 workers
       treadle-sim --broadcast …               the same for the broadcast plane, and
       treadle-sim --broadcast --scaling       a push to 8 … 10,000 engines
       treadle-sim --shuffle …                 the same for the shuffle plane
GUARD: incarnation, attempt, retraction, cancellation, budget, relief, scarcity, search, keeping,
       effects, invalidation, recall, peer-attempt, pin, early-stop, and fetches (of clients);
       of the broadcast plane: order, turn, once, keeping, responsibility, window, dead, version;
       of the shuffle plane: attempt, generation, receipts, order, digest, incarnation, duplicates";

/// After so many failures it stops.
const SHOWN: u64 = 10;

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    seeds: Option<u64>,
    minutes: Option<u64>,
    start: u64,
    scaling: bool,
    broadcast: bool,
    shuffle: bool,
    without: Option<String>,
}

/// What is simulated.
enum Subject {
    Cluster(Mutation),
    Broadcast(Option<Guard>),
    Shuffle(Option<shuffle::Guard>),
}

impl Subject {
    fn new(arguments: &Arguments) -> Result<Self, String> {
        let name = arguments.without.as_deref();
        let unknown = || format!("{} is no guard", name.unwrap_or_default());
        if arguments.broadcast {
            let guard = name.map(|name| {
                let known = Guard::ALL.into_iter().find(|guard| guard.name() == name);
                known.ok_or_else(unknown)
            });
            return Ok(Self::Broadcast(guard.transpose()?));
        }
        if arguments.shuffle {
            let guard = name.map(|name| {
                let mut all = shuffle::Guard::ALL.into_iter();
                all.find(|guard| guard.name() == name).ok_or_else(unknown)
            });
            return Ok(Self::Shuffle(guard.transpose()?));
        }
        let mutation = name.map(|name| {
            let known = Mutation::ALL.into_iter().find(|m| m.name() == name);
            known.ok_or_else(unknown)
        });
        Ok(Self::Cluster(
            mutation.transpose()?.unwrap_or(Mutation::None),
        ))
    }

    /// How many steps a simulation took, and what happened.
    fn simulate(&self, seed: u64, trace: Trace) -> Result<(u64, String), String> {
        match *self {
            Self::Cluster(mutation) => {
                let summary = simulate(seed, mutation, trace)?;
                Ok((summary.steps, format!("{summary:?}")))
            }
            Self::Shuffle(guard) => {
                let summary = shuffle::simulate(seed, guard, trace)?;
                Ok((summary.steps, format!("{summary:?}")))
            }
            Self::Broadcast(guard) => {
                let summary = broadcast::simulate(seed, guard, trace)?;
                Ok((summary.steps, format!("{summary:?}")))
            }
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--seed" => arguments.seed = Some(number(value()?)?),
            "--seeds" => arguments.seeds = Some(number(value()?)?),
            "--minutes" => arguments.minutes = Some(number(value()?)?),
            "--start" => arguments.start = number(value()?)?,
            "--scaling" => arguments.scaling = true,
            "--broadcast" => arguments.broadcast = true,
            "--shuffle" => arguments.shuffle = true,
            "--without" => arguments.without = Some(value()?),
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = parse(std::env::args().skip(1));
    let arguments = arguments.and_then(|arguments| Ok((Subject::new(&arguments)?, arguments)));
    let (subject, arguments) = match arguments {
        Ok(both) => both,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(seed) = arguments.seed {
        return match subject.simulate(seed, Trace::Print) {
            Ok((_, summary)) => {
                println!("{summary}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.scaling {
        match subject {
            Subject::Cluster(_) => treadle_sim::scaling::report(),
            Subject::Broadcast(_) => broadcast::figures::report(),
            Subject::Shuffle(_) => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
        return ExitCode::SUCCESS;
    }
    let time = arguments
        .minutes
        .map(|minutes| Duration::from_secs(60 * minutes));
    if time.is_none() && arguments.seeds.is_none() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    // Panics are failures of a seed, and are shown as such.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let (mut seeds, mut failures, mut steps) = (0, 0, 0);
    let mut seed = arguments.start;
    while failures < SHOWN
        && time.is_none_or(|time| begun.elapsed() < time)
        && arguments.seeds.is_none_or(|count| seeds < count)
    {
        match subject.simulate(seed, Trace::Off) {
            Ok((count, _)) => steps += count,
            Err(error) => {
                failures += 1;
                println!("seed {seed}: {error}");
                let plane = match subject {
                    Subject::Cluster(_) => "",
                    Subject::Broadcast(_) => "--broadcast ",
                    Subject::Shuffle(_) => "--shuffle ",
                };
                let without = arguments.without.as_ref();
                let without = without.map(|name| format!(" --without {name}"));
                println!(
                    "  replay: cargo run -p treadle-sim --release -- {plane}--seed {seed}{}",
                    without.unwrap_or_default()
                );
            }
        }
        seeds += 1;
        seed += 1;
    }
    println!(
        "{seeds} seeds from {}, {steps} steps, {failures} failures, {:.1?}",
        arguments.start,
        begun.elapsed()
    );
    match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
