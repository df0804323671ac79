//! Runs simulations: one seed with its trace, a range of seeds, or as many as fit in some minutes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use treadle_broadcast_sim as broadcast;
use treadle_shuffle_sim as shuffle;
use treadle_sim::kernel::Trace;
use treadle_sim::scaling;

const USAGE: &str = "usage: treadle-sim --seed N [--without GUARD]     one seed, with its trace
       treadle-sim --seeds N [--start SEED] [--without GUARD]
       treadle-sim --minutes M [--start SEED]  the soak
       treadle-sim --scaling                   weak scaling to 512 workers
       treadle-sim --scaling --parameters FILE [--workers N,N,…]
                                               workloads of Dask's scaling report with what things cost
                                               on a machine, as lines of JSON
       treadle-sim --replay TRACE [--workers N] [--threads T] [--parameters FILE]
                                               the tasks that treadle.trace has recorded on so many workers,
                                               beside how long they took, as a line of JSON
       treadle-sim --broadcast …               the same for the broadcast plane, and
       treadle-sim --broadcast --scaling       a push to 8 … 10,000 engines
       treadle-sim --broadcast --sweep         pushes through trees of depths 0 to 5, as lines of JSON
       treadle-sim --shuffle …                 the same for the shuffle plane, without --scaling, and
       treadle-sim --whole …                   for shuffles whose tasks the scheduler runs, and
       treadle-sim --service …                 for the stand-alone shuffle service, and
       treadle-sim --masters …                 for applications with masters of their own there, and
       treadle-sim --remote …                  for servers with a remote store, and
       treadle-sim --together …                for writers that say several pushes together, and
       treadle-sim --service --large           what its master takes for 40,000 × 40,000
       treadle-sim --masters --large           what those of 200 applications take on 1,000 servers";

/// After so many failures it stops.
const SHOWN: u64 = 10;

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    seeds: Option<u64>,
    minutes: Option<u64>,
    start: u64,
    scaling: bool,
    parameters: Option<PathBuf>,
    replay: Option<PathBuf>,
    workers: Vec<usize>,
    threads: Option<u32>,
    sweep: bool,
    large: bool,
    broadcast: bool,
    shuffle: bool,
    service: bool,
    masters: bool,
    remote: bool,
    together: bool,
    whole: bool,
    without: Option<String>,
}

/// A plane that is simulated.
struct Plane {
    /// The option that picks it.
    option: &'static str,
    guards: Vec<&'static str>,
    /// How many steps a seed took, and what happened.
    simulate: fn(u64, Trace) -> Result<(u64, String), String>,
    /// Weak scaling.
    report: Option<fn()>,
}

/// How many steps there were, and what happened.
fn counted(summary: shuffle::Summary) -> Result<(u64, String), String> {
    Ok((summary.steps, format!("{summary:?}")))
}

impl Plane {
    fn new(arguments: &Arguments) -> Self {
        if arguments.broadcast {
            let guards = treadle_broadcast::Guard::ALL.iter();
            return Self {
                option: "--broadcast ",
                guards: guards.map(|guard| guard.path()).collect(),
                simulate: |seed, trace| {
                    let summary = broadcast::simulate(seed, trace)?;
                    Ok((summary.steps, format!("{summary:?}")))
                },
                report: Some(broadcast::figures::report),
            };
        }
        if arguments.shuffle {
            return Self::of_shuffles("--shuffle ", |seed, trace| {
                counted(shuffle::simulate(seed, trace)?)
            });
        }
        if arguments.service {
            return Self::of_shuffles("--service ", |seed, trace| {
                counted(shuffle::simulate_service(seed, trace)?)
            });
        }
        if arguments.masters {
            return Self::of_shuffles("--masters ", |seed, trace| {
                counted(shuffle::simulate_masters(seed, trace)?)
            });
        }
        if arguments.together {
            return Self::of_shuffles("--together ", |seed, trace| {
                counted(shuffle::simulate_together(seed, trace)?)
            });
        }
        if arguments.remote {
            return Self::of_shuffles("--remote ", |seed, trace| {
                counted(shuffle::simulate_remote(seed, trace)?)
            });
        }
        if arguments.whole {
            let guards = treadle_shuffle::Guard::ALL.iter();
            let guards = guards.map(|guard| guard.path());
            return Self {
                option: "--whole ",
                guards: guards.chain(treadle_sim::guards()).collect(),
                simulate: |seed, trace| {
                    let summary = treadle_sim::simulate_whole(seed, trace)?;
                    Ok((summary.steps, format!("{summary:?}")))
                },
                report: None,
            };
        }
        Self {
            option: "",
            guards: treadle_sim::guards(),
            simulate: |seed, trace| {
                let summary = treadle_sim::simulate(seed, trace)?;
                Ok((summary.steps, format!("{summary:?}")))
            },
            report: Some(treadle_sim::scaling::report),
        }
    }

