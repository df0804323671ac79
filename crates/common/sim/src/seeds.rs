//! Seeds, one after the other: what fails says how to replay it.

use std::fmt::Debug;
use std::ops::AddAssign;

use super::Trace;

/// So many failures are shown.
const SHOWN: usize = 10;
/// So many events before the first of them.
const EVENTS: usize = 20;

/// Simulates seeds, and adds up what happened in them.
///
/// # Panics
/// If some fail, with how to replay them, which is `replay` with the seed in place of `$N`.
pub fn run_seeds<S: Default + AddAssign + Debug>(
    seeds: impl IntoIterator<Item = u64>,
    replay: &str,
    simulate: impl Fn(u64, Trace) -> Result<S, String>,
) -> S {
    let mut sum = S::default();
    let mut failures = Vec::new();
    for seed in seeds {
        match simulate(seed, Trace::Off) {
            Ok(one) => sum += one,
            Err(error) if failures.is_empty() => {
                // The same again, with what happened before.
                let error = simulate(seed, Trace::last(EVENTS)).err().unwrap_or(error);
                failures.push((seed, error));
            }
            Err(error) => failures.push((seed, error)),
        }
        if failures.len() == SHOWN {
            break;
        }
    }
    println!("{sum:?}");
    let failures = failures.iter();
    let failures: Vec<_> = failures
        .map(|(seed, error)| {
            let replay = replay.replace("$N", &seed.to_string());
            format!("seed {seed}: {error}\n  replay: {replay}")
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    sum
}

/// Simulations in which nothing happens prove nothing.
///
/// # Panics
/// If one of the counts is less than what is expected of it.
pub fn assert_happened(sum: &impl Debug, counts: &[(u64, u64)]) {
    for (index, (count, expected)) in counts.iter().enumerate() {
        assert!(count >= expected, "too little of number {index}: {sum:?}");
    }
}

/// Each guard is proved by its absence: without it, one of so many seeds must notice, and for one of
/// the right reasons.
///
/// # Panics
/// If none does, or for another reason.
pub fn assert_noticed<S>(
    guard: &'static str,
    seeds: u64,
    symptoms: &[&str],
    simulate: impl Fn(u64, Trace) -> Result<S, String>,
) {
    let _missing = treadle_guards::without(Some(guard));
    let mut results = (0..seeds).map(|seed| (seed, simulate(seed, Trace::Off)));
    let noticed = results.find_map(|(seed, result)| Some((seed, result.err()?)));
    let (seed, error) =
        noticed.unwrap_or_else(|| panic!("{guard} is not noticed within {seeds} seeds"));
    println!("{guard}: seed {seed}, {error}");
    let is_right = symptoms.iter().any(|symptom| error.contains(symptom));
    assert!(is_right, "{guard} shows as {error}");
}

/// A struct of counters that can be added up.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $Name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $Name { $($(#[$doc])* pub $field: u64,)* }

        impl std::ops::AddAssign for $Name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
