//! Runs simulations: one seed with its trace, a range of seeds, or as many as fit in some minutes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use treadle_sim::{Mutation, simulate};

const USAGE: &str = "usage: treadle-sim --seed N [--without GUARD]     one seed, with its trace
       treadle-sim --seeds N [--start SEED] [--without GUARD]
       treadle-sim --minutes M [--start SEED]  the soak
       treadle-sim --scaling                   weak scaling to 512 workers
GUARD: incarnation, attempt, retraction, cancellation, budget, keeping, peer-attempt, pin, early-stop";

/// After so many failures it stops.
const SHOWN: u64 = 10;

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    seeds: Option<u64>,
    minutes: Option<u64>,
    start: u64,
    scaling: bool,
    mutation: Option<Mutation>,
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
            "--without" => {
                let name = value()?;
                let known = Mutation::ALL.into_iter().find(|m| m.name() == name);
                arguments.mutation = Some(known.ok_or(format!("{name} is no guard"))?);
            }
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mutation = arguments.mutation.unwrap_or(Mutation::None);
    if let Some(seed) = arguments.seed {
        return match simulate(seed, mutation, true) {
            Ok(summary) => {
                println!("{summary:?}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.scaling {
        treadle_sim::scaling::report();
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
        match simulate(seed, mutation, false) {
            Ok(summary) => steps += summary.steps,
            Err(error) => {
                failures += 1;
                println!("seed {seed}: {error}");
                let without = arguments
                    .mutation
                    .map(|m| format!(" --without {}", m.name()));
                println!(
                    "  replay: cargo run -p treadle-sim --release -- --seed {seed}{}",
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
