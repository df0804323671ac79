//! What functions were seen to take.

use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{INLINE, Symbol};

/// How long a function is taken to run that was never seen to end, in microseconds.
const UNKNOWN_MICROS: u32 = 1000;

/// What returns no more KiB than this takes no memory worth waiting for: such values live at the
/// scheduler.
const SMALL: f32 = INLINE as f32 / 1024.0;
/// What a value at a worker counts at least, in KiB.
const LEAST: f32 = 2.0 * SMALL;

/// Observations beyond this many count as much as the mean of all before.
const WINDOW: u32 = 16;

#[derive(Clone, Copy, Default, Debug)]
struct Means {
    seen: u32,
    micros: f32,
    kibibytes: f32,
}

/// Moving means by function: symbols are dense, so this is a column.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    means: Vec<Means>,
}

impl Learnt {
    /// A run of `function` took so long and returned so much; whether that lives at the scheduler.
    pub(crate) fn observe(
        &mut self,
        function: Symbol,
        duration: Duration,
        nbytes: u64,
        is_inline: bool,
    ) {
        let index = function.0 as usize;
        if self.means.len() <= index {
            self.means.resize(index + 1, Means::default());
        }
        let means = &mut self.means[index];
        means.seen = (means.seen + 1).min(WINDOW);
        let weight = 1.0 / means.seen as f32;
        let micros = duration.as_secs() as f32 * 1e6 + duration.subsec_nanos() as f32 * 1e-3;
        means.micros += (micros - means.micros) * weight;
        let mut kibibytes = nbytes as f32 / 1024.0;
        if !is_inline {
            // With what a worker keeps of it.
            kibibytes = kibibytes.max(LEAST);
        }
        means.kibibytes += (kibibytes - means.kibibytes) * weight;
    }

    fn get(&self, function: Symbol) -> Option<&Means> {
        let means = self.means.get(function.0 as usize)?;
        (means.seen > 0).then_some(means)
    }

    /// How long `function` runs, in microseconds.
    #[inline]
    pub(crate) fn micros(&self, function: Symbol) -> Option<u32> {
        self.get(function).map(|means| (means.micros as u32).max(1))
    }

    /// The same, or a guess.
    #[inline]
    pub(crate) fn estimate(&self, function: Symbol) -> u32 {
        self.micros(function).unwrap_or(UNKNOWN_MICROS)
    }

    /// How much `function` returns, in KiB; 0 if that is not known.
    #[inline]
    pub(crate) fn output(&self, function: Symbol) -> u32 {
        self.get(function).map_or(0, |means| means.kibibytes as u32)
    }

    /// Whether `function` is known to return little.
    #[inline]
    pub(crate) fn is_small(&self, function: Symbol) -> bool {
        let means = self.get(function);
        means.is_some_and(|means| means.kibibytes <= SMALL)
    }

    /// All that is known, by function.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Symbol, Duration, u64)> + '_ {
        let known = (0..)
            .map(Symbol)
            .zip(&self.means)
            .filter(|(_, m)| m.seen > 0);
        known.map(|(function, means)| {
            let duration = Duration::from_secs_f64(f64::from(means.micros.max(0.0)) * 1e-6);
            (function, duration, means.kibibytes as u64 * 1024)
        })
    }
}