    fn of_shuffles(
        option: &'static str,
        simulate: fn(u64, Trace) -> Result<(u64, String), String>,
    ) -> Self {
        let guards = treadle_shuffle::Guard::ALL.iter();
        Self {
            option,
            guards: guards.map(|guard| guard.path()).collect(),
            simulate,
            report: None,
        }
    }

    /// The guard of a name.
    fn guard(&self, name: &str) -> Result<&'static str, String> {
        let short = |path: &&&str| path.ends_with(&format!("::{name}"));
        let found = self.guards.iter().find(short).copied();
        found.ok_or_else(|| format!("{name} is no guard; these are: {:#?}", self.guards))
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
            "--parameters" => arguments.parameters = Some(value()?.into()),
            "--replay" => arguments.replay = Some(value()?.into()),
            "--threads" => {
                let threads = number(value()?)?;
                arguments.threads = Some(u32::try_from(threads).map_err(|_| "too many threads")?);
            }
            "--workers" => {
                let listed = value()?;
                let parsed: Result<_, _> = listed.split(',').map(str::parse).collect();
                arguments.workers = parsed.map_err(|_| format!("{listed} lists no numbers"))?;
                if arguments.workers.contains(&0) {
                    return Err("a cluster has at least one worker".into());
                }
            }
            "--sweep" => arguments.sweep = true,
            "--large" => arguments.large = true,
            "--broadcast" => arguments.broadcast = true,
            "--shuffle" => arguments.shuffle = true,
            "--service" => arguments.service = true,
            "--masters" => arguments.masters = true,
            "--remote" => arguments.remote = true,
            "--together" => arguments.together = true,
            "--whole" => arguments.whole = true,
            "--without" => arguments.without = Some(value()?),
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(arguments)
}

/// Runs a recording, or the report's workloads, with what things cost on a machine.
fn with_costs(arguments: &Arguments) -> Result<(), String> {
    let costs = arguments.parameters.as_deref();
    let costs = costs.map(scaling::Parameters::read).transpose()?;
    let Some(path) = &arguments.replay else {
        let all: Vec<usize> = (0..8).map(|exponent| 1 << exponent).collect();
        let workers = match arguments.workers.is_empty() {
            true => &all,
            false => &arguments.workers,
        };
        scaling::points(workers, costs.unwrap_or_default());
        return Ok(());
    };
    let recording = scaling::Recording::read(path)?;
    let threads = arguments.threads.unwrap_or(recording.threads);
    if threads == 0 {
        return Err("a worker has at least one thread".into());
    }
    let own = [recording.workers];
    let workers = match arguments.workers.is_empty() {
        true => &own[..],
        false => &arguments.workers,
    };
    let mut parameters = costs.unwrap_or_default();
    // What the recording itself says of the network counts.
    parameters.bandwidth = recording.bandwidth.unwrap_or(parameters.bandwidth);
    for &workers in workers {
        scaling::print_replay(&recording, workers, threads, parameters);
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = parse(std::env::args().skip(1));
    let arguments = arguments.and_then(|arguments| {
        let plane = Plane::new(&arguments);
        let without = arguments.without.as_deref();
        let without = without.map(|name| plane.guard(name)).transpose()?;
        Ok((plane, without, arguments))
    });
    let (plane, without, arguments) = match arguments {
        Ok(all) => all,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let _missing = treadle_guards::without(without);
    if let Some(seed) = arguments.seed {
        return match (plane.simulate)(seed, Trace::Print) {
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
    if arguments.sweep && arguments.broadcast {
        broadcast::figures::sweep();
        return ExitCode::SUCCESS;
    }
    if arguments.parameters.is_some() || arguments.replay.is_some() {
        return match with_costs(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(2)
            }
        };
    }
    if arguments.large && arguments.service {
        shuffle::large::report();
        return ExitCode::SUCCESS;
    }
    if arguments.large && arguments.masters {
        shuffle::large::report_of_many();
        return ExitCode::SUCCESS;
    }
    if arguments.scaling {
        let Some(report) = plane.report else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        report();
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
        match (plane.simulate)(seed, Trace::Off) {
            Ok((count, _)) => steps += count,
            Err(error) => {
                failures += 1;
                println!("seed {seed}: {error}");
                let without = arguments.without.as_ref();
                let without = without.map(|name| format!(" --without {name}"));
                println!(
                    "  replay: cargo run -p treadle-sim --release -- {}--seed {seed}{}",
                    plane.option,
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
